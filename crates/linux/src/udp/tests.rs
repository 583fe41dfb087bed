//! Loopback tests of the UDP client against a std socket.

use super::*;
use crate::poll::{self, PollFd};
use std::net::UdpSocket;
use std::time::Duration;

/// The first socket that asks for receive stamps has them turned on in a work queue
/// (net/core/dev.c, `net_enable_timestamp`): packets before that have none.
fn wait_for_receive_stamps(client: &mut UdpClient, server: &UdpSocket) {
    let mut buffer = [0; 64];
    for _ in 0..1000 {
        client.send(b"hello").unwrap();
        client.recv_tx_stamp().unwrap();
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&buffer[..len], from).unwrap();
        poll::wait(&mut [PollFd::readable(client.as_fd())], Some(Duration::from_secs(5))).unwrap();
        if client.recv(&mut buffer).unwrap().is_some_and(|received| received.stamp.is_some()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no receive stamp in 1,000 packets");
}

fn exchange(server: &str) {
    let server = UdpSocket::bind(server).unwrap();
    let mut client = UdpClient::connect(server.local_addr().unwrap()).unwrap();
    if client.stamping() {
        wait_for_receive_stamps(&mut client, &server);
    }
    for round in 0u8..3 {
        let before = crate::clock::realtime();
        client.send(&[round; 48]).unwrap();
        let sent = client.recv_tx_stamp().unwrap();
        let mut buffer = [0; 64];
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..len], [round; 48]);
        assert_eq!(client.recv(&mut buffer).unwrap(), None);
        server.send_to(&buffer[..len], from).unwrap();
        let mut fds = [PollFd::readable(client.as_fd())];
        poll::wait(&mut fds, Some(Duration::from_secs(5))).unwrap();
        assert!(fds[0].ready().readable);
        let received = client.recv(&mut buffer).unwrap().unwrap();
        let after = crate::clock::realtime();
        assert_eq!((received.len, received.truncated), (48, false));
        if client.stamping() {
            let (sent, received) =
                (sent.expect("a send stamp"), received.stamp.expect("a receive stamp"));
            assert!(
                before <= sent && sent <= received && received <= after,
                "{before} {sent} {received} {after}"
            );
        }
        assert_eq!(client.recv_tx_stamp().unwrap(), None, "a stamp is given once");
    }
}

#[test]
fn stamps_are_ordered_over_ipv4() {
    exchange("127.0.0.1:0");
}

#[test]
fn stamps_are_ordered_over_ipv6() {
    if UdpSocket::bind("[::1]:0").is_ok() {
        exchange("[::1]:0");
    }
}

#[test]
fn a_stamp_of_an_earlier_packet_is_not_taken_for_the_last_one() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut client = UdpClient::connect(server.local_addr().unwrap()).unwrap();
    if !client.stamping() {
        return;
    }
    client.send(b"first").unwrap();
    std::thread::sleep(Duration::from_millis(2));
    let between = crate::clock::realtime();
    client.send(b"second").unwrap();
    let stamp = client.recv_tx_stamp().unwrap().unwrap();
    assert!(stamp >= between, "{stamp} {between}");
}

#[test]
fn a_closed_port_is_reported_and_does_not_eat_the_next_packet() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    drop(server);
    let mut client = UdpClient::connect(address).unwrap();
    client.send(b"nobody").unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let server = UdpSocket::bind(address).unwrap();
    client.send(b"somebody").unwrap();
    let stamp = client.recv_tx_stamp().unwrap();
    assert_eq!(stamp.is_some(), client.stamping());
    let mut buffer = [0; 16];
    assert_eq!(server.recv(&mut buffer).unwrap(), 8);
    // And the stamps stay matched afterwards, whether or not the kernel counted the refused packet.
    client.send(b"again").unwrap();
    assert_eq!(client.recv_tx_stamp().unwrap().is_some(), client.stamping());
}

