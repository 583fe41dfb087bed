//! Section 5.4 of the HPGC paper on real sockets: a server and two nodes. How many messages it takes until a node has
//! settled, with the published algorithm and with ours, in turns; and the order of stamps (figure 4).
//!
//! The published algorithm exchanges messages until half round trips differ by less than 500 ns, and takes the
//! server's time at the shortest one, plus half of that. It reads clocks itself, before sending and after receiving, as code 5 of
//! the paper does. Both ask the same timevisord.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_linux::clock::{bracket, realtime};
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::ntp::{NtpTimestamp, Packet};
use timevisor_time::Period;

use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::oscillator::{Oscillator, Parameters};
use crate::plot::{Series, lines};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::cluster::member::{Member, period, step};
use crate::tests::cluster::offline::{Node, started_root};

const PORT: u16 = 41_380;
/// As often as in the paper.
const REPEATS: usize = 200;
const STAMPED: usize = 2_000;
/// Between the stamps of two messages, us; each pair has another one.
const APART_US: usize = 300;
/// The published algorithm's.
const SPREAD: Duration = Duration::from_nanos(500);
const COMPARED: usize = 3;
const PAUSE: Duration = Duration::from_micros(1);
const MOST_EXCHANGES: u32 = 10_000;
/// Counters of the two nodes.
const PPB: [i64; 2] = [10_000, -10_000];

pub(crate) fn three(ctx: &Context) -> anyhow::Result<String> {
    let upstream = Impostor::honest()?;
    let _root = started_root(ctx, &upstream, PORT)?;
    let counter = HostCounter::Tsc(Tsc::unchecked());
    let nominal = period(&counter)?;

    let (mut ours, mut published) = (Vec::new(), Vec::new());
    for turn in 0..REPEATS {
        interrupt::check()?;
        ours.push(settle(turn, &counter, nominal)?);
        published.push(settle_as_published(&counter, nominal)?);
    }
    let (a, b) = (node(ctx, "a", PPB[0])?, node(ctx, "b", PPB[1])?);
    let order = order(ctx, &a, &b)?;
    Ok(format!(
        "until a node has settled, {REPEATS} times each in turns: ours {}; published {}, {} of them never within the 500 ns; {order}",
        told(&ours),
        told(&published),
        published.iter().filter(|one| one.exchanges == MOST_EXCHANGES).count(),
    ))
}

/// One node's start.
struct Settled {
    exchanges: u32,
    took: Duration,
    /// Of the published clock its error, of ours the half-width that it states, without a sign, us.
    off_us: f64,
}

fn told(all: &[Settled]) -> String {
    let of = |value: &dyn Fn(&Settled) -> f64| {
        let mut values: Vec<f64> = all.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2], values[values.len() * 99 / 100])
    };
    let exchanges = of(&|one| f64::from(one.exchanges));
    let took = of(&|one| one.took.as_secs_f64() * 1e3);
    let off = of(&|one| one.off_us);
    format!(
        "{:.0} exchanges in the median and {:.0} in p99, {:.2} and {:.2} ms, {:.1} and {:.1} us",
        exchanges.0, exchanges.1, took.0, took.1, off.0, off.1
    )
}

/// Ours: a burst, and bounds that hold the truth.
fn settle(turn: usize, counter: &HostCounter, nominal: Period) -> anyhow::Result<Settled> {
    let name = Name::new("lab").context("a short name")?;
    let mut one = [Member::new(PORT, turn, name, None, nominal)?];
    let began = Instant::now();
    let mut random = 1 + turn as u64;
    while one[0].vouched.is_none() {
        interrupt::check()?;
        ensure!(began.elapsed() < Duration::from_secs(10), "no bounds after 10 s");
        step(&mut one, counter, nominal, began, &mut random)?;
    }
    ensure!(one[0].holds(counter), "the bounds exclude the truth");
    let interval = one[0].client.node().at(bracket(counter, 1).after).context("no bounds")?.0;
    Ok(Settled {
        exchanges: u32::try_from(one[0].client.questions())?,
        took: one[0].vouched.context("no bounds")?,
        off_us: interval.width().as_secs_f64() * 5e5,
    })
}

/// The published algorithm.
fn settle_as_published(counter: &HostCounter, nominal: Period) -> anyhow::Result<Settled> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((Ipv4Addr::LOCALHOST, PORT))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let began = Instant::now();
    let (mut halves, mut exchanges) = (VecDeque::new(), 0);
    let (mut shortest, mut ahead_s) = (Duration::MAX, 0.0);
    let mut buffer = [0; 512];
    while exchanges < MOST_EXCHANGES {
        interrupt::check()?;
        std::thread::sleep(PAUSE);
        exchanges += 1;
        let before = bracket(counter, 1);
        let request = Packet::request(NtpTimestamp::from_instant(before.realtime), 0);
        socket.send(&request.to_bytes())?;
        let Ok(len) = socket.recv(&mut buffer) else { continue };
        let after = bracket(counter, 1);
        let (answer, _) = Packet::parse(&buffer[..len]).ok().context("no packet of NTP")?;
        let ticks = after.before.wrapping_sub(before.after);
        let half = Duration::from_secs_f64(nominal.span(ticks).half().as_secs_f64());
        if half < shortest {
            shortest = half;
            let server = answer.transmit.to_instant(realtime());
            ahead_s = (server - after.realtime).as_secs_f64() + half.as_secs_f64();
        }
        halves.push_back(half);
        if halves.len() > COMPARED {
            halves.pop_front();
        }
        let spread = halves.iter().max().zip(halves.iter().min());
        if halves.len() == COMPARED && spread.is_some_and(|(most, least)| *most - *least < SPREAD) {
            break;
        }
    }
    Ok(Settled { exchanges, took: began.elapsed(), off_us: ahead_s.abs() * 1e6 })
}

