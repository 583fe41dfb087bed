//! The thread over loopback, with our own client.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};

use timevisor_clock_page::ClockStatus;
use timevisor_linux::udp_server::UdpServer;
use timevisor_protocols::ntp::server::{Config as NtpConfig, Server, Tally};
use timevisor_protocols::ntp::{Client, Config as ClientConfig, Outcome};
use timevisor_protocols::nts::{
    Association, CertificateTime, Config as NtsConfig, Established, Exchange, Random, TrustAnchors,
};
use timevisor_time::{Duration, Instant as Time};

use super::super::clients::ClientList;
use super::certificate::tests::{certificate, certificate_of};
use super::*;
use crate::config::Config;
use crate::references::Reference;
use crate::references::testing::Host;
use crate::server::serving::tests::{Bench as Page, TAI, facts};
use crate::server::{Counts, Told};

struct Bench {
    folder: tempfile::TempDir,
    config: ServerConfig,
    pem: String,
}

impl Bench {
    fn new() -> Self {
        Self::at(&["127.0.0.1"])
    }

    /// A server at these addresses, with one certificate for all of them.
    fn at(addresses: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (pem, key) = certificate_of(addresses);
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("crt"), &pem).unwrap();
        std::fs::write(path("key"), key).unwrap();
        let config = ServerConfig {
            listen: vec!["127.0.0.1:1123".parse().unwrap()],
            nts_ke_listen: addresses.iter().map(|address| free_at(address)).collect(),
            nts_certificate: Some(path("crt")),
            nts_key: Some(path("key")),
            ..ServerConfig::default()
        };
        Self { folder, config, pem }
    }

    fn start(&self) -> Nts {
        Nts::start(&self.config, self.folder.path()).unwrap().unwrap()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.config.nts_ke_listen[0]).unwrap();
        stream.set_read_timeout(Some(StdDuration::from_secs(10))).unwrap();
        stream
    }

    fn establish(&self) -> Established {
        let trust = TrustAnchors::from_pem(self.pem.as_bytes()).unwrap();
        let time = CertificateTime::of_machine(timevisor_linux::clock::realtime());
        let mut exchange = Exchange::start("127.0.0.1", &trust, time).unwrap();
        let mut stream = self.connect();
        loop {
            stream.write_all(&exchange.output()).unwrap();
            let mut buffer = [0; 1000];
            let len = stream.read(&mut buffer).unwrap();
            assert!(len > 0, "the server hung up");
            if let Some(established) = exchange.on_bytes(&buffer[..len]).unwrap() {
                stream.write_all(&exchange.output()).unwrap();
                // The server has nothing more to say, and closes.
                assert_eq!(stream.read(&mut buffer).unwrap_or(0), 0);
                return established;
            }
        }
    }
}

/// A port that was free a moment ago.
fn free_at(address: &str) -> SocketAddr {
    let any = SocketAddr::new(address.parse().unwrap(), 0);
    tcp_listener::listen(any).unwrap().local_addr().unwrap()
}

fn count(nts: &Nts, what: &str) -> u64 {
    nts.report().sessions[what]
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + StdDuration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "not in 20 s: {what}");
        std::thread::sleep(StdDuration::from_millis(5));
    }
}

#[test]
fn a_client_gets_keys_and_its_cookies_survive_a_restart() {
    let bench = Bench::new();
    let nts = bench.start();
    let established = bench.establish();
    assert_eq!(established.answer.cookies.len(), 8);
    assert_eq!(established.answer.ntp_port, Some(1123));
    assert_eq!(established.answer.ntp_server, None);
    until("counted", || count(&nts, "established") == 1);
    let address = bench.config.nts_ke_listen[0];
    drop(nts);
    until("the thread has ended", || tcp_listener::listen(address).is_ok());
    let nts = bench.start();
    let mut keys = Keys { shared: Arc::clone(&nts.keys), seen: 0 };
    let keys = keys.changed().unwrap();
    let mut ciphers = timevisor_protocols::nts::server::CookieCiphers::new(&keys);
    for cookie in &established.answer.cookies {
        let session = ciphers.open(cookie).unwrap();
        let mut text = *b"x";
        let tag = session.client_to_server().seal_in_place(b"n", b"a", &mut text).unwrap();
        let sealed = [&tag[..], &text].concat();
        assert_eq!(established.client_to_server.open(b"n", b"a", &sealed), Some(b"x".to_vec()));
    }
}

#[test]
fn a_renewed_certificate_is_served_without_a_restart() {
    let mut bench = Bench::new();
    let nts = bench.start();
    bench.establish();
    let path = |name: &str| bench.folder.path().join(name);
    std::fs::write(path("key"), "nothing").unwrap();
    until("the problem is shown", || nts.report().problem.is_some());
    bench.establish();
    let (pem, key) = certificate();
    std::fs::write(path("crt"), &pem).unwrap();
    std::fs::write(path("key"), key).unwrap();
    until("the new one is in use", || nts.report().problem.is_none());
    bench.pem = pem;
    bench.establish();
    until("counted", || count(&nts, "established") == 3);
}

#[test]
fn clients_that_talk_nonsense_or_nothing_are_dropped() {
    let bench = Bench::new();
    let nts = bench.start();
    let mut web = bench.connect();
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    // An alert, and the end.
    let _ = web.read_to_end(&mut rest);
    until("counted as failed", || count(&nts, "failed") == 1);
    let began = Instant::now();
    let mut silent = bench.connect();
    assert_eq!(silent.read(&mut [0; 10]).unwrap_or(0), 0, "dropped at the deadline");
    assert!(began.elapsed() >= connection::DEADLINE - StdDuration::from_millis(100));
    until("counted as late", || count(&nts, "late") == 1);
    bench.establish();
}

