//! The last exchanges with all references, for who records them (`timevisor sources record`).

use std::collections::VecDeque;

use timevisor_estimate::Exchange;
use timevisor_protocols::control::{Exchanges, RecentExchange};
use timevisor_time::Period;

/// Two seconds of dozens of references that are asked several times a second.
const MOST: usize = 256;

/// A ring of exchanges.
#[derive(Debug)]
pub struct Recent {
    period: Period,
    exchanges: VecDeque<(usize, u64, Exchange)>,
    count: u64,
}

impl Recent {
    /// An empty one, for a counter with this period.
    pub fn new(period: Period) -> Self {
        Self { period, exchanges: VecDeque::with_capacity(MOST), count: 0 }
    }

    /// Takes in an exchange with reference number `reference`.
    pub fn push(&mut self, reference: usize, exchange: &Exchange) {
        if self.exchanges.len() == MOST {
            self.exchanges.pop_front();
        }
        self.count += 1;
        self.exchanges.push_back((reference, self.count, *exchange));
    }

    /// Other references are configured: numbers mean something else from now on.
    pub fn clear(&mut self) {
        self.exchanges.clear();
    }

    /// All of them, with the references' names.
    pub fn report(&self, names: &[String]) -> Exchanges {
        let row = |(reference, number, exchange): &(usize, u64, Exchange)| {
            Some(RecentExchange {
                number: *number,
                source: names.get(*reference)?.clone(),
                ta_ns: u64::try_from(self.period.span(exchange.ta).floor_nanos()).ok()?,
                tb_ns: exchange.tb.floor_nanos(),
                te_ns: exchange.te.ceil_nanos(),
                tf_ns: u64::try_from(self.period.span_ceil(exchange.tf).ceil_nanos()).ok()?,
                error_ns: exchange.error.ceil_nanos(),
            })
        };
        Exchanges { exchanges: self.exchanges.iter().filter_map(row).collect() }
    }
}
