//! An age as one line of text: `timevisor-elapsed 1` and numbers, spans in 2^-64 s. Parsing is
//! strict.

use timevisor_estimate::elapsed::Age;
use timevisor_estimate::{Birth, RateLimits};
use timevisor_time::{Duration, Instant, Period, Tai};

use super::blackouts::{Looked, Stopped};
use super::{Blackouts, State};

const NAME: &str = "timevisor-elapsed";
const VERSION: &str = "1";

pub(super) fn format(blackouts: Blackouts, state: &State) -> String {
    let mut words = vec![NAME.to_owned(), VERSION.to_owned(), name(blackouts).to_owned()];
    if let Some(birth) = state.lifetime.birth() {
        words.extend([birth.zero.to_bits(), birth.within.to_bits()].map(|bits| bits.to_string()));
        words.extend(ages(&state.last));
        if let (Some(looked), Some((page, disruption))) = (&state.stopped.last, state.seen) {
            words.extend(ages(&state.stopped.sum));
            words.extend(ages(&looked.total));
            let rate = [looked.rate.shortest, looked.rate.longest].map(Period::to_bits);
            let raw_is_right = match state.stopped.raw_is_right {
                None => 0,
                Some(right) => 1 + u64::from(right),
            };
            let numbers = [looked.raw.0, looked.raw.1, looked.counter, rate[0], rate[1]];
            let more = [disruption, raw_is_right].into_iter().chain(page);
            words.extend(numbers.into_iter().chain(more).map(|number| number.to_string()));
        }
    }
    words.join(" ")
}

fn ages(age: &Age) -> [String; 3] {
    [age.earliest, age.estimate, age.latest].map(|span| span.to_bits().to_string())
}

fn name(blackouts: Blackouts) -> &'static str {
    match blackouts {
        Blackouts::Count => "count",
        Blackouts::Exclude => "exclude",
    }
}

pub(super) fn parse(text: &str) -> Result<(Blackouts, State), &'static str> {
    let mut words = Words(text.split_ascii_whitespace());
    if words.next()? != NAME {
        return Err("it begins with something else");
    }
    if words.next()? != VERSION {
        return Err("it is of another version of Timevisor");
    }
    let word = words.next()?;
    let blackouts = [Blackouts::Count, Blackouts::Exclude]
        .into_iter()
        .find(|known| name(*known) == word)
        .ok_or("the third word must be count or exclude")?;
    let mut state = State::default();
    let zero = Instant::<Tai>::from_bits(words.number()?);
    let within = words.span()?;
    state.lifetime.born(Birth { zero, within });
    state.last = words.age()?;
    if blackouts == Blackouts::Exclude {
        let (sum, total) = (words.age()?, words.age()?);
        let raw = (words.number()?, words.number()?);
        let counter = words.number()?;
        let (shortest, longest) = (words.period()?, words.period()?);
        if raw.0 > raw.1 || shortest > longest {
            return Err("two numbers are in another order");
        }
        let disruption = words.number()?;
        let raw_is_right = match words.number::<u64>()? {
            0 => None,
            1 => Some(false),
            2 => Some(true),
            _ => return Err("a number has no meaning"),
        };
        let mut page = [0; 5];
        for word in &mut page {
            *word = words.number()?;
        }
        let rate = RateLimits { shortest, longest };
        let last = Some(Looked { total, raw, counter, rate, page });
        state.stopped = Stopped { sum, last, raw_is_right };
        state.seen = Some((page, disruption));
    }
    if words.0.next().is_some() { Err("something follows it") } else { Ok((blackouts, state)) }
}

struct Words<'a>(std::str::SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Result<&'a str, &'static str> {
        self.0.next().ok_or("it is cut off")
    }

    fn number<N: std::str::FromStr>(&mut self) -> Result<N, &'static str> {
        self.next()?.parse().map_err(|_| "a number is none, or too large")
    }

    fn span(&mut self) -> Result<Duration, &'static str> {
        let span = Duration::from_bits(self.number()?);
        if span.is_negative() { Err("a span is below 0") } else { Ok(span) }
    }

    fn period(&mut self) -> Result<Period, &'static str> {
        Ok(Period::from_bits(self.number()?))
    }

    fn age(&mut self) -> Result<Age, &'static str> {
        Age::new(self.span()?, self.span()?, self.span()?)
            .map_err(|_| "limits are in another order")
    }
}
