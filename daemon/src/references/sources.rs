//! Whose word a reference's facts are: the sources of time behind them, by which references are one
//! witness.
//!
//! What a server said stays true when another one is asked, and so does whose word it was. Only
//! later facts replace it, never silence: in an outage of any length nobody leaves its group.

use timevisor_protocols::ntp::Source;
use timevisor_time::Duration;

/// Facts from before this are replaced by later ones.
const COUNTS: Duration = Duration::from_secs(4 * 3600);

/// The sources of the facts that count, each with the time of its last answer.
#[derive(Default)]
pub struct Sources(Vec<(Source, Duration)>);

impl Sources {
    /// There is a fact from this source.
    pub fn heard(&mut self, source: Source, now: Duration) {
        self.0.retain(|(other, _)| *other != source);
        self.replace_old(now);
        self.0.push((source, now));
    }

    /// There is a new fact: sources whose last one is old count no more.
    pub fn replace_old(&mut self, now: Duration) {
        self.0.retain(|(_, at)| now - *at < COUNTS);
    }

    /// What was said so far counts no more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = Source> {
        self.0.iter().map(|(source, _)| *source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> Source {
        Source::new([10, 0, 0, last].into(), 2, [10, 0, 0, 99])
    }

    #[test]
    fn a_source_counts_until_later_facts_have_replaced_its_own() {
        let hour = |hours: i64| Duration::from_secs(hours * 3600);
        let mut sources = Sources::default();
        sources.heard(source(1), hour(0));
        sources.heard(source(2), hour(2));
        sources.heard(source(2), hour(3));
        assert!(sources.iter().eq([source(1), source(2)]), "each once");
        sources.heard(source(2), hour(4));
        assert!(sources.iter().eq([source(2)]));
        // However long nobody says anything.
        sources.heard(source(3), hour(1000));
        assert!(sources.iter().eq([source(3)]));
        sources.replace_old(hour(1004));
        assert_eq!(sources.iter().count(), 0);
    }
}
