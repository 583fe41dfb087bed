//! What AWS ClockBound's own clients read (lab/peers, `clockbound-clients`).

use anyhow::{Context as _, bail};

/// The program, and its package.
pub(crate) const PROGRAM: (&str, &str) = ("timevisor-lab-peers", "clockbound-clients");

/// One client's answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) readings: Vec<Reading>,
    /// Why it gave none, in its words.
    pub(crate) refusals: Vec<String>,
    /// How long a call takes.
    pub(crate) speed_ns: Option<u64>,
}

/// One answer; times are ns of UTC.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) status: String,
    pub(crate) earliest: i64,
    pub(crate) latest: i64,
    /// CLOCK_REALTIME of that machine before and after the call.
    pub(crate) realtime: [i64; 2],
    /// The counter before and after the call, where the program read our page too.
    pub(crate) counter: [u64; 2],
    /// What our own reader said: the earliest time after the call, the latest before it.
    pub(crate) ours: Option<(String, [i64; 2])>,
}

impl Reading {
    /// Whether the client's interval contains what our reader says of the moments around the call.
    pub(crate) fn contains_ours(&self) -> bool {
        self.ours.as_ref().is_some_and(|(_, [earliest, latest])| {
            self.earliest <= *earliest && *latest <= self.latest
        })
    }

    /// Half of the interval.
    pub(crate) fn half_ns(&self) -> i64 {
        (self.latest - self.earliest) / 2
    }
}

/// The answers of the clients of layouts 2 and 3.
pub(crate) fn parse(text: &str) -> anyhow::Result<[Answers; 2]> {
    let mut all = [Answers::default(), Answers::default()];
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some((layout, rest)) = words.split_first() else { continue };
        let answers = match *layout {
            "2" => &mut all[0],
            "3" => &mut all[1],
            _ => bail!("not a line of a client: {line}"),
        };
        match rest {
            ["refused", reason @ ..] => answers.refusals.push(reason.join(" ")),
            ["speed", ns] => answers.speed_ns = Some(ns.parse()?),
            [status, numbers @ ..] => {
                answers.readings.push(reading(status, numbers).with_context(|| line.to_owned())?);
            }
            [] => bail!("not a line of a client: {line}"),
        }
    }
    Ok(all)
}

fn reading(status: &str, words: &[&str]) -> anyhow::Result<Reading> {
    let [earliest, latest, before, after, first, last, ours @ ..] = words else {
        bail!("too few words");
    };
    let ours = match ours {
        [] => None,
        [status, earliest, latest] => {
            Some(((*status).to_owned(), [earliest.parse()?, latest.parse()?]))
        }
        _ => bail!("too many words"),
    };
    Ok(Reading {
        status: status.to_owned(),
        earliest: earliest.parse()?,
        latest: latest.parse()?,
        realtime: [before.parse()?, after.parse()?],
        counter: [first.parse()?, last.parse()?],
        ours,
    })
}
