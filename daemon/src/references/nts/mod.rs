//! NTS for an NTP reference: keys from the key establishment server, and authentication of every
//! packet.
//!
//! | file | owns |
//! | --- | --- |
//! | `mod.rs` | when keys are fetched, and what `timevisor status` says about them |
//! | `connection.rs` | one key establishment over TCP, in separate threads |
//!
//! crates/protocols implements the whole protocol. Keys and cookies are kept only in memory and are
//! never logged.

mod connection;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow};
use timevisor_protocols::control::{NtsData, Reference as Report};
use timevisor_protocols::nts::{
    Association, CertificateTime, Config, KeyError, Opened, Opening, Random, Refusal, Status,
};
use timevisor_time::Duration;

use self::connection::{Keys, establish};
use super::background::{Background, Died};
use super::resolver;
use crate::config::NtsServer;

/// How often to check for the thread's result.
const ASKING: Duration = Duration::from_millis(50);
/// So many certificates of a server are remembered: keys hold for days, certificates for weeks.
const KEPT_CERTIFICATES: usize = 4;
/// How often to check whether the time is known well enough now for a certificate that the time
/// excluded.
const LOOKING_AGAIN: Duration = Duration::from_secs(2);

/// Whether the next request can be authenticated.
pub enum Progress {
    Ready,
    /// Not before `again`, for this reason.
    Waiting {
        problem: String,
        again: Duration,
    },
}

/// One key establishment; it blocks.
type Establish = fn(&NtsServer, Duration, CertificateTime) -> Result<Keys>;

pub struct Nts {
    name: String,
    server: NtsServer,
    association: Association,
    establish: Establish,
    /// The key establishment that is in progress.
    running: Background<Result<Keys>>,
    /// The server for which the keys are valid.
    peer: Option<SocketAddr>,
    /// The certificates with which the last keys came, DER, the newest last.
    certificates: VecDeque<Vec<u8>>,
    /// Why the last key establishment failed.
    failed: Option<String>,
    /// The defect of the certificate, if the time was the reason.
    untimely: Option<KeyError>,
    told: BTreeSet<Refusal>,
}

