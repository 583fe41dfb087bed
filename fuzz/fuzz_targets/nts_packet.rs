//! An NTS association under arbitrary, damaged and authentic datagrams: exactly what was sealed
//! with the server's key for the request in flight is opened, once, and a request is authentic in
//! the server's eyes.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, edited, some_bytes};
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::precise::Reply;
use timevisor_protocols::nts::aead::Key;
use timevisor_protocols::nts::field::{
    AUTHENTICATOR, Authenticator, COOKIE, COOKIE_PLACEHOLDER, UNIQUE_IDENTIFIER, split_all, write,
};
use timevisor_protocols::nts::negotiation::Answer;
use timevisor_protocols::nts::{Association, Config, Established, Random, Refusal};
use timevisor_time::Duration;

fuzz_target!(|data: &[u8]| decode(data, run));

fn run(u: &mut Unstructured) -> Result<()> {
    let mut world = World {
        association: Association::new(Config::default()).expect("the default is valid"),
        requests: 0,
        awaited: None,
    };
    world.establish(u)?;
    while !u.is_empty() {
        world.step(u)?;
    }
    Ok(())
}

fn client_to_server() -> Key {
    Key::new([1; 32].into())
}

fn server_to_client() -> Key {
    Key::new([2; 32].into())
}

struct World {
    association: Association,
    requests: u8,
    /// The identifier of the request in flight.
    awaited: Option<[u8; 32]>,
}

