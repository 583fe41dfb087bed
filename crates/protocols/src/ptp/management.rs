//! Management messages: a GET for one data set, and the RESPONSE to it.
//!
//! Layout (IEEE 1588-2019 clauses 13.3, 15.4 and 15.5): 34 bytes of common header, 10 of target
//! port, hops, action, and one TLV: type, length, management id, data. Requests do not leave the
//! machine: zero boundary hops.

/// Length of a GET.
pub const REQUEST_LEN: usize = 54;

const MESSAGE_TYPE: u8 = 0x0d;
const VERSION: u8 = 2;
const CONTROL_MANAGEMENT: u8 = 4;
const LOG_INTERVAL: u8 = 0x7f;
const ACTION_GET: u8 = 0;
const ACTION_RESPONSE: u8 = 2;
const TLV_MANAGEMENT: u16 = 1;
const TLV_ERROR: u16 = 2;
/// "TVSR": our port identity; ptp4l's own are EUI-64s of network interfaces.
const OUR_IDENTITY: [u8; 8] = *b"\0\0\0\0TVSR";
const OUR_PORT: u16 = 1;

mod at {
    pub const LENGTH: usize = 2;
    pub const DOMAIN: usize = 4;
    pub const SOURCE: usize = 20;
    pub const SEQUENCE: usize = 30;
    pub const CONTROL: usize = 32;
    pub const LOG_INTERVAL: usize = 33;
    pub const TARGET: usize = 34;
    pub const ACTION: usize = 46;
    pub const TLV: usize = 48;
    pub const ID: usize = 52;
    pub const DATA: usize = 54;
}

/// The requested data sets, by managementId.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Id {
    /// CURRENT_DATA_SET: hops to the grandmaster, mean path delay.
    Current = 0x2001,
    /// PARENT_DATA_SET: the grandmaster and its claimed quality.
    Parent = 0x2002,
    /// TIME_PROPERTIES_DATA_SET: the timescale.
    TimeProperties = 0x2003,
    /// PORT_DATA_SET: the state of a port; every port answers.
    Port = 0x2004,
    /// TIME_STATUS_NP: linuxptp's offset and when it was measured.
    TimeStatus = 0xc000,
    /// GRANDMASTER_SETTINGS_NP: linuxptp's own `utc_offset`.
    Settings = 0xc001,
}

impl Id {
    /// In the order in which they are requested: the measurement first, then what it is relative
    /// to. A change between the two replies then shows as a change since the last round, and
    /// [`super::Settling`] waits for a measurement after it.
    pub const ALL: [Self; 6] = [
        Self::TimeStatus,
        Self::Port,
        Self::Parent,
        Self::TimeProperties,
        Self::Settings,
        Self::Current,
    ];

    fn from_u16(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|id| *id as u16 == number)
    }
}

/// Why a datagram is not a response to a GET of ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum MessageError {
    /// Shorter than its own length fields say, or than a management message can be.
    #[error("shorter than it says; check that the socket is ptp4l's")]
    TooShort,
    /// Not PTP version 2 management.
    #[error("not a PTP version 2 management message; check that the socket is ptp4l's")]
    NotManagement,
    /// A management message, but not a response to us.
    #[error("not a response to this program")]
    NotForUs,
    /// A response about something that was not requested.
    #[error("answers something that was not asked")]
    OtherId,
    /// MANAGEMENT_ERROR_STATUS; the number is the managementErrorId (table 109).
    #[error("ptp4l refused with managementErrorId {0:#06x}; use linuxptp 2.0 or newer")]
    Refused(u16),
    /// The data set is shorter than its definition.
    #[error("the data set is shorter than the standard says")]
    ShortData,
}

/// A RESPONSE, its data not yet interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The sequenceId of the request.
    pub sequence: u16,
    /// The data set's id.
    pub id: Id,
    /// The clock that answers.
    pub source: [u8; 8],
    /// The data set.
    pub data: &'a [u8],
}

/// A GET to all ports of the local clock.
#[must_use]
pub fn get(id: Id, domain: u8, transport_specific: u8, sequence: u16) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    bytes[0] = transport_specific << 4 | MESSAGE_TYPE;
    bytes[1] = VERSION;
    put(&mut bytes, at::LENGTH, 54);
    bytes[at::DOMAIN] = domain;
    bytes[at::SOURCE..at::SOURCE + 8].copy_from_slice(&OUR_IDENTITY);
    put(&mut bytes, at::SOURCE + 8, OUR_PORT);
    put(&mut bytes, at::SEQUENCE, sequence);
    bytes[at::CONTROL] = CONTROL_MANAGEMENT;
    bytes[at::LOG_INTERVAL] = LOG_INTERVAL;
    bytes[at::TARGET..at::TARGET + 10].fill(0xff);
    bytes[at::ACTION] = ACTION_GET;
    put(&mut bytes, at::TLV, TLV_MANAGEMENT);
    put(&mut bytes, at::TLV + 2, 2);
    put(&mut bytes, at::ID, id as u16);
    bytes
}

/// Parses a response.
///
/// # Errors
/// When it is not a well-formed response to this program.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, MessageError> {
    if bytes.len() < at::DATA {
        return Err(MessageError::TooShort);
    }
    if bytes[0] & 0x0f != MESSAGE_TYPE || bytes[1] & 0x0f != VERSION {
        return Err(MessageError::NotManagement);
    }
    if usize::from(u16_at(bytes, at::LENGTH)) > bytes.len() {
        return Err(MessageError::TooShort);
    }
    let to_us = bytes[at::TARGET..at::TARGET + 8] == OUR_IDENTITY;
    if bytes[at::ACTION] & 0x0f != ACTION_RESPONSE || !to_us {
        return Err(MessageError::NotForUs);
    }
    let length = usize::from(u16_at(bytes, at::TLV + 2));
    match u16_at(bytes, at::TLV) {
        TLV_MANAGEMENT => {}
        TLV_ERROR => return Err(MessageError::Refused(u16_at(bytes, at::ID))),
        _ => return Err(MessageError::NotForUs),
    }
    let id = Id::from_u16(u16_at(bytes, at::ID)).ok_or(MessageError::OtherId)?;
    let end = at::ID.checked_add(length).filter(|end| *end >= at::DATA);
    let data = end.and_then(|end| bytes.get(at::DATA..end)).ok_or(MessageError::TooShort)?;
    let mut source = [0; 8];
    source.copy_from_slice(&bytes[at::SOURCE..at::SOURCE + 8]);
    Ok(Message { sequence: u16_at(bytes, at::SEQUENCE), id, source, data })
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
#[path = "management_tests.rs"]
mod tests;