impl Nts {
    pub fn new(name: &str, server: NtsServer) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            server,
            association: Association::new(Config::default())?,
            establish,
            running: Background::default(),
            peer: None,
            certificates: VecDeque::new(),
            failed: None,
            untimely: None,
            told: BTreeSet::new(),
        })
    }

    /// Fetches keys if there are none; call it when a request is due. Certificates are judged at
    /// `time`.
    pub fn poll(&mut self, now: Duration, time: CertificateTime) -> Progress {
        match self.running.answer() {
            Some(Ok(Ok(keys))) => self.established(now, keys),
            Some(Ok(Err(error))) => self.fail(&error),
            Some(Err(Died)) => {
                self.fail(&anyhow!("the key establishment's thread ended without a result"));
            }
            None if self.running.abandon_after(self.patience(), now) => self.fail(&self.hanging()),
            None if self.running.is_running() => return self.waiting(now + ASKING),
            None => {}
        }
        if !self.association.needs_keys() {
            return Progress::Ready;
        }
        let next = self.association.exchange_at();
        let overcome = self.untimely.as_ref().map(|error| error.is_overcome_by(&time));
        if now < next && overcome != Some(true) {
            let look = if overcome.is_some() { now + LOOKING_AGAIN } else { next };
            return self.waiting(next.min(look));
        }
        self.untimely = None;
        self.association.exchange_began(now);
        match self.begin(now, time) {
            Ok(()) => self.waiting(now + ASKING),
            Err(error) => {
                self.fail(&error);
                self.waiting(self.association.exchange_at())
            }
        }
    }

    /// Starts a thread: name servers and key establishment servers may not respond for seconds,
    /// which must not block the daemon.
    fn begin(&mut self, now: Duration, time: CertificateTime) -> Result<()> {
        let (establish, server) = (self.establish, self.server.clone());
        let timeout = self.association.config().exchange_timeout;
        let work = move || establish(&server, timeout, time);
        let begun = self.running.begin("nts-ke", now, work);
        if begun.context("cannot start the key establishment's thread")? {
            Ok(())
        } else {
            Err(self.hanging())
        }
    }

    /// How long a key establishment may take: the exchange has a deadline, and each of its two
    /// look-ups (the server, and the NTP server that it names) a patience.
    fn patience(&self) -> Duration {
        self.association.config().exchange_timeout + resolver::PATIENCE + resolver::PATIENCE
    }

    fn hanging(&self) -> anyhow::Error {
        anyhow!(
            "look-ups of {} do not end; check the name services in /etc/nsswitch.conf",
            self.server.host
        )
    }

    /// Where to send requests, once there are keys.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The certificates of the parties that the last keys came from, DER. Of those that a server has
    /// renewed, others may still hold the former one.
    pub fn certificates(&self) -> impl Iterator<Item = &[u8]> {
        self.certificates.iter().map(Vec::as_slice)
    }

    /// The datagram for a request; `None` if keys are needed first.
    pub fn seal(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let mut random = Random { identifier: [0; 32], nonce: [0; 16] };
        // Without randomness there is no authentication, so no request is sent.
        getrandom::fill(&mut random.identifier).ok()?;
        getrandom::fill(&mut random.nonce).ok()?;
        self.association.seal(request, &random)
    }

    /// What it takes to open an answer, anywhere.
    pub fn opening(&self) -> Opening {
        self.association.opening()
    }

    /// Takes the cookies of an opened answer, and passes on what came with it. `None` if the answer
    /// is not authentic.
    pub fn opened<T>(&mut self, opened: Result<(Opened, T), Refusal>) -> Option<T> {
        let (opened, with) = match opened {
            Ok((opened, with)) => (Ok(opened), Some(with)),
            Err(refusal) => (Err(refusal), None),
        };
        match self.association.opened(opened) {
            Ok(_) => with,
            Err(refusal) => {
                // Each reason is logged once per set of keys: an attacker must not fill the log.
                if self.told.insert(refusal) {
                    tracing::warn!("reference {}: a packet is refused: {refusal}", self.name);
                }
                None
            }
        }
    }

    /// Adds the state of NTS to the reference's report.
    pub fn report(&self, now: Duration, report: &mut Report) {
        "nts".clone_into(&mut report.kind);
        for reason in Refusal::ALL {
            let count = self.association.counters().refused_for(reason);
            if count > 0 {
                report.rejected.insert(reason.name().to_owned(), count);
            }
        }
        let status = self.association.status(now);
        match status {
            Status::Authenticated { .. } | Status::Keyed { .. } | Status::Refused { .. } => {
                report.detail = format!("{}; {}", report.detail, status.describe());
            }
            // The first attempt is under way.
            Status::NoKeys if self.failed.is_none() => {
                "probing".clone_into(&mut report.status);
                report.detail = self.trouble(now);
            }
            Status::NoKeys | Status::NoCookies | Status::Nak => {
                status.name().clone_into(&mut report.status);
                report.detail = self.trouble(now);
            }
        }
    }

    /// Everything about the keys, for `timevisor sources NAME`.
    pub fn details(&self, now: Duration) -> NtsData {
        let counters = self.association.counters();
        let keyed_at = self.association.keyed_at();
        let refused = counters.refused.iter();
        NtsData {
            server: self.server.to_string(),
            algorithm: keyed_at.map(|_| "AEAD_AES_SIV_CMAC_256".to_owned()),
            cookies: self.association.cookies() as u64,
            established_s: keyed_at.map(|at| (now - at).as_secs_f64()),
            exchanges: counters.exchanges,
            established: counters.established,
            authenticated: counters.authenticated,
            refused: refused.map(|(why, count)| (why.name().to_owned(), *count)).collect(),
        }
    }

    fn established(&mut self, now: Duration, keys: Keys) {
        tracing::info!(
            "reference {}: NTS keys and {} cookies from {}; NTP at {}",
            self.name,
            keys.established.answer.cookies.len(),
            self.server,
            keys.peer
        );
        self.peer = Some(keys.peer);
        if self.certificates.back() != Some(&keys.certificate) {
            self.certificates.push_back(keys.certificate);
        }
        if self.certificates.len() > KEPT_CERTIFICATES {
            self.certificates.pop_front();
        }
        self.failed = None;
        self.told.clear();
        self.association.established(now, keys.established);
    }

    fn fail(&mut self, error: &anyhow::Error) {
        let problem = format!("{error:#}");
        tracing::debug!("reference {}: no NTS keys: {problem}", self.name);
        let known = error.downcast_ref::<KeyError>();
        self.untimely = known.filter(|error| error.depends_on_time()).cloned();
        self.failed = Some(problem);
    }

    fn waiting(&self, again: Duration) -> Progress {
        Progress::Waiting { problem: self.association.status(again).describe(), again }
    }

    /// Why there are no usable keys, and what happens next.
    fn trouble(&self, now: Duration) -> String {
        let why = match &self.failed {
            Some(problem) => problem.clone(),
            None => self.association.status(now).describe(),
        };
        if self.running.is_running() {
            return format!("{why}; asking {} for keys", self.server);
        }
        let wait = (self.association.exchange_at() - now).max(Duration::ZERO);
        format!("{why}; next attempt at {} in {wait}", self.server)
    }
}

