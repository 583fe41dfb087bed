//! A network of four hosts is cut in two. Each half has a timeline afterwards, under an origin of its own: that of the
//! master who is there, and one that another host continues. When the halves meet, one origin stays, and who goes
//! over to it says so on the page. All have one counter, so what a master's page says at a value of it is the truth.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor::{BindOptions, Binding, Client};
use timevisor_clock_page::{Counter as _, CounterId};
use timevisor_linux::counter::HostCounter;

use crate::host::Host;
use crate::interrupt::{self, Late};
use crate::lan::Lan;
use crate::netns::Namespace;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::timelines::host::{connect, row};

const PORT: u16 = 41_310;
const HOSTS: u8 = 4;
const NAME: &str = "cell";
/// The first entry after the host's own clock.
const ENTRY: usize = 1;
const PATIENCE: Duration = Duration::from_secs(60);

struct Member {
    host: Host,
    /// Its end of the pair on the bridge.
    interface: String,
    bound: Option<(Client, Binding, HostPage)>,
    /// What its page last said, ns, and how often that was part of another clock than before.
    last: i64,
    disruption: Option<u64>,
    disruptions: u32,
}

/// What `timevisor cluster status` says of the timeline.
struct Said {
    origin: String,
    leads: bool,
}

impl Member {
    fn start(&mut self, lines: &str) -> anyhow::Result<()> {
        self.host.start(&format!(
            "[guests]\ndiscover = false\n[[reference]]\ntype = \"system\"\nassumed_max_error = \"10ms\"\n{lines}"
        ))
    }

    /// Keeps a binding, and opens the entry that it has.
    fn bind(&mut self) -> anyhow::Result<()> {
        self.host.wait_until("the timeline is known", |host| {
            Ok(!row(host, NAME)?["achieved"]["below_ns"].is_null())
        })?;
        let client = connect(&self.host)?;
        let binding = client.bind_with(NAME, &BindOptions::default())?;
        let page = HostPage::entry(self.host.directory(), ENTRY)?;
        self.bound = Some((client, binding, page));
        Ok(())
    }

    /// The timeline at a value of the counter, from earliest to latest, ns; an error if the estimate is less than before.
    /// `None` while it goes over to another origin.
    fn step(&mut self, counter: u64) -> anyhow::Result<Option<(i64, i64)>> {
        let (_, _, page) = self.bound.as_ref().context("not bound")?;
        let reading = page.convert(counter)?;
        if !reading.has_estimate() {
            return Ok(None);
        }
        let estimate = reading.estimate.floor_nanos();
        ensure!(estimate >= self.last, "went back from {} to {estimate}", self.last);
        self.last = estimate;
        let before = self.disruption.replace(reading.disruption);
        self.disruptions += u32::from(before.is_some_and(|before| before != reading.disruption));
        Ok(Some((reading.earliest.floor_nanos(), reading.latest.ceil_nanos())))
    }

    /// `None` while it does not know the time of its origin.
    fn said(&self) -> anyhow::Result<Option<Said>> {
        let status = self.host.json(&["cluster", "status"])?;
        let clocks = status["clusters"].as_array().context("no clusters")?;
        let clock = clocks.iter().find(|clock| clock["timeline"] == NAME).context("no timeline")?;
        let origin = clock["origin"].as_str().filter(|_| clock["below_ns"].is_u64());
        let leads = clock["role"] == "master";
        Ok(origin.map(|origin| Said { origin: origin.to_owned(), leads }))
    }
}