impl World {
    fn establish(&mut self, u: &mut Unstructured) -> Result<()> {
        let mut cookies = Vec::new();
        for _ in 0..u.int_in_range(1..=8)? {
            cookies.push(vec![u.arbitrary()?; u.int_in_range(1..=1100)?]);
        }
        let answer = Answer { cookies, ntp_server: None, ntp_port: None };
        let (client_to_server, server_to_client) = (client_to_server(), server_to_client());
        let established = Established { client_to_server, server_to_client, answer };
        self.association.established(Duration::ZERO, established);
        self.awaited = None;
        Ok(())
    }

    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        match u.int_in_range(0..=7)? {
            0 => self.establish(u)?,
            1 | 2 => self.ask(u.arbitrary()?),
            3 => {
                let datagram = some_bytes(u)?;
                self.open(datagram, false);
            }
            4 => {
                let datagram = self.not_sealed(u)?;
                self.open(&datagram, false);
            }
            _ => {
                let (mut sealed, mut authentic) = self.sealed(u)?;
                if u.ratio(1, 8)? {
                    // Nothing protects what follows the authenticator.
                    write(&mut sealed, *u.choose(&[COOKIE, 0x2005])?, some_bytes(u)?);
                    authentic = false;
                }
                let damaged = edited(u, &sealed)?;
                self.open(&damaged, authentic && damaged == sealed);
                // One answer per request: once opened it is not awaited any more.
                self.open(&sealed, authentic && self.awaited.is_some());
            }
        }
        Ok(())
    }

    fn ask(&mut self, header: [u8; HEADER_LEN]) {
        self.requests = self.requests.wrapping_add(1);
        let random = Random { identifier: [self.requests; 32], nonce: [!self.requests; 16] };
        let ready = !self.association.needs_keys();
        let request = self.association.seal(&header, &random);
        assert_eq!(request.is_some(), ready);
        let Some(request) = request else { return };
        self.awaited = Some(random.identifier);
        check_request(&request, &header, &random, self.association.config().max_request);
    }

    fn open(&mut self, datagram: &[u8], authentic: bool) {
        let had_keys = !self.association.needs_keys();
        let opened = self.association.open(datagram);
        assert_eq!(opened.is_ok(), authentic, "{opened:?}");
        match opened {
            Ok(header) => {
                assert_eq!(header[..HEADER_LEN], datagram[..HEADER_LEN]);
                // Nothing follows but fields of ours.
                let fields = split_all(&header[HEADER_LEN..]).expect("fields only");
                assert!(fields.iter().all(|field| Reply::parse(field).is_some()));
                self.awaited = None;
            }
            // Only a NAK may have an effect, and only one that names the request in flight.
            Err(Refusal::Nak) => assert!(self.names_request(datagram)),
            Err(_) => assert_eq!(!self.association.needs_keys(), had_keys),
        }
        assert!(!self.association.status(Duration::ZERO).describe().is_empty());
    }

    fn names_request(&self, datagram: &[u8]) -> bool {
        let fields = split_all(&datagram[HEADER_LEN..]).unwrap_or_default();
        let named =
            |id: [u8; 32]| fields.iter().any(|f| f.kind == UNIQUE_IDENTIFIER && f.body == id);
        self.awaited.is_some_and(named)
    }

    /// A packet with well-formed fields, among them perhaps the right identifier, and no
    /// authenticator.
    fn not_sealed(&self, u: &mut Unstructured) -> Result<Vec<u8>> {
        let mut header: [u8; HEADER_LEN] = u.arbitrary()?;
        if u.arbitrary()? {
            header[0] = 0xe4;
            header[1] = 0;
            header[12..16].copy_from_slice(b"NTSN");
        }
        let mut packet = header.to_vec();
        self.write_fields(u, &mut packet)?;
        Ok(packet)
    }

    /// Fields of any kind but the authenticator's; whether exactly one was the right identifier.
    fn write_fields(&self, u: &mut Unstructured, packet: &mut Vec<u8>) -> Result<bool> {
        let (mut identifiers, mut right) = (0, 0);
        for _ in 0..u.int_in_range(0..=4)? {
            match u.int_in_range(0..=3)? {
                0 => write(packet, COOKIE, some_bytes(u)?),
                1 => write(packet, 0x2005, some_bytes(u)?),
                2 => {
                    write(packet, UNIQUE_IDENTIFIER, some_bytes(u)?);
                    identifiers += 1;
                }
                _ => {
                    let identifier = self.awaited.unwrap_or([0; 32]);
                    write(packet, UNIQUE_IDENTIFIER, &identifier);
                    identifiers += 1;
                    right += 1;
                }
            }
        }
        Ok(identifiers == 1 && right == 1 && self.awaited.is_some())
    }

    /// A packet that the server's key has sealed, and whether it is a valid answer.
    fn sealed(&self, u: &mut Unstructured) -> Result<(Vec<u8>, bool)> {
        let mut packet = u.arbitrary::<[u8; HEADER_LEN]>()?.to_vec();
        let named = self.write_fields(u, &mut packet)?;
        let mut plain = Vec::new();
        if u.arbitrary()? {
            plain.extend(some_bytes(u)?);
        } else {
            for _ in 0..u.int_in_range(0..=9)? {
                write(&mut plain, COOKIE, some_bytes(u)?);
            }
        }
        let nonce = vec![u.arbitrary()?; u.int_in_range(1..=40)?];
        let sealed = server_to_client().seal(&nonce, &packet, &plain).expect("two strings");
        let mut body = Vec::new();
        for part in [&nonce, &sealed] {
            body.extend(u16::try_from(part.len()).expect("it is short").to_be_bytes());
        }
        for part in [&nonce, &sealed] {
            body.extend(part);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        write(&mut packet, AUTHENTICATOR, &body);
        Ok((packet, named && split_all(&plain).is_some()))
    }
}

/// What RFC 8915 section 5.7 asks of a request, by a server's judgement.
fn check_request(request: &[u8], header: &[u8; HEADER_LEN], random: &Random, max: usize) {
    assert_eq!(request[..HEADER_LEN], header[..]);
    let fields = split_all(&request[HEADER_LEN..]).expect("fields only");
    let (last, before) = fields.split_last().expect("there are some");
    assert_eq!(last.kind, AUTHENTICATOR);
    let covered = &request[..request.len() - last.body.len() - 4];
    let plain = Authenticator::parse(last.body)
        .and_then(|a| client_to_server().open(a.nonce, covered, a.sealed));
    assert_eq!(plain, Some(vec![]));
    let kinds = |kind| before.iter().filter(move |f| f.kind == kind);
    assert!(kinds(UNIQUE_IDENTIFIER).map(|f| f.body).eq([&random.identifier[..]]));
    assert_eq!(kinds(COOKIE).count(), 1);
    // Placeholders never make a request longer than it may be.
    assert!(request.len() <= max || kinds(COOKIE_PLACEHOLDER).count() == 0);
}
