use super::*;
use crate::clock::realtime;
use crate::poll::{PollFd, wait};
use std::net::UdpSocket;
use std::time::Duration;

fn server(address: &str) -> UdpServer {
    UdpServer::bind(address.parse().unwrap()).unwrap()
}

/// Waits for requests; panics when none come.
fn take(server: &mut UdpServer, batch: &mut Batch) -> usize {
    for _ in 0..100 {
        let mut fds = [PollFd::readable(server.as_fd())];
        wait(&mut fds, Some(Duration::from_millis(100))).unwrap();
        let count = server.receive(batch).unwrap();
        if count > 0 {
            return count;
        }
    }
    panic!("no request came");
}

fn client(server: &UdpServer, local: &str) -> UdpSocket {
    let socket = UdpSocket::bind(local).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let port = server.address().port();
    let ip = local.rsplit_once(':').unwrap().0;
    socket.connect(format!("{ip}:{port}")).unwrap();
    socket
}

/// Echoes every request of a batch, reversed.
fn echo(server: &mut UdpServer, batch: &mut Batch, token: Option<u64>) {
    for index in 0..batch.len() {
        let reversed: Vec<u8> = batch.request(index).unwrap().bytes.iter().rev().copied().collect();
        batch.reply(index, &reversed, token);
    }
    assert_eq!(server.send(batch), 0);
}

#[test]
fn a_whole_batch_comes_and_goes_with_stamps() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let mut server = server(address);
        let (mut batch, before) = (Batch::default(), realtime());
        let client = client(&server, address);
        for n in 0..20u8 {
            client.send(&[n, 1, 2]).unwrap();
        }
        let mut seen = 0;
        while seen < 20 {
            seen += take(&mut server, &mut batch);
            for index in 0..batch.len() {
                let request = batch.request(index).unwrap();
                assert_eq!(request.from, client.local_addr().unwrap());
                let stamp = request.stamp.expect("Linux stamps what arrives");
                assert!(before <= stamp && stamp <= realtime(), "{stamp:?}");
            }
            echo(&mut server, &mut batch, None);
        }
        for n in 0..20u8 {
            let mut buffer = [0; 8];
            let len = client.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], [2, 1, n]);
        }
        assert!(server.departures().is_empty(), "nobody asked");
    }
}

#[test]
fn a_server_on_all_addresses_answers_from_the_one_asked() {
    let mut server = server("0.0.0.0:0");
    // Connected sockets accept replies only from their peer, so these two would not receive one
    // from 127.0.0.1.
    let port = server.address().port();
    for asked in ["127.0.0.2", "127.0.0.3"] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.connect((asked, port)).unwrap();
        socket.send(b"ab").unwrap();
        let mut batch = Batch::default();
        take(&mut server, &mut batch);
        echo(&mut server, &mut batch, None);
        let mut buffer = [0; 8];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 2);
    }
}

#[test]
fn departures_are_stamped_only_where_asked_for() {
    let mut server = server("127.0.0.1:0");
    let client = client(&server, "127.0.0.1:0");
    let mut batch = Batch::default();
    for token in [Some(7), None, Some(8), Some(9)] {
        client.send(b"xyz").unwrap();
        take(&mut server, &mut batch);
        let before = realtime();
        echo(&mut server, &mut batch, token);
        let departures = server.departures();
        let tokens: Vec<_> = departures.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, token.into_iter().collect::<Vec<_>>());
        assert!(departures.iter().all(|(_, at)| before <= *at && *at <= realtime()));
    }
}

#[test]
fn after_a_refused_packet_departures_are_still_the_right_ones() {
    let mut server = server("127.0.0.1:0");
    let client = client(&server, "127.0.0.1:0");
    let mut batch = Batch::default();
    for round in 0..3 {
        client.send(b"xyz").unwrap();
        take(&mut server, &mut batch);
        // Packets cannot be sent to port 0.
        let address = client.local_addr().unwrap();
        batch.redirect(0, SocketAddr::new(address.ip(), 0));
        batch.reply(0, b"lost", Some(100 + round));
        assert_eq!(server.send(&mut batch), 1);
        client.send(b"xyz").unwrap();
        take(&mut server, &mut batch);
        echo(&mut server, &mut batch, Some(round));
        let tokens: Vec<_> = server.departures().iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [round]);
    }
}

#[test]
fn one_at_a_time_works_too() {
    let mut server = server("127.0.0.1:0");
    server.single = true;
    let client = client(&server, "127.0.0.1:0");
    let mut batch = Batch::default();
    for _ in 0..3 {
        client.send(b"xyz").unwrap();
    }
    for _ in 0..3 {
        assert_eq!(take(&mut server, &mut batch), 1);
        echo(&mut server, &mut batch, Some(1));
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 3);
        assert_eq!(server.departures().len(), 1);
    }
}

#[test]
fn long_requests_are_cut_and_silence_is_no_error() {
    let mut server = server("127.0.0.1:0");
    let mut batch = Batch::default();
    assert_eq!(server.receive(&mut batch).unwrap(), 0);
    assert!(batch.is_empty() && batch.request(0).is_none());
    let client = client(&server, "127.0.0.1:0");
    client.send(&[1; REQUEST_BYTES + 1]).unwrap();
    take(&mut server, &mut batch);
    let request = batch.request(0).unwrap();
    assert!(request.truncated && request.bytes.len() == REQUEST_BYTES);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = server("127.0.0.1:0");
    let error = UdpServer::bind(server.address()).unwrap_err();
    assert!(error.to_string().contains(&server.address().to_string()), "{error}");
    let elsewhere = UdpServer::bind("192.0.2.1:0".parse().unwrap()).unwrap_err();
    assert!(elsewhere.to_string().contains("this machine's"), "{elsewhere}");
}
