//! One round of requests: all five data sets, with one sequence number.
//!
//! The five replies are from slightly different moments; if ptp4l changes its master in between,
//! the next round shows it. What it does not do: time out. The caller starts a new round, and
//! stragglers of the old one are refused.

use super::datasets::{DataSet, PortState, State, decode};
use super::management::{Id, MessageError, REQUEST_LEN, get, parse};

/// Replies so far.
#[derive(Clone, Debug)]
pub struct Query {
    domain: u8,
    transport_specific: u8,
    sequence: u16,
    port: Option<PortState>,
    current: Option<DataSet>,
    parent: Option<DataSet>,
    time_properties: Option<DataSet>,
    time_status: Option<DataSet>,
}

impl Query {
    /// A query without requests yet; `domain` and `transport_specific` as in ptp4l's configuration.
    #[must_use]
    pub const fn new(domain: u8, transport_specific: u8) -> Self {
        Self {
            domain,
            transport_specific,
            sequence: 0,
            port: None,
            current: None,
            parent: None,
            time_properties: None,
            time_status: None,
        }
    }

    /// Forgets earlier replies and returns the datagrams to send. TIME_STATUS_NP is the last, so
    /// that the offset is the freshest of all.
    pub fn begin(&mut self) -> [[u8; REQUEST_LEN]; 5] {
        let sequence = self.sequence.wrapping_add(1);
        *self = Self { sequence, ..Self::new(self.domain, self.transport_specific) };
        Id::ALL.map(|id| get(id, self.domain, self.transport_specific, sequence))
    }

    /// Processes a datagram; returns the state once all five data sets are available.
    ///
    /// # Errors
    /// When it is not a reply of this round.
    pub fn on_datagram(&mut self, bytes: &[u8]) -> Result<Option<State>, MessageError> {
        let message = parse(bytes)?;
        if message.sequence != self.sequence {
            return Err(MessageError::NotForUs);
        }
        let data = decode(&message)?;
        match data {
            // Every port answers; the one that follows a master decides.
            DataSet::Port(state) => {
                if self.port.is_none_or(|known| !known.follows()) {
                    self.port = Some(state);
                }
            }
            DataSet::Current(..) => self.current = Some(data),
            DataSet::Parent(..) => self.parent = Some(data),
            DataSet::TimeProperties(..) => self.time_properties = Some(data),
            DataSet::TimeStatus(..) => self.time_status = Some(data),
        }
        Ok(self.complete())
    }

    fn complete(&self) -> Option<State> {
        let (
            port,
            DataSet::Current(steps_removed, mean_path_delay),
            DataSet::Parent(grandmaster_class, grandmaster_accuracy),
            DataSet::TimeProperties(utc_offset, ptp_timescale),
            DataSet::TimeStatus(master_offset_ns, ingress_ns, grandmaster_present),
        ) = (self.port?, self.current?, self.parent?, self.time_properties?, self.time_status?)
        else {
            return None;
        };
        Some(State {
            port,
            steps_removed,
            mean_path_delay,
            grandmaster_accuracy,
            grandmaster_class,
            utc_offset,
            ptp_timescale,
            master_offset_ns,
            ingress_ns,
            grandmaster_present,
        })
    }
}