#[cfg(test)]
mod tests {
    use timevisor_protocols::nts::date::UnixSeconds;
    use timevisor_time::{Instant, Interval};

    use super::*;

    fn time() -> CertificateTime {
        CertificateTime::of_machine(Instant::from_unix_nanos(5_000_000_000))
    }

    #[test]
    fn a_certificate_that_the_time_excluded_is_asked_for_again_when_the_time_is_known() {
        let server = NtsServer::new("127.0.0.1", 9, None);
        let mut nts = Nts::new("a", server).unwrap();
        let not_before = UnixSeconds(1_795_000_000);
        nts.association.exchange_began(Duration::ZERO);
        let early = KeyError::NotYetValid { not_before, time: time() };
        nts.fail(&anyhow::Error::from(early).context("127.0.0.1"));
        let now = Duration::from_secs(1);
        let Progress::Waiting { again, .. } = nts.poll(now, time()) else { panic!("keys?") };
        assert_eq!((again, nts.running.is_running()), (now + LOOKING_AGAIN, false));
        // Known, but only to within years.
        let at = |secs: i128| Instant::from_unix_nanos(secs * 1_000_000_000);
        let ours = |earliest, latest| {
            CertificateTime::ours(Interval::new(at(earliest), at(latest)).unwrap())
        };
        nts.poll(now, ours(1_794_000_000, 1_796_000_000));
        assert!(!nts.running.is_running());
        nts.poll(now, ours(1_795_000_001, 1_795_000_002));
        assert!(nts.running.is_running(), "long before the next attempt at 10 s");
        // The attempt is one like any other: another failure waits as long as ever.
        assert_eq!(nts.association.exchange_at(), now + Duration::from_secs(15));
    }

    /// Polls like the event loop until the thread's result has arrived.
    fn settled(nts: &mut Nts, now: Duration) -> Progress {
        loop {
            let progress = nts.poll(now, time());
            if !nts.running.is_running() {
                return progress;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn failures_are_told_with_the_next_attempt_and_repeated_ever_more_rarely() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let authority =
            concat!(env!("CARGO_MANIFEST_DIR"), "/src/references/nts/test_authority.pem");
        let server = NtsServer::new("127.0.0.1", closed.port(), Some(authority.into()));
        let mut nts = Nts::new("a", server).unwrap();
        let mut now = Duration::ZERO;
        for wait in ["10.000", "15.000", "22.500"] {
            assert!(
                matches!(nts.poll(now, time()), Progress::Waiting { .. })
                    && nts.running.is_running()
            );
            let Progress::Waiting { again, .. } = settled(&mut nts, now) else { panic!("keys?") };
            let told = nts.trouble(now);
            assert!(told.contains("cannot connect to 127.0.0.1"), "{told}");
            assert!(told.ends_with(&format!("next attempt at {closed} in {wait} s")), "{told}");
            assert_eq!(nts.seal(&[0; 48]), None);
            // Not a moment earlier.
            assert!(matches!(
                nts.poll(again - Duration::EPSILON, time()),
                Progress::Waiting { .. }
            ));
            assert!(!nts.running.is_running());
            now = again;
        }
    }

    #[test]
    fn a_key_establishment_that_hangs_is_tried_again_by_a_few_threads() {
        fn hangs(_: &NtsServer, _: Duration, _: CertificateTime) -> Result<Keys> {
            loop {
                std::thread::park();
            }
        }
        let server = NtsServer::new("name.invalid", 4460, None);
        let mut nts = Nts { establish: hangs, ..Nts::new("a", server).unwrap() };
        let mut poll = |now| {
            let Progress::Waiting { again, .. } = nts.poll(now, time()) else { panic!("keys?") };
            let tries = nts.association.counters().exchanges;
            (nts.running.is_running(), tries, again, nts.trouble(now))
        };
        let start = Duration::from_secs(100);
        let patience = Duration::from_secs(120) + Config::default().exchange_timeout;
        let (running, tries, ..) = poll(start);
        assert_eq!((running, tries), (true, 1));
        let (running, tries, again, _) = poll(start + patience - Duration::EPSILON);
        assert_eq!((running, tries), (true, 1));
        assert_eq!(again, start + patience - Duration::EPSILON + ASKING);
        let (running, tries, _, told) = poll(start + patience);
        assert_eq!((running, tries), (true, 2));
        assert!(told.contains("look-ups of name.invalid do not end"), "{told}");
        // Both hang: no third thread, and the next attempt is not at once.
        let now = start + patience + patience;
        let (running, tries, again, told) = poll(now);
        assert_eq!((running, tries), (false, 3));
        assert!(again > now + Duration::from_secs(5), "{again}");
        assert!(told.contains("do not end") && told.contains("next attempt"), "{told}");
    }
}
