//! A bus with real sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use timevisor_coordination::{Envelope, MemberId, Message};
use timevisor_protocols::bus::{Frames, FromBus, Refusal, ToBus, VERSION, Who, frame};

use crate::{carrier, config, listen};

struct Bus {
    _folder: tempfile::TempDir,
    socket: PathBuf,
}

impl Bus {
    /// A bus on a thread, for as long as the test runs.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("run/socket");
        let (ready, started) = mpsc::channel();
        let path = socket.clone();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let carrier = carrier::Carrier::new(config::Keys::new()).unwrap();
                let listener = listen::unix(&path).unwrap();
                ready.send(()).unwrap();
                tokio::task::spawn_local(listen::serve_unix(listener, carrier.clone()));
                carrier.run().await;
            });
        });
        started.recv().unwrap();
        Self { _folder: folder, socket }
    }
}

struct Program {
    stream: UnixStream,
    frames: Frames,
}

impl Program {
    fn new(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut program = Self { stream, frames: Frames::default() };
        program.send(&ToBus::Hello { version: VERSION, client: "test".into() });
        assert!(matches!(program.next(), Some(FromBus::Welcome { .. })));
        program
    }

    fn send(&mut self, content: &ToBus) {
        self.stream.write_all(&frame(&content.encode())).unwrap();
    }

    fn next(&mut self) -> Option<FromBus> {
        loop {
            if let Some(content) = self.frames.take().unwrap() {
                return Some(FromBus::decode(content).unwrap());
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer).unwrap() {
                0 => return None,
                count => self.frames.push(&buffer[..count]),
            }
        }
    }

    fn join(&mut self, handle: u32, member: &str) {
        self.send(&ToBus::Join {
            handle,
            group: "cell7".into(),
            who: Who { name: member.into(), incarnation: u64::from(handle) },
            timeline: "tai".into(),
            requirement: None,
            lease_ms: 60_000,
        });
    }

    /// The frames until one is as asked.
    fn until(&mut self, is: impl Fn(&FromBus) -> bool) -> FromBus {
        loop {
            let next = self.next().expect("the bus ended the connection");
            if is(&next) {
                return next;
            }
        }
    }
}

fn message(member: &str, incarnation: u64, payload: Vec<u8>) -> Vec<u8> {
    let from = MemberId { name: member.parse().unwrap(), incarnation };
    let message = Message::Publication { topic: "t".parse().unwrap(), payload };
    Envelope { from, sequence: 1, stamp: None, message }.encode()
}

#[test]
fn two_programs_exchange_messages_of_a_mebibyte_and_learn_of_a_death() {
    let bus = Bus::start();
    let (mut a, mut b) = (Program::new(&bus.socket), Program::new(&bus.socket));
    a.join(1, "a");
    a.until(|it| matches!(it, FromBus::Joined { .. }));
    b.join(2, "b");
    b.until(|it| matches!(it, FromBus::Joined { members, .. } if members.len() == 2));
    b.send(&ToBus::Subscribe { handle: 2, topic: "t".into(), history: 0 });
    b.until(|it| matches!(it, FromBus::History { .. }));
    let sent = message("a", 1, vec![7; 1 << 20]);
    let topic = Some("t".into());
    a.send(&ToBus::Send { handle: 1, to: None, topic, message: sent.clone() });
    let FromBus::Deliver { handles, message, .. } =
        b.until(|it| matches!(it, FromBus::Deliver { .. }))
    else {
        unreachable!()
    };
    assert_eq!((handles, message.len(), message == sent), (vec![2], sent.len(), true));
    drop(a);
    b.until(|it| matches!(it, FromBus::Members { gone, .. } if gone.len() == 1));
}