#[test]
fn plain_sockets_work_without_stamps_and_take_the_peers_packets_only() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut client = UdpClient::open(server.local_addr().unwrap(), Sockets::Plain).unwrap();
    let mut buffer = [0; 16];
    client.send(b"hello").unwrap();
    assert_eq!(client.recv_tx_stamp().unwrap(), None);
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    // The call does not block, although the socket was not set to non-blocking.
    assert_eq!(client.recv(&mut buffer).unwrap(), None);
    stranger.send_to(b"forged", from).unwrap();
    server.send_to(b"answer", from).unwrap();
    let mut received = Vec::new();
    while received.is_empty() {
        let mut fds = [PollFd::readable(client.as_fd())];
        poll::wait(&mut fds, Some(Duration::from_secs(5))).unwrap();
        assert!(fds[0].ready().readable);
        received.extend(client.recv(&mut buffer).unwrap());
    }
    assert_eq!(received, [Received { len: 6, truncated: false, stamp: None, stranger: false }]);
    assert_eq!(&buffer[..6], b"answer");
    server.send_to(&[1; 100], from).unwrap();
    let mut fds = [PollFd::readable(client.as_fd())];
    poll::wait(&mut fds, Some(Duration::from_secs(5))).unwrap();
    assert_eq!(
        client.recv(&mut buffer).unwrap(),
        Some(Received { len: 16, truncated: true, stamp: None, stranger: false })
    );
}

#[test]
fn a_long_packet_is_marked() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut client = UdpClient::connect(server.local_addr().unwrap()).unwrap();
    client.send(b"hello").unwrap();
    let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
    server.send_to(&[1; 100], from).unwrap();
    client.recv_tx_stamp().unwrap();
    let mut fds = [PollFd::readable(client.as_fd())];
    poll::wait(&mut fds, Some(Duration::from_secs(5))).unwrap();
    let received = client.recv(&mut [0; 48]).unwrap().unwrap();
    assert_eq!((received.len, received.truncated), (48, true));
}

#[test]
fn a_socket_that_is_not_connected_marks_strangers() {
    let (server, stranger) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let peer = server.local_addr().unwrap();
    let mut client = UdpClient::open_unconnected(peer, Sockets::Stamped).unwrap();
    client.send(b"hello").unwrap();
    let mut buffer = [0; 64];
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    for (socket, strange) in [(&stranger, true), (&server, false)] {
        socket.send_to(b"hi", from).unwrap();
        poll::wait(&mut [PollFd::readable(client.as_fd())], Some(Duration::from_secs(5))).unwrap();
        // The send's stamp makes the socket ready, too.
        client.recv_tx_stamp().unwrap();
        let received = std::iter::repeat_with(|| client.recv(&mut buffer).unwrap())
            .take(1000)
            .find_map(|received| {
                std::thread::sleep(Duration::from_millis(u64::from(received.is_none())));
                received
            });
        assert_eq!(received.map(|r| (r.len, r.stranger)), Some((2, strange)));
    }
}

#[test]
fn stamps_that_nobody_awaits_do_not_keep_the_socket_ready() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut client = UdpClient::connect(server.local_addr().unwrap()).unwrap();
    if !client.stamping() {
        return;
    }
    let ready = |client: &UdpClient| {
        let mut fds = [PollFd::readable(client.as_fd())];
        poll::wait(&mut fds, Some(Duration::ZERO)).unwrap();
        fds[0].ready().error
    };
    // Sent past the client, so that it counts no packets: like a packet's second stamp.
    let past = UdpSocket::from(client.as_fd().try_clone_to_owned().unwrap());
    past.send(b"one").unwrap();
    past.send(b"two").unwrap();
    assert_eq!((client.recv_tx_stamp().unwrap(), ready(&client)), (None, true));
    assert_eq!((client.take_stamps().unwrap(), ready(&client)), (None, false));
    // An awaited stamp is returned, and the stray one beside it dropped.
    client.send(b"three").unwrap();
    past.send(b"four").unwrap();
    assert!(client.take_stamps().unwrap().is_some());
    assert!(!ready(&client));
}
