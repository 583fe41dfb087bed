//! `timevisor clients`: who asks the NTP server.

use std::path::Path;
use std::time::{Duration as StdDuration, Instant};

use anyhow::Result;
use clap::Args;
use timevisor_protocols::control::{Client, Clients, ClientsQuery, Request, Response};

use crate::connection::{ask, unexpected};

/// The server's thread makes a list within half a second.
const PATIENCE: StdDuration = StdDuration::from_secs(2);
const LOOK: StdDuration = StdDuration::from_millis(50);

#[derive(Args)]
pub struct Options {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    let began = Instant::now();
    let first = list(directory, None)?;
    let mut clients = first.clone();
    while clients.number <= first.number && began.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
        clients = list(directory, Some(first.number))?;
    }
    if options.json {
        println!("{}", serde_json::to_string(&clients)?);
    } else {
        print!("{}", text(&clients));
    }
    Ok(())
}

fn list(directory: &Path, after: Option<u64>) -> Result<Clients> {
    match ask(directory, &Request::Clients(ClientsQuery { after }))? {
        Response::Clients(clients) => Ok(clients),
        other => Err(unexpected(&other)),
    }
}

fn text(clients: &Clients) -> String {
    let mut out = format!(
        "{:<40} {:>10} {:>10} {:>12} {:>10}\n",
        "client", "requests", "limited", "interval", "last"
    );
    for client in &clients.clients {
        out += &row(client);
    }
    out += &format!(
        "{} clients; {} are remembered at most (server.clients)\n",
        clients.clients.len(),
        clients.places
    );
    out
}

fn row(client: &Client) -> String {
    let interval = client.interval_s.map_or_else(|| "-".to_owned(), |s| format!("{s:.1} s"));
    format!(
        "{:<40} {:>10} {:>10} {:>12} {:>10}\n",
        client.address,
        client.requests,
        client.limited,
        interval,
        format!("{:.1} s", client.last_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_a_line() {
        let client = Client {
            address: "fd00::1".to_owned(),
            requests: 12,
            limited: 1,
            last_s: 3.21,
            interval_s: Some(4.02),
        };
        let said = text(&Clients { number: 1, clients: vec![client], places: 1024 });
        let words: Vec<&str> = said.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["fd00::1", "12", "1", "4.0", "s", "3.2", "s"]);
        assert!(said.ends_with("1 clients; 1024 are remembered at most (server.clients)\n"));
    }
}
