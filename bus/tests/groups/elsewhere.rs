//! A bus that is reached over the network, as guests and other hosts do: TLS with a certificate of its own.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use timevisor::group::{
    Accept, BusAddress, Group, JoinError, JoinOptions, Order, Proposed, Reported, Secret,
};

use crate::support::{Bus, LONG, Running, until};

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A bus that listens at a socket and on the network, and a clock.
struct Elsewhere {
    folder: tempfile::TempDir,
    at: SocketAddr,
    bus: Bus,
    time: Running,
}

impl Elsewhere {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        std::fs::write(path("bus.pem"), made.cert.pem()).unwrap();
        std::fs::write(path("bus.key"), made.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("group.key"), KEY).unwrap();
        let config = format!(
            "[tcp]\nlisten = [\"{at}\"]\ncertificate = {:?}\nkey = {:?}\n[[group]]\nname = \"cell7\"\nkey = {:?}\n",
            path("bus.pem"),
            path("bus.key"),
            path("group.key")
        );
        std::fs::write(path("bus.toml"), config).unwrap();
        let config = path("bus.toml");
        let bus = Bus::start(&path("socket"), &["--config", config.to_str().unwrap()]);
        Self { at, bus, time: Running::new(), folder }
    }

    fn authority(&self) -> PathBuf {
        self.folder.path().join("bus.pem")
    }

    fn join(&self, member: &str, bus: BusAddress) -> Result<Group, JoinError> {
        let key = Some(Secret::parse(KEY.as_bytes()).unwrap());
        let options = JoinOptions { bus: Some(bus), key, ..JoinOptions::default() };
        let group = Group::join(&self.time.clock.timeline(), "cell7", member, &options)?;
        group.accept(Accept::All);
        Ok(group)
    }

    fn join_far(&self, member: &str) -> Group {
        let bus = BusAddress::Tls { at: self.at.to_string(), authority: self.authority() };
        self.join(member, bus).unwrap()
    }

    fn refused(&self, at: &str, authority: PathBuf) -> String {
        self.join("z", BusAddress::Tls { at: at.to_owned(), authority }).unwrap_err().to_string()
    }
}

#[test]
fn members_near_and_far_exchange_messages_and_fire_together() {
    let it = Elsewhere::new();
    let near = it.join("near", it.bus.socket.clone().into()).unwrap();
    let far = [it.join_far("far"), it.join_far("further")];
    far.iter().for_each(|member| member.wait_for(3, LONG).unwrap());
    let poses = far[0].subscribe("poses", Order::Arrival, 0).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    // More than a record of TLS, and than what a socket takes at once.
    for round in 0..20_u8 {
        near.publish("poses", &vec![round; 1 << 19]).unwrap();
        let message = until(&poses, |_| true);
        assert_eq!(message.payload, vec![round; 1 << 19]);
    }
    let back = near.subscribe("back", Order::Arrival, 0).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for round in 0..5_u8 {
        far[1].publish("back", &vec![round; 1 << 20]).unwrap();
        assert_eq!(until(&back, |_| true).payload, vec![round; 1 << 20]);
    }
    let fires = far[0].proposals();
    let pending = near.propose(it.time.now_ns() + 200_000_000, b"grip").unwrap();
    assert_eq!(pending.wait(LONG).unwrap().agreed(), Some(true));
    until(&fires, |it| matches!(it, Proposed::Fire { .. }));
}

#[test]
fn what_was_decided_happens_while_a_bus_that_hangs_is_tried() {
    let mut it = Elsewhere::new();
    let (a, b) = (it.join_far("a"), it.join_far("b"));
    a.wait_for(2, LONG).unwrap();
    let (told, fires) = (b.watch(), b.proposals());
    let at_ns = it.time.now_ns() + 2_000_000_000;
    let pending = a.propose(at_ns, b"grip").unwrap();
    assert!(pending.decided(LONG).unwrap());
    until(&fires, |it| matches!(it, Proposed::Decided(..)));
    it.bus.kill();
    until(&told, |it| *it == Reported::Disconnected);
    // Somebody takes connections there and says nothing.
    let hung = TcpListener::bind(it.at).unwrap();
    let Proposed::Fire { late_ns, .. } = until(&fires, |it| matches!(it, Proposed::Fire { .. }))
    else {
        unreachable!()
    };
    assert!(late_ns <= 10_000_000, "who is later does not fire: {late_ns}");
    drop(hung);
    it.bus.restart();
    until(&told, |it| *it == Reported::Connected);
}