#[test]
fn one_address_cannot_take_all_places() {
    let bench = Bench::new();
    let nts = bench.start();
    let held: Vec<_> = (0..MAX_FROM_ADDRESS).map(|_| bench.connect()).collect();
    let mut more = bench.connect();
    assert_eq!(more.read(&mut [0; 10]).unwrap_or(0), 0, "closed at once");
    until("counted as limited", || count(&nts, "limited") == 1);
    drop(held);
    until("there is room again", || count(&nts, "failed") == MAX_FROM_ADDRESS as u64);
    bench.establish();
}

#[test]
fn who_gets_no_time_gets_no_keys() {
    let mut bench = Bench::new();
    bench.config.deny = vec!["127.0.0.1".to_owned()];
    let nts = bench.start();
    assert_eq!(bench.connect().read(&mut [0; 10]).unwrap_or(0), 0);
    until("counted as denied", || count(&nts, "denied") == 1);
}

#[test]
fn without_a_certificate_there_is_no_nts() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Nts::start(&ServerConfig::default(), folder.path()).unwrap().is_none());
    let bench = Bench::new();
    std::fs::write(bench.folder.path().join("crt"), "").unwrap();
    let error = format!("{:#}", Nts::start(&bench.config, folder.path()).err().unwrap());
    assert!(error.contains("fullchain.pem"), "{error}");
}

/// Both threads, with a client of ours: keys over TCP, and then the page's bounds over UDP, in the
/// interleaved mode.
#[test]
fn a_client_with_nts_gets_the_pages_bounds() {
    let bench = Bench::new();
    let nts = bench.start();
    let mut page = Page::new();
    page.publish(ClockStatus::Synchronized);
    let socket = UdpServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.address();
    let config = NtpConfig { rate_interval: Duration::ZERO, ..NtpConfig::default() };
    let mut server = Server::new(config, 1).unwrap();
    let (protector, keys) = nts.protector().unwrap();
    server.serve_nts(protector);
    let serving = page.serving(socket, server, Some(keys));
    let counts = Arc::new(Counts::default());
    let (tell, told) = sync_channel(1);
    tell.send(Told { facts: facts(), timelines: Vec::new() }).unwrap();
    let shared = Arc::clone(&counts);
    let thread = std::thread::spawn(move || serving.run(&told, &shared, &ClientList::default()));

    let mut association = Association::new(NtsConfig::default()).unwrap();
    association.established(Duration::ZERO, bench.establish());
    let config = ClientConfig { interleaved: true, precise: true, ..ClientConfig::default() };
    let mut client = Client::new(config, Duration::ZERO).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(StdDuration::from_secs(10))).unwrap();
    let near = Time::from_unix_nanos(i128::from(TAI) * 1_000_000_000);
    let (mut now, mut exchanges) = (Duration::ZERO, Vec::new());
    for n in 1..=12u8 {
        now = now.max(client.poll_at());
        let cookie = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let request = client.on_timer(now, cookie).unwrap();
        client.sent(request.id);
        let random = Random { identifier: [n; 32], nonce: [n; 16] };
        let sealed = association.seal(&request.bytes, &random).expect("a cookie");
        socket.send(&sealed).unwrap();
        let mut buffer = [0; 1452];
        let len = socket.recv(&mut buffer).unwrap();
        assert!(len <= sealed.len());
        let plain = association.open(&buffer[..len]).unwrap();
        let outcome = client.on_datagram(now, &plain, near, |id| (id, id + 1));
        if let Outcome::Exchange(exchange) = outcome {
            exchanges.push(exchange.response);
        }
    }
    drop(tell);
    thread.join().unwrap();
    assert!(exchanges.len() >= 8, "{exchanges:?}");
    assert!(exchanges.iter().all(|response| response.precise.is_some()), "{exchanges:?}");
    assert!(exchanges.iter().filter(|x| x.is_interleaved()).count() >= 4, "{exchanges:?}");
    let count = |tally: Tally| counts[tally as usize].load(Ordering::Relaxed);
    assert_eq!((count(Tally::Nts), count(Tally::Answered), count(Tally::NtsNak)), (12, 12, 0));
}

/// Two servers that prove to be the same party are one witness; another party is another one.
#[test]
fn references_whose_keys_came_with_one_certificate_are_one_witness() {
    let (one, other) = (Bench::at(&["127.0.0.1", "127.0.0.2"]), Bench::at(&["127.0.0.3"]));
    let _threads = [one.start(), other.start()];
    let table = |bench: &Bench, ke: usize| {
        let at = bench.config.nts_ke_listen[ke];
        let authority = bench.folder.path().join("crt");
        format!(
            "[[reference]]\ntype = \"ntp\"\naddress = \"{}\"\nnts = true\nnts_ke_port = {}\nca_file = {authority:?}\n",
            at.ip(),
            at.port()
        )
    };
    let text = [table(&one, 0), table(&other, 0), table(&one, 1)].concat();
    let (host, mut now) = (Host::new(), Duration::from_secs(100));
    let mut all = Reference::all(&Config::parse(&text).unwrap().references, now).unwrap();
    assert_eq!(Reference::witnesses(&all), [0, 1, 2], "before anybody has proved anything");
    for reference in &mut all {
        until("the reference has keys", || {
            now = now.max(reference.poll_at());
            reference.on_timer(now, &host.around());
            reference.details(now).nts.is_some_and(|nts| nts.established == 1)
        });
    }
    assert_eq!(Reference::witnesses(&all), [0, 1, 0]);
}
