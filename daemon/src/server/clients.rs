//! The list of clients for `timevisor clients`.
//!
//! The table belongs to the server's thread, for which nobody waits. Whoever asks gets the last list
//! that was made, and a newer one when asking again a moment later.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::{Client, Clients};
use timevisor_protocols::ntp::server::clients::{Clients as Table, Row};
use timevisor_time::Duration;

/// So many clients fit into one answer.
const MOST: usize = 10_000;

/// What the thread and the daemon share.
#[derive(Default)]
pub struct ClientList {
    wanted: AtomicBool,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    number: u64,
    rows: Vec<Row>,
    places: usize,
}

impl ClientList {
    /// Makes a list if one is wanted. Called by the server's thread.
    pub fn make(&self, table: &Table) {
        if !self.wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut rows: Vec<Row> = table.rows().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.last));
        rows.truncate(MOST);
        if let Ok(mut made) = self.made.lock() {
            *made = Made { number: made.number + 1, rows, places: table.capacity() };
        }
    }

    /// The last list. A new one is wanted unless this one is newer than number `after`.
    pub fn ask(&self, after: Option<u64>) -> Clients {
        // Held for the moment in which the thread stores a list.
        let Ok(made) = self.made.lock() else {
            return Clients { number: 0, clients: Vec::new(), places: 0 };
        };
        if after.is_none_or(|after| made.number <= after) {
            self.wanted.store(true, Ordering::Relaxed);
        }
        let now = monotonic();
        let clients = made.rows.iter().map(|row| shown(row, now)).collect();
        Clients { number: made.number, clients, places: made.places as u64 }
    }
}

fn shown(row: &Row, now: Duration) -> Client {
    let between = f64::from(row.requests.saturating_sub(1));
    Client {
        address: row.address.to_string(),
        requests: row.requests.into(),
        limited: row.limited.into(),
        last_s: (now - row.last).max(Duration::ZERO).as_secs_f64(),
        interval_s: (row.requests > 1).then(|| (row.last - row.first).as_secs_f64() / between),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_protocols::ntp::server::Config;

    #[test]
    fn a_list_is_made_only_when_one_is_wanted() {
        let mut table = Table::new(&Config::default(), 1);
        let now = monotonic();
        for age in [12, 2] {
            let _ = table.visit("192.0.2.1".parse().unwrap(), now - Duration::from_secs(age));
        }
        let _ = table.visit("192.0.2.2".parse().unwrap(), now - Duration::from_secs(1));
        let list = ClientList::default();
        list.make(&table);
        assert_eq!(list.ask(None).number, 0);
        list.make(&table);
        let told = list.ask(Some(0));
        let names: Vec<_> = told.clients.iter().map(|client| client.address.as_str()).collect();
        assert_eq!((told.number, names), (1, vec!["192.0.2.2", "192.0.2.1"]));
        let client = &told.clients[1];
        assert_eq!(client.requests, 2);
        assert!(client.interval_s.is_some_and(|s| (s - 10.0).abs() < 1e-6), "{client:?}");
        assert!((2.0..3.0).contains(&client.last_s), "{client:?}");
        list.make(&table);
        assert_eq!(list.ask(Some(0)).number, 1, "nobody asked for another");
    }
}