pub(crate) fn split(ctx: &Context) -> anyhow::Result<String> {
    let gate = Namespace::create()?;
    let lan = Lan::before(ctx, &gate)?;
    let keeper = Host::further(ctx, "key")?;
    let key = keeper.make_key("lab.key")?;
    let seeds: Vec<String> = (0..HOSTS).map(|at| format!("{}:{PORT}", lan.address(at))).collect();
    let mut members = Vec::new();
    for number in 0..HOSTS {
        let namespace = Namespace::create()?;
        lan.join(&namespace, number)?;
        let interface = namespace.interface();
        let host = Host::inside(ctx, &format!("member{number}"), namespace)?;
        let (last, disruption, disruptions) = (i64::MIN, None, 0);
        let mut member = Member { host, interface, bound: None, last, disruption, disruptions };
        member.start(&format!(
            "[server]\nlisten = [{:?}]\nrate_interval = \"0s\"\n[[cluster]]\nname = \"lab\"\ntimeline = \"{NAME}\"\n\
             seeds = {seeds:?}\npoll = \"200ms\"\nlease = \"2s\"\ntakeover_after = \"1s\"\nkey = {key:?}\n",
            seeds[usize::from(number)]
        ))?;
        members.push(member);
    }
    members.iter_mut().try_for_each(Member::bind)?;
    let first = agreed(&mut members, "1.")?;
    let mut count = watch(&mut members, Duration::from_secs(2))?;

    // The master and one more stay; the others are cut off.
    let (mut here, mut there): (Vec<Member>, Vec<Member>) = {
        let master = members.iter().position(|member| member.host.log_text().contains(LEADS));
        members.swap(0, master.context("nobody has become master")?);
        let there = members.split_off(2);
        (members, there)
    };
    let cut: Vec<String> = there.iter().map(|member| member.interface.clone()).collect();
    lan.cut_off(&cut)?;
    let second = agreed(&mut there, "2.")?;
    let still = agreed(&mut here, "1.")?;
    ensure!(still == first && second != first, "{first} became {still} beside {second}");
    let silent = here.iter().all(|member| member.disruptions == 0);
    ensure!(silent, "a host whose master is there says that its timeline is another one");
    ensure!(
        there.iter().all(|member| member.disruptions == 1),
        "who was cut off does not say so once"
    );
    // Both at once, each right by its own master.
    count += watch(&mut here, Duration::from_secs(2))? + watch(&mut there, Duration::from_secs(2))?;

    lan.reunite(&cut)?;
    let reunited = Instant::now();
    here.append(&mut there);
    let last = agreed(&mut here, "2.")?;
    let after = reunited.elapsed();
    ensure!(last == second, "{first} and {second} have become {last}");
    count += watch(&mut here, Duration::from_secs(2))?;
    let told = here.iter().all(|member| member.disruptions == 1);
    ensure!(told, "not every host says once that it went over to {last}");
    Ok(format!(
        "{HOSTS} hosts in namespaces: cut in two, {first} went on beside {second}, a master each; together again, all had \
         {last} after {:.1} s, and each has said once that it went over; {count} readings with the master's time inside, \
         none earlier than the one before",
        after.as_secs_f64()
    ))
}

const FORGOTTEN: &str = "the timeline was forgotten";
const LEADS: &str = "this host is the master of cell now";

fn counter() -> anyhow::Result<u64> {
    let counter = HostCounter::for_reader(CounterId::X86Tsc).context("this machine has no TSC")?;
    Ok(counter.read_ordered())
}

/// Waits until these hosts have one origin, which begins like this, and one of them leads it.
fn agreed(members: &mut [Member], generation: &str) -> anyhow::Result<String> {
    let began = Instant::now();
    loop {
        interrupt::sleep(Duration::from_millis(100))?;
        let counter = counter()?;
        members.iter_mut().try_for_each(|member| member.step(counter).map(drop))?;
        let said = members.iter().map(Member::said).collect::<anyhow::Result<Vec<_>>>()?;
        let said: Vec<Said> = said.into_iter().flatten().collect();
        let origin = said.first().map_or("", |said| said.origin.as_str());
        let one = said.len() == members.len() && said.iter().all(|said| said.origin == origin);
        if one
            && origin.starts_with(generation)
            && said.iter().filter(|said| said.leads).count() == 1
        {
            return Ok(origin.to_owned());
        }
        if began.elapsed() > PATIENCE {
            let all: Vec<&str> = said.iter().map(|said| said.origin.as_str()).collect();
            let late = format!("no common origin {generation}* but {all:?}");
            return Err(anyhow::anyhow!(late).context(Late));
        }
    }
}

/// Readings of all of them, each with its master's time inside.
fn watch(members: &mut [Member], span: Duration) -> anyhow::Result<u64> {
    let mut master = None;
    for (at, member) in members.iter().enumerate() {
        if member.said()?.is_some_and(|said| said.leads) {
            master = Some(at);
        }
    }
    let master = master.context("nobody leads")?;
    let (mut count, end) = (0, Instant::now() + span);
    while Instant::now() < end {
        interrupt::sleep(Duration::from_millis(2))?;
        let counter = counter()?;
        let (from, to) = members[master].step(counter)?.context(FORGOTTEN)?;
        ensure!(to - from <= 2, "the master's own is {} ns wide", to - from);
        for member in &mut *members {
            let (earliest, latest) = member.step(counter)?.context(FORGOTTEN)?;
            ensure!(
                earliest <= to && from <= latest,
                "the master says {from}, and that is not in {earliest}..{latest}"
            );
            count += 1;
        }
    }
    Ok(count)
}
