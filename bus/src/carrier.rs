//! The hub, its connections and its timer, all on one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use timevisor_coordination::Name;
use timevisor_coordination::hub::{Connection, Hub, Out, Settings};
use timevisor_time::Duration;
use tokio::sync::Notify;

use crate::account::Account;
use crate::config::Keys;
use crate::hosts::{self, ToHosts};
use crate::outbox::{Memory, Outbox};

/// Shared by all tasks.
#[derive(Clone)]
pub struct Carrier {
    hub: Rc<RefCell<Hub>>,
    outboxes: Rc<RefCell<BTreeMap<Connection, (Account, Outbox)>>>,
    number: Rc<Cell<Connection>>,
    to_hosts: Rc<RefCell<Option<ToHosts>>>,
    /// What all addresses of the network take, bytes.
    network: Rc<Cell<usize>>,
    begun: Instant,
    timer: Rc<Notify>,
}

impl Carrier {
    pub fn new(keys: Keys) -> Result<Self> {
        let incarnation = u64::from_le_bytes(random()?);
        Ok(Self {
            hub: Rc::new(RefCell::new(Hub::new(Settings::default(), keys, incarnation))),
            outboxes: Rc::default(),
            number: Rc::default(),
            to_hosts: Rc::default(),
            network: Rc::default(),
            begun: Instant::now(),
            timer: Rc::default(),
        })
    }

    /// A connection; `None` if there are too many of its account, or from the network.
    pub fn connected(&self, account: Account) -> Option<(Connection, Outbox)> {
        let mut outboxes = self.outboxes.borrow_mut();
        if !account.fits(outboxes.values().map(|(of, _)| *of)) {
            return None;
        }
        // The memory is counted by what still holds it: it ends with the account's last connection.
        let memory = outboxes.values().find(|(of, _)| *of == account);
        let memory = memory.map(|(_, outbox)| outbox.memory().clone());
        let memory = memory.unwrap_or_else(|| match account {
            Account::User(_) => Memory::default(),
            Account::Address(_) => Memory::of_address(&self.network),
        });
        let (number, outbox) = (self.number.get() + 1, Outbox::new(memory));
        self.number.set(number);
        outboxes.insert(number, (account, outbox.clone()));
        self.hub.borrow_mut().connected(number, account.trust());
        Some((number, outbox))
    }

    /// A connection has ended.
    pub fn disconnected(&self, connection: Connection) {
        let mut out = Vec::new();
        self.hub.borrow_mut().disconnected(connection, self.now(), &mut out);
        if let Some((_, outbox)) = self.outboxes.borrow_mut().remove(&connection) {
            outbox.close();
        }
        self.act(out);
    }

    /// A frame's content.
    pub fn frame(&self, connection: Connection, content: &[u8]) -> Result<()> {
        let mut out = Vec::new();
        let now = self.now();
        self.hub.borrow_mut().frame(connection, content, random()?, now, &mut out);
        self.act(out);
        Ok(())
    }

    /// Messages for other hosts go there.
    pub fn carry_to_hosts(&self, to_hosts: ToHosts) {
        *self.to_hosts.borrow_mut() = Some(to_hosts);
    }

    /// What the bus of another host says.
    pub fn heard(&self, group: Name, bytes: &[u8]) {
        let mut out = Vec::new();
        let now = self.now();
        self.hub.borrow_mut().heard(group, bytes, now, &mut out);
        self.act(out);
    }

    /// The hub's timer, for ever.
    pub async fn run(&self) {
        loop {
            let next = self.hub.borrow().next();
            let left = next.map(|next| (next - self.now()).max(Duration::ZERO).ceil_nanos());
            let left =
                left.map(|ns| std::time::Duration::from_nanos(u64::try_from(ns).unwrap_or(0)));
            match left {
                // A timer is a millisecond wide.
                Some(left) if !left.is_zero() => tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    () = self.timer.notified() => continue,
                },
                Some(_) => {}
                None => {
                    self.timer.notified().await;
                    continue;
                }
            }
            let mut out = Vec::new();
            self.hub.borrow_mut().on_timer(self.now(), &mut out);
            self.act(out);
            tokio::task::yield_now().await;
        }
    }

    fn act(&self, out: Vec<Out>) {
        let outboxes = self.outboxes.borrow();
        for action in out {
            match action {
                Out::Frame(to, content) => {
                    if let Some((_, outbox)) = outboxes.get(&to) {
                        outbox.push(&content);
                    }
                }
                Out::Peers(group, bytes) => {
                    hosts::carry(self.to_hosts.borrow().as_ref(), group, bytes);
                }
                Out::Close(connection) => {
                    if let Some((_, outbox)) = outboxes.get(&connection) {
                        outbox.close();
                    }
                }
            }
        }
        self.timer.notify_one();
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(i64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

/// Random bytes of the kernel.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random bytes: {error}"))?;
    Ok(bytes)
}
