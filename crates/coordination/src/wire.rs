//! How messages are encoded: little-endian, lengths first, one kind byte.
//!
//! | bytes | field of the envelope |
//! | --- | --- |
//! | 1 | version, 1 |
//! | 1 + n | the sender's name |
//! | 8 | its incarnation |
//! | 8 | sequence |
//! | 1 | 1 if stamped, else 0 and the next three are absent |
//! | 16, 16 | earliest and latest, in 2^-64 s since the timeline's epoch |
//! | 8 | origin |
//! | 1 | kind of the message, then its fields in the order of [`Message`] |
//!
//! A message with bytes left over, a bad name, an interval that is empty or participants out of
//! order is refused.

use timevisor_protocols::bytes::{BytesError, Reader, Writer};
use timevisor_time::{Duration, Instant, Interval, Local};

use crate::clock::Stamp;
use crate::message::{Envelope, MemberId, Message, Proposal, ProposalId, Report, Why};
use crate::{InvalidName, Name};

/// The longest payload of an application, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// The most participants of a proposal.
pub const MAX_PARTICIPANTS: usize = 4096;

const VERSION: u8 = 1;

/// Bytes that are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// A field that is none.
    #[error("not a message: {0}")]
    Bytes(#[from] BytesError),
    /// Of a later version.
    #[error("version {0} of the format is not known here")]
    Version(u8),
    /// A name that cannot be one.
    #[error("not a message: {0}")]
    Name(#[from] InvalidName),
    /// An interval that ends before it begins.
    #[error("an interval is empty")]
    Empty,
    /// Participants are not in ascending order.
    #[error("participants are not in order")]
    Order,
}

impl Envelope {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(vec![VERSION]);
        out.member(self.from);
        out.u64(self.sequence);
        out.byte(u8::from(self.stamp.is_some()));
        if let Some(Stamp { interval, origin }) = self.stamp {
            out.interval(interval);
            out.u64(origin);
        }
        out.message(&self.message);
        out.0
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are not an envelope.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let sender = sender(&mut from)?;
        let sequence = from.u64()?;
        let stamp = if from.flag()? {
            Some(Stamp { interval: from.interval()?, origin: from.u64()? })
        } else {
            None
        };
        let envelope = Self { from: sender, sequence, stamp, message: from.message()? };
        from.end()?;
        Ok(envelope)
    }

    /// Who sent these bytes; the rest is not looked at.
    ///
    /// # Errors
    /// When they do not begin like an envelope.
    pub fn sender(bytes: &[u8]) -> Result<MemberId, WireError> {
        sender(&mut Reader(bytes))
    }
}

fn sender(from: &mut Reader<'_>) -> Result<MemberId, WireError> {
    match from.byte()? {
        VERSION => from.member(),
        other => Err(WireError::Version(other)),
    }
}

/// Fields of messages.
trait Write {
    fn instant(&mut self, at: Instant<Local>);
    fn interval(&mut self, interval: Interval<Local>);
    fn name(&mut self, name: Name);
    fn member(&mut self, member: MemberId);
    fn id(&mut self, id: ProposalId);
    fn message(&mut self, message: &Message);
    fn proposal(&mut self, proposal: &Proposal);
    fn report(&mut self, report: &Report);
}

impl Write for Writer {
    /// Exact, so that a time that comes back equals the one that was sent.
    fn instant(&mut self, at: Instant<Local>) {
        self.i128(at.to_bits());
    }

    fn interval(&mut self, interval: Interval<Local>) {
        self.instant(interval.earliest());
        self.instant(interval.latest());
    }

    fn name(&mut self, name: Name) {
        self.short_text(name.as_str());
    }

    fn member(&mut self, member: MemberId) {
        self.name(member.name);
        self.u64(member.incarnation);
    }

    fn id(&mut self, id: ProposalId) {
        self.member(id.proposer);
        self.u64(id.number);
    }

    fn message(&mut self, message: &Message) {
        match message {
            Message::Publication { topic, payload } => {
                self.byte(1);
                self.name(*topic);
                self.bytes(payload);
            }
            Message::Tick => self.byte(2),
            Message::WantTicks { every } => {
                self.byte(12);
                self.i128(every.to_bits());
            }
            Message::Propose(proposal) => {
                self.byte(3);
                self.proposal(proposal);
            }
            Message::Vote { id, accepts, attempt } => {
                self.byte(4);
                self.id(*id);
                self.byte(u8::from(*accepts));
                self.u32(*attempt);
            }
            Message::Decide { id, commits } => {
                self.byte(5);
                self.id(*id);
                self.byte(u8::from(*commits));
            }
            Message::Report { id, report } => {
                self.byte(6);
                self.id(*id);
                self.report(report);
            }
            Message::Ask { id } => {
                self.byte(7);
                self.id(*id);
            }
            Message::Arrive { barrier, round, parties } => {
                self.byte(8);
                self.name(*barrier);
                self.u64(*round);
                self.u32(*parties);
            }
            Message::Claim { office, until } => {
                self.byte(9);
                self.name(*office);
                self.instant(*until);
            }
            Message::Grant { office, until, taken_until } => {
                self.byte(10);
                self.name(*office);
                self.instant(*until);
                self.byte(u8::from(taken_until.is_some()));
                if let Some(taken) = taken_until {
                    self.instant(*taken);
                }
            }
            Message::Release { office, until } => {
                self.byte(11);
                self.name(*office);
                self.instant(*until);
            }
        }
    }