fn node(ctx: &Context, name: &str, ppb: i64) -> anyhow::Result<Node> {
    let ctx = ctx.further(name)?;
    let parameters = Parameters { ppb, offset: 1 << 44, amplitude_ppb: 20.0, period: 60e9 };
    let lines = format!(
        "[guests]\ndiscover = false\n[[reference]]\ntype = \"cluster\"\ncluster = \"lab\"\n[[cluster]]\nname = \"lab\"\n\
         serve = false\nseeds = [\"127.0.0.1:{PORT}\"]\npeers = 1\npoll = \"200ms\"\n"
    );
    let node = Node::start(&ctx, Oscillator::new(&ctx, parameters)?, &lines)?;
    node.host.wait_synchronized(10_000)?;
    Ok(node)
}

/// What a node writes on a message, ns of its clock: earliest, estimate, latest.
type Stamp = (i64, i64, i64);

fn read(message: &[u8; 24]) -> Stamp {
    let word = |at: usize| message[8 * at..].first_chunk().map_or(0, |b| i64::from_le_bytes(*b));
    (word(0), word(1), word(2))
}

fn stamp(node: &Node, page: &HostPage) -> anyhow::Result<Stamp> {
    let tsc = HostCounter::Tsc(Tsc::unchecked());
    node.reading(page, bracket(&tsc, 1).before)
}

/// The nodes send messages to the server in turn, A's n-th always before B's n-th. The server looks at the stamps: they tell
/// the order, or the intervals overlap and nobody says so.
fn order(ctx: &Context, a: &Node, b: &Node) -> anyhow::Result<String> {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    server.set_read_timeout(Some(Duration::from_secs(1)))?;
    let sockets =
        [UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?];
    for socket in &sockets {
        socket.connect(server.local_addr()?)?;
    }
    let pages = [HostPage::open(a.host.directory())?, HostPage::open(b.host.directory())?];
    let mut arrived = [Vec::new(), Vec::new()];
    for message in 0..STAMPED {
        interrupt::check()?;
        for (at, node) in [a, b].into_iter().enumerate() {
            let (earliest, estimate, latest) = stamp(node, &pages[at])?;
            let words = [earliest, estimate, latest].map(i64::to_le_bytes);
            sockets[at].send(words.as_flattened())?;
            let mut buffer = [0; 24];
            server.recv(&mut buffer)?;
            arrived[at].push(read(&buffer));
            std::thread::sleep(Duration::from_micros((message % APART_US) as u64));
        }
    }
    let (mut in_order, mut uncertain, mut by_estimate) = (0, 0, 0);
    for (first, second) in arrived[0].iter().zip(&arrived[1]) {
        ensure!(second.2 >= first.0, "{second:?} was sent after {first:?}, and says before");
        by_estimate += usize::from(second.1 > first.1);
        if first.2 < second.0 { in_order += 1 } else { uncertain += 1 }
    }
    picture(ctx, &arrived)?;
    ensure!(in_order > 0, "{uncertain} pairs, and no order of any is known");
    Ok(format!(
        "of {STAMPED} pairs of messages, up to {APART_US} us apart, {in_order} are in order by their intervals, {uncertain} uncertain, \
         none wrong; by the estimates alone {by_estimate} are in order"
    ))
}

/// Figure 4: the stamps of both nodes, seen from A's estimate, while what lies between them grows.
fn picture(ctx: &Context, arrived: &[Vec<Stamp>; 2]) -> anyhow::Result<()> {
    let series = |name: &str, at: usize, of: fn(&Stamp) -> i64| Series {
        name: name.to_owned(),
        points: arrived[at]
            .iter()
            .zip(&arrived[0])
            .take(APART_US)
            .enumerate()
            .map(|(n, (stamps, of_a))| (n as f64, (of(stamps) - of_a.1) as f64 / 1e3))
            .collect(),
    };
    let all = vec![
        series("A, latest", 0, |stamps| stamps.2),
        series("B, latest", 1, |stamps| stamps.2),
        series("B, estimate", 1, |stamps| stamps.1),
        series("B, earliest", 1, |stamps| stamps.0),
    ];
    let title = "Where B's earliest is above A's latest, the order of two messages is known";
    let axes = ["B's message is sent so many us after A's has arrived", "us after A's estimate"];
    std::fs::write(ctx.path("order.svg"), lines(title, axes, all, false))?;
    Ok(())
}
