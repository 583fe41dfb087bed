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

use crate::account::{Account, Fits};
use crate::config::Keys;
use crate::hosts::{self, ToHosts};
use crate::outbox::{Memory, Outbox};

/// Shared by all tasks.
#[derive(Clone)]
pub struct Carrier {
    hub: Rc<RefCell<Hub>>,
    connections: Rc<RefCell<BTreeMap<Connection, Served>>>,
    number: Rc<Cell<Connection>>,
    to_hosts: Rc<RefCell<Option<ToHosts>>>,
    /// What all addresses of the network take, bytes.
    network: Rc<Cell<usize>>,
    begun: Instant,
    timer: Rc<Notify>,
}

/// A connection, as the hub's actions reach it.
struct Served {
    account: Account,
    outbox: Outbox,
    /// Its place goes to another one.
    gives_way: Rc<Notify>,
}

/// A connection's place, until it is dropped.
pub struct Seat {
    pub number: Connection,
    pub outbox: Outbox,
    pub carrier: Carrier,
    gives_way: Rc<Notify>,
}

impl Seat {
    /// Returns when the connection has to end because another one gets its place.
    pub async fn gives_way(&self) {
        self.gives_way.notified().await;
    }

    /// Whether it has members.
    pub fn has_members(&self) -> bool {
        self.carrier.hub.borrow().members_on(self.number) > 0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.carrier.disconnected(self.number);
    }
}

impl Carrier {
    pub fn new(keys: Keys) -> Result<Self> {
        let incarnation = u64::from_le_bytes(random()?);
        Ok(Self {
            hub: Rc::new(RefCell::new(Hub::new(Settings::default(), keys, incarnation))),
            connections: Rc::default(),
            number: Rc::default(),
            to_hosts: Rc::default(),
            network: Rc::default(),
            begun: Instant::now(),
            timer: Rc::default(),
        })
    }

    /// A place for a connection; `None` if its account, or the network, has all of its places. From the network,
    /// one that has no member yet ends for it.
    pub fn connected(&self, account: Account) -> Option<Seat> {
        let fits = account.fits(self.connections.borrow().values().map(|it| it.account));
        match fits {
            Fits::Yes => {}
            Fits::OwnAreFull if account.is_remote() => self.make_room(Some(account))?,
            Fits::OwnAreFull => return None,
            Fits::NetworkIsFull => self.make_room(None)?,
        }
        let mut connections = self.connections.borrow_mut();
        // The memory is counted by what still holds it: it ends with the account's last connection.
        let memory = connections.values().find(|it| it.account == account);
        let memory = memory.map(|it| it.outbox.memory().clone());
        let memory = memory.unwrap_or_else(|| match account {
            Account::User(_) => Memory::default(),
            Account::Address(_) => Memory::of_address(&self.network),
        });
        let (number, outbox) = (self.number.get() + 1, Outbox::new(memory));
        let gives_way = Rc::new(Notify::new());
        self.number.set(number);
        let served = Served { account, outbox: outbox.clone(), gives_way: Rc::clone(&gives_way) };
        connections.insert(number, served);
        self.hub.borrow_mut().connected(number, account.trust());
        Some(Seat { number, outbox, carrier: self.clone(), gives_way })
    }

    /// Ends the oldest connection without a member of this account, or of the one that has the most of them.
    fn make_room(&self, of: Option<Account>) -> Option<()> {
        let (number, gives_way) = {
            let (connections, hub) = (self.connections.borrow(), self.hub.borrow());
            let idle = || {
                let remote = connections.iter().filter(|(_, it)| it.account.is_remote());
                remote.filter(|(number, _)| hub.members_on(**number) == 0)
            };
            let whose = of.or_else(|| Account::with_most(idle().map(|(_, it)| it.account)))?;
            let (number, it) = idle().find(|(_, it)| it.account == whose)?;
            (*number, Rc::clone(&it.gives_way))
        };
        self.disconnected(number);
        gives_way.notify_one();
        Some(())
    }

    /// A connection has ended.
    fn disconnected(&self, connection: Connection) {
        let Some(served) = self.connections.borrow_mut().remove(&connection) else { return };
        served.outbox.close();
        let mut out = Vec::new();
        self.hub.borrow_mut().disconnected(connection, self.now(), &mut out);
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
        let connections = self.connections.borrow();
        for action in out {
            match action {
                Out::Frame(to, content) => {
                    if let Some(it) = connections.get(&to) {
                        it.outbox.push(&content);
                    }
                }
                Out::Peers(group, bytes) => {
                    hosts::carry(self.to_hosts.borrow().as_ref(), group, bytes);
                }
                Out::Close(connection) => {
                    if let Some(it) = connections.get(&connection) {
                        it.outbox.close();
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