#[test]
fn who_does_not_read_loses_messages_and_is_told_how_many_and_delays_nobody() {
    let bus = Bus::start();
    let (mut a, mut slow) = (Program::new(&bus.socket), Program::new(&bus.socket));
    a.join(1, "a");
    slow.join(2, "slow");
    slow.until(|it| matches!(it, FromBus::Joined { .. }));
    a.send(&ToBus::Subscribe { handle: 1, topic: "t".into(), history: 0 });
    slow.send(&ToBus::Subscribe { handle: 2, topic: "t".into(), history: 0 });
    slow.until(|it| matches!(it, FromBus::History { .. }));
    let count = 60;
    for _ in 0..count {
        let message = message("a", 1, vec![7; 1 << 20]);
        a.send(&ToBus::Send { handle: 1, to: None, topic: Some("t".into()), message });
        // It gets its own message, so the bus has dealt with it.
        a.until(|it| matches!(it, FromBus::Deliver { .. }));
    }
    let (mut got, mut dropped) = (0, 0);
    while got + dropped < count {
        match slow.next().expect("the connection stays") {
            FromBus::Deliver { .. } => got += 1,
            FromBus::Overrun { count } => dropped += count,
            _ => {}
        }
    }
    assert_eq!(got + dropped, count);
    assert!(dropped > 0, "{got} arrived");
}

#[test]
fn a_stranger_to_the_protocol_is_told_and_let_go() {
    let bus = Bus::start();
    let mut program = Program::new(&bus.socket);
    program.stream.write_all(&frame(b"\xffhello")).unwrap();
    let refused = program.until(|it| matches!(it, FromBus::Refused { .. }));
    assert!(matches!(refused, FromBus::Refused { refusal: Refusal::Version, .. }));
    assert_eq!(program.next(), None);
    let mut program = Program::new(&bus.socket);
    program.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(program.next(), None);
}

#[test]
fn two_buses_do_not_share_a_socket() {
    let bus = Bus::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let error = listen::unix(&bus.socket).unwrap_err().to_string();
    assert!(error.contains("another timevisor-bus listens"), "{error}");
    // A socket that was left behind is taken.
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(listen::unix(&left).is_ok());
    std::fs::write(folder.path().join("file"), "").unwrap();
    let error = listen::unix(&folder.path().join("file")).unwrap_err().to_string();
    assert!(error.contains("is no socket"), "{error}");
}

/// Over TLS a group without a key cannot be joined, and nothing works without TLS.
#[tokio::test]
async fn programs_elsewhere_connect_by_tls() {
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["bus.example".into()]).unwrap();
    let tcp = config::Tcp {
        listen: Vec::new(),
        certificate: folder.path().join("bus.pem"),
        key: folder.path().join("bus.key"),
    };
    std::fs::write(&tcp.certificate, made.cert.pem()).unwrap();
    std::fs::write(&tcp.key, made.signing_key.serialize_pem()).unwrap();
    let acceptor = listen::tls(&tcp).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let carrier = carrier::Carrier::new(config::Keys::new()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let local = tokio::task::LocalSet::new();
    local.spawn_local(listen::serve_tcp(listener, acceptor, carrier));
    let talk = async move {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let name = "bus.example".try_into().unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let mut stream = connector.connect(name, stream).await.unwrap();
        let hello = ToBus::Hello { version: VERSION, client: "far".into() };
        let join = ToBus::Join {
            handle: 1,
            group: "open".into(),
            who: Who { name: "a".into(), incarnation: 1 },
            timeline: "tai".into(),
            requirement: None,
            lease_ms: 1_000,
        };
        for said in [hello, join] {
            stream.write_all(&frame(&said.encode())).await.unwrap();
        }
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        let mut buffer = [0; 1024];
        while found.len() < 2 {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "the bus ended the connection after {found:?}");
            frames.push(&buffer[..count]);
            while let Some(content) = frames.take().unwrap() {
                found.push(FromBus::decode(content).unwrap());
            }
        }
        assert!(matches!(found[0], FromBus::Welcome { .. }));
        assert!(matches!(&found[1], FromBus::Refused { refusal: Refusal::Key, .. }), "{found:?}");
        // Without TLS there is no answer.
        let mut plain = tokio::net::TcpStream::connect(address).await.unwrap();
        plain.write_all(&frame(b"\x01\x01\x00\x00")).await.unwrap();
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer).await;
        assert!(answer.len() < 16, "an alert at most: {answer:?}");
    };
    local.run_until(talk).await;
}