    fn proposal(&mut self, proposal: &Proposal) {
        self.id(proposal.id);
        self.instant(proposal.at);
        self.u64(proposal.origin);
        self.instant(proposal.decide_by);
        self.i128(proposal.late_at_most.to_bits());
        self.count(proposal.participants.len());
        proposal.participants.iter().for_each(|member| self.member(*member));
        self.bytes(&proposal.payload);
    }

    fn report(&mut self, report: &Report) {
        match report {
            Report::Fired(interval) => {
                self.byte(0);
                self.interval(*interval);
            }
            Report::Quiet(why) => self.byte(match why {
                Why::Rejected => 1,
                Why::Aborted => 2,
                Why::Undecided => 3,
                Why::Late => 4,
                Why::Clock => 5,
            }),
        }
    }
}

/// The same, taken off the front.
trait Read {
    fn instant(&mut self) -> Result<Instant<Local>, WireError>;
    fn interval(&mut self) -> Result<Interval<Local>, WireError>;
    fn name(&mut self) -> Result<Name, WireError>;
    fn member(&mut self) -> Result<MemberId, WireError>;
    fn id(&mut self) -> Result<ProposalId, WireError>;
    fn message(&mut self) -> Result<Message, WireError>;
    fn proposal(&mut self) -> Result<Proposal, WireError>;
    fn report(&mut self) -> Result<Report, WireError>;
}

impl Read for Reader<'_> {
    fn instant(&mut self) -> Result<Instant<Local>, WireError> {
        Ok(Instant::from_bits(self.i128()?))
    }

    fn interval(&mut self) -> Result<Interval<Local>, WireError> {
        let (earliest, latest) = (self.instant()?, self.instant()?);
        Interval::new(earliest, latest).ok_or(WireError::Empty)
    }

    fn name(&mut self) -> Result<Name, WireError> {
        Ok(self.short_text()?.parse()?)
    }

    fn member(&mut self) -> Result<MemberId, WireError> {
        Ok(MemberId { name: self.name()?, incarnation: self.u64()? })
    }

    fn id(&mut self) -> Result<ProposalId, WireError> {
        Ok(ProposalId { proposer: self.member()?, number: self.u64()? })
    }

    fn message(&mut self) -> Result<Message, WireError> {
        Ok(match self.byte()? {
            1 => Message::Publication {
                topic: self.name()?,
                payload: self.bytes(MAX_PAYLOAD)?.to_vec(),
            },
            2 => Message::Tick,
            3 => Message::Propose(Box::new(self.proposal()?)),
            4 => Message::Vote { id: self.id()?, accepts: self.flag()?, attempt: self.u32()? },
            5 => Message::Decide { id: self.id()?, commits: self.flag()? },
            6 => Message::Report { id: self.id()?, report: self.report()? },
            7 => Message::Ask { id: self.id()? },
            8 => {
                Message::Arrive { barrier: self.name()?, round: self.u64()?, parties: self.u32()? }
            }
            9 => Message::Claim { office: self.name()?, until: self.instant()? },
            10 => {
                let (office, until) = (self.name()?, self.instant()?);
                let taken_until = if self.flag()? { Some(self.instant()?) } else { None };
                Message::Grant { office, until, taken_until }
            }
            11 => Message::Release { office: self.name()?, until: self.instant()? },
            12 => Message::WantTicks { every: Duration::from_bits(self.i128()?) },
            other => return Err(BytesError::Value(other).into()),
        })
    }

    fn proposal(&mut self) -> Result<Proposal, WireError> {
        let (id, at, origin) = (self.id()?, self.instant()?, self.u64()?);
        let decide_by = self.instant()?;
        let late_at_most = Duration::from_bits(self.i128()?);
        let count = self.count(MAX_PARTICIPANTS)?;
        let participants = (0..count).map(|_| self.member()).collect::<Result<Vec<_>, _>>()?;
        if !participants.is_sorted_by(|a, b| a < b) {
            return Err(WireError::Order);
        }
        let payload = self.bytes(MAX_PAYLOAD)?.to_vec();
        Ok(Proposal { id, at, origin, decide_by, late_at_most, participants, payload })
    }

    fn report(&mut self) -> Result<Report, WireError> {
        Ok(match self.byte()? {
            0 => Report::Fired(self.interval()?),
            1 => Report::Quiet(Why::Rejected),
            2 => Report::Quiet(Why::Aborted),
            3 => Report::Quiet(Why::Undecided),
            4 => Report::Quiet(Why::Late),
            5 => Report::Quiet(Why::Clock),
            other => return Err(BytesError::Value(other).into()),
        })
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