#[test]
fn who_is_not_who_it_should_be_is_no_bus() {
    let it = Elsewhere::new();
    let other = it.folder.path().join("other.pem");
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(&other, made.cert.pem()).unwrap();
    let at = it.at.to_string();
    let said = it.refused(&at, other);
    assert!(said.contains("certificate"), "{said}");
    let said = it.refused(&format!("localhost:{}", it.at.port()), it.authority());
    assert!(said.contains("not valid for name"), "{said}");
    let said = it.refused(&at, it.folder.path().join("no.pem"));
    assert!(said.contains("no.pem") && said.contains("No such file"), "{said}");
    let said = it.refused(&at, it.folder.path().join("bus.key"));
    assert!(said.contains("holds no certificate"), "{said}");
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let said = it.refused(&hung.local_addr().unwrap().to_string(), it.authority());
    assert!(said.contains("tls://127.0.0.1:"), "{said}");
    assert!(began.elapsed() < LONG, "it waits for ever");
}

/// Who knows no key, at four addresses, takes all places of the network and says nothing.
#[test]
fn who_says_nothing_takes_no_place_of_a_member() {
    let it = Elsewhere::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect = async |from: u8| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((std::net::Ipv4Addr::new(127, 0, 0, from), 0).into()).unwrap();
        let mut stream = socket.connect(it.at).await.unwrap();
        // A handshake's first byte, and no more.
        let _ = stream.write(&[0x16]).await;
        stream
    };
    let mut silent = Vec::new();
    for from in 2..6 {
        for _ in 0..256 {
            silent.push(runtime.block_on(connect(from)));
        }
    }
    // A member of another address, and one of an address that has taken its own 256.
    let other = it.join_far("other");
    for _ in 0..256 {
        silent.push(runtime.block_on(connect(1)));
    }
    let far = it.join_far("far");
    far.wait_for(2, LONG).unwrap();
    // The youngest is there yet: members did not join because the silent ones had ended.
    let youngest = silent.last().unwrap().try_read(&mut [0; 64]);
    assert_eq!(youngest.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    // Who is silent ends, members stay.
    let end = Instant::now() + 2 * LONG;
    let closed = async |stream: &mut tokio::net::TcpStream| {
        let left = end.saturating_duration_since(Instant::now());
        let read = tokio::time::timeout(left, stream.read(&mut [0; 64])).await;
        read.is_ok_and(|read| matches!(read, Ok(0) | Err(_)))
    };
    for mut stream in silent {
        assert!(runtime.block_on(closed(&mut stream)), "a silent connection does not end");
    }
    assert_eq!((far.members().len(), other.members().len()), (2, 2));
}

/// A server that sends a byte now and then: the handshake has an end nevertheless.
#[test]
fn a_bus_that_never_finishes_the_handshake_is_given_up() {
    let it = Elsewhere::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let drips = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        // A handshake record of 16 KiB.
        socket.write_all(&[0x16, 3, 3, 0x40, 0]).unwrap();
        let bytes = (0..).map_while(|_| {
            std::thread::sleep(Duration::from_millis(50));
            socket.write_all(&[2]).ok()
        });
        bytes.count()
    });
    let (answered, answer) = std::sync::mpsc::channel();
    let authority = it.authority();
    std::thread::scope(|scope| {
        scope.spawn(|| answered.send(it.refused(&at, authority)));
        let text = answer.recv_timeout(LONG).expect("it waits for ever");
        assert!(text.contains("does not finish the TLS handshake"), "{text}");
    });
    assert!(drips.join().unwrap() > 10, "it was given up although bytes came");
}
