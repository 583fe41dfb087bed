//! One round of requests: all six data sets, with one sequence number.
//!
//! The six replies are from slightly different moments; if ptp4l changes its master in between,
//! [`super::Settling`] notices it. What it does not do: time out. The caller starts a new round, and
//! stragglers of the old one are refused.

use super::datasets::{DataSet, Port, State, decode};
use super::management::{Id, MessageError, REQUEST_LEN, get, parse};

/// Replies so far.
#[derive(Clone, Debug)]
pub struct Query {
    domain: u8,
    transport_specific: u8,
    sequence: u16,
    port: Option<Port>,
    current: Option<DataSet>,
    parent: Option<DataSet>,
    time_properties: Option<DataSet>,
    settings: Option<DataSet>,
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
            settings: None,
            time_status: None,
        }
    }

    /// Forgets earlier replies and returns the datagrams to send.
    pub fn begin(&mut self) -> [[u8; REQUEST_LEN]; 6] {
        let sequence = self.sequence.wrapping_add(1);
        *self = Self { sequence, ..Self::new(self.domain, self.transport_specific) };
        Id::ALL.map(|id| get(id, self.domain, self.transport_specific, sequence))
    }

    /// Processes a datagram; returns the state once all six data sets are available.
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
            DataSet::Port(port) => {
                if self.port.is_none_or(|known| !known.state.follows()) {
                    self.port = Some(port);
                }
            }
            DataSet::Current(..) => self.current = Some(data),
            DataSet::Parent(..) => self.parent = Some(data),
            DataSet::TimeProperties(..) => self.time_properties = Some(data),
            DataSet::Settings(..) => self.settings = Some(data),
            DataSet::TimeStatus(..) => self.time_status = Some(data),
        }
        Ok(self.complete())
    }

    fn complete(&self) -> Option<State> {
        let (
            port,
            DataSet::Current(steps_removed, mean_path_delay),
            DataSet::Parent(master, grandmaster_class, grandmaster_accuracy),
            DataSet::TimeProperties(time),
            DataSet::Settings(own_utc_offset),
            DataSet::TimeStatus(master_offset_ns, ingress_ns, present, measured_grandmaster),
        ) = (
            self.port?,
            self.current?,
            self.parent?,
            self.time_properties?,
            self.settings?,
            self.time_status?,
        )
        else {
            return None;
        };
        Some(State {
            port: port.state,
            master,
            measured_grandmaster,
            steps_removed,
            mean_path_delay: port.peer_delay.unwrap_or(mean_path_delay),
            grandmaster_accuracy,
            grandmaster_class,
            time,
            own_utc_offset,
            master_offset_ns,
            ingress_ns,
            grandmaster_present: present,
        })
    }
}
