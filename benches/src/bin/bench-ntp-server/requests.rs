//! The requests of one kind, made before the clock runs: the client must not cost more than the
//! servers. With NTS their keys and cookies are real ones; a server keeps nothing about its clients,
//! so it does the same work for a request that comes again.

use anyhow::{Context, Result, ensure};
use timevisor_cluster::wire::{Query, Random};
use timevisor_linux::clock::realtime;
use timevisor_protocols::ntp::extension::{ExtensionField, Tail};
use timevisor_protocols::ntp::precise::{self, Asker, Member, Name, Reply};
use timevisor_protocols::ntp::{Datagram, NtpTimestamp, Packet};
use timevisor_protocols::nts::Established;
use timevisor_protocols::nts::field::{
    self, AUTHENTICATOR, Authenticator, COOKIE, UNIQUE_IDENTIFIER,
};
use timevisor_protocols::nts::shared::Sealer;

/// How many there are; after the last comes the first again.
const COUNT: u32 = 1024;
/// The longest request: with the field of precise bounds and NTS.
pub(crate) const MAX_LEN: usize = 512;

/// What a client asks for.
#[derive(Clone, Copy)]
pub(crate) struct Kind<'a> {
    pub(crate) precise: bool,
    /// The keys to ask with.
    pub(crate) nts: Option<&'a Established>,
    /// As a member of a cluster.
    pub(crate) cluster: Option<Cluster<'a>>,
}

/// The cluster of which a client is a member.
#[derive(Clone, Copy)]
pub(crate) struct Cluster<'a> {
    pub(crate) name: Name,
    /// If it has a key.
    pub(crate) sealer: Option<&'a Sealer>,
}

pub(crate) struct Requests<'a> {
    kind: Kind<'a>,
    datagrams: Vec<Vec<u8>>,
    /// Of members: what reads the answers.
    queries: Vec<Query>,
    next: usize,
}

impl<'a> Requests<'a> {
    pub(crate) fn new(kind: Kind<'a>) -> Result<Self> {
        let mut queries = Vec::new();
        let mut one = |number| match kind.cluster {
            Some(cluster) => {
                let (query, datagram) = question(cluster, number)?;
                queries.push(query);
                Ok(datagram)
            }
            None => request(kind, number),
        };
        let datagrams = (1..=COUNT).map(&mut one).collect::<Result<Vec<_>>>()?;
        ensure!(datagrams.iter().all(|datagram| datagram.len() <= MAX_LEN), "a long request");
        Ok(Self { kind, datagrams, queries, next: 0 })
    }

    pub(crate) fn next(&mut self) -> &[u8] {
        self.next = (self.next + 1) % self.datagrams.len();
        &self.datagrams[self.next]
    }

    /// Checks that an answer is to one of these requests.
    pub(crate) fn check(&self, answer: &Packet) -> Result<()> {
        let numbers = 1..=u64::from(COUNT);
        ensure!(numbers.contains(&answer.origin.to_bits()), "an answer to nothing: {answer:?}");
        Ok(())
    }

    /// Checks that an answer is authentic if it has to be, and that it is complete. Returns the
    /// field of precise bounds.
    pub(crate) fn check_fields(&self, answer: &[u8], is_ours: bool) -> Result<Option<Reply>> {
        let (packet, tail) = Packet::parse(answer)?;
        let tail = Tail::parse(tail)?;
        let name = self.kind.cluster.map_or(Name::HOST, |cluster| cluster.name);
        let found = Reply::find(&tail.fields, name);
        if self.kind.cluster.is_some() && is_ours {
            // The first has the number 1.
            let number = usize::try_from(packet.origin.to_bits())?;
            let query = number.checked_sub(1).and_then(|at| self.queries.get(at));
            let said = query.context("an answer to nothing")?.read(answer, realtime())?;
            ensure!(said.intervals.is_some(), "no bounds: {said:?}");
        }
        ensure!(found.is_some() == (self.kind.precise && is_ours), "the field: {tail:?}");
        if let Some(session) = self.kind.nts {
            let last = tail.fields.last().filter(|last| last.kind == AUTHENTICATOR);
            let last = last.with_context(|| format!("not authenticated: {tail:?}"))?;
            let covered = &answer[..answer.len() - last.body.len() - 4];
            let opened = Authenticator::parse(last.body)
                .and_then(|a| session.server_to_client.open(a.nonce, covered, a.sealed))
                .context("not authentic")?;
            let inner = field::split_all(&opened).context("no fields inside")?;
            let cookies = inner.iter().filter(|field| field.kind == COOKIE).count();
            ensure!(cookies == 1, "{cookies} cookies");
            let number = u32::try_from(packet.origin.to_bits())?;
            let is_named = tail.fields.iter().any(|field| is_identifier(field, number));
            ensure!(is_named, "another identifier: {tail:?}");
        }
        Ok(found)
    }
}

fn is_identifier(field: &ExtensionField<'_>, number: u32) -> bool {
    field.kind == UNIQUE_IDENTIFIER && field.body == identifier(number)
}

fn identifier(number: u32) -> [u8; 32] {
    let mut identifier = [7; 32];
    identifier[..4].copy_from_slice(&number.to_be_bytes());
    identifier
}

/// What a member of a cluster sends: each number is another member.
fn question(cluster: Cluster<'_>, number: u32) -> Result<(Query, Vec<u8>)> {
    let mut bytes = [9; Random::LEN];
    // The transmit stamp, which the answer's origin repeats, and the nonces.
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&u64::from(number).to_be_bytes());
    }
    let member = Member { asker: Asker::New, port: u16::try_from(number)? };
    Query::made(cluster.name, Some(member), cluster.sealer, &Random(bytes))
        .context("the cipher refuses")
}

fn request(kind: Kind<'_>, number: u32) -> Result<Vec<u8>> {
    let header = Packet::request(NtpTimestamp::from_bits(number.into()), 0);
    let mut plain = Datagram::new(&header);
    if kind.precise {
        precise::Request::HOST.write(&mut plain);
    }
    let mut datagram = plain.to_vec();
    if let Some(session) = kind.nts {
        let cookies = &session.answer.cookies;
        let cookie = &cookies[usize::try_from(number)? % cookies.len()];
        let mut nonce = [9; field::NONCE_LEN];
        nonce[..4].copy_from_slice(&number.to_be_bytes());
        field::write(&mut datagram, UNIQUE_IDENTIFIER, &identifier(number));
        field::write(&mut datagram, COOKIE, cookie);
        field::write_authenticator(&mut datagram, &session.client_to_server, &nonce, &[])
            .context("the cipher refuses")?;
    }
    Ok(datagram)
}
