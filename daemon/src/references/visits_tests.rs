use timevisor_linux::state_file::{Readers, write};
use timevisor_time::Instant;

use super::super::testing::Host;
use super::*;

/// A visit so many ns ago, by the counter of `host`.
fn visit(host: &Host, ago: u64, width_ns: i64) -> Visit {
    let around = host.around();
    let history = CounterHistory::of(around.counter).unwrap();
    Visit {
        server: "192.0.2.1:123".to_owned(),
        cluster: "lab".to_owned(),
        boot_id: history.boot_id,
        counter: history.counter,
        suspended_ns: history.suspended_ns,
        ticks: around.counter.read_ordered() - ago,
        earliest_utc_ns: 1_700_000_000_000_000_000,
        latest_utc_ns: 1_700_000_000_000_000_000 + width_ns,
        guess_utc_ns: None,
    }
}

struct World {
    host: Host,
    _directory: tempfile::TempDir,
    file: PathBuf,
    visits: Visits,
    reference: VisitsFile,
    now: Duration,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("visits.json");
        let config = VisitsConfig { file: file.clone(), ..VisitsConfig::default() };
        let now = Duration::from_secs(100);
        let reference = VisitsFile::new(&config, "visits".to_owned(), now);
        let (host, visits) = (Host::new(), Visits::default());
        Self { host, _directory: directory, file, visits, reference, now }
    }

    fn add(&mut self, visit: Visit) {
        self.visits.add(visit, |_| true);
        write(&self.file, self.visits.text().as_bytes(), Readers::Owner).unwrap();
    }

    /// All that it gives at its next look.
    fn look(&mut self) -> Vec<Exchange> {
        self.now = self.now.max(self.reference.poll_at());
        let mut all = Vec::new();
        while self.reference.poll_at() <= self.now {
            all.extend(self.reference.on_timer(self.now, &self.host.around()));
        }
        all
    }

    fn status(&self) -> (String, String) {
        let report = self.reference.report(self.now);
        (report.status, report.detail)
    }
}

#[test]
fn each_visit_is_given_once_and_in_order() {
    let mut world = World::new();
    let (late, early) =
        (visit(&world.host, 5_000_000_000, 40), visit(&world.host, 9_000_000_000, 60));
    world.add(late.clone());
    world.add(early.clone());
    let found = world.look();
    let ticks: Vec<u64> = found.iter().map(|exchange| exchange.tf).collect();
    assert_eq!(ticks, [early.ticks, late.ticks]);
    let middle = Instant::from_unix_nanos(1_700_000_037_000_000_030);
    let off = (found[0].tb - middle).ceil_nanos().abs();
    assert!(off <= 1 && found[0].error.ceil_nanos() == 31, "{found:?}");
    assert_eq!(world.look(), []);
    let (status, detail) = world.status();
    assert!(status == "reachable" && detail.contains("5 s ago"), "{status}: {detail}");
    let third = visit(&world.host, 1_000_000_000, 40);
    world.add(third.clone());
    assert_eq!(world.look()[0].tf, third.ticks);
    // The estimate starts over, and needs all of them.
    world.reference.restart(world.now);
    assert_eq!(world.look().len(), 3);
}

#[test]
fn a_guess_moves_the_middle_and_widens_the_bounds_by_a_quarter_at_most() {
    let mut world = World::new();
    for (guess_ns, moved_ns, half_ns) in [(20, 0, 21), (23, 3, 24), (39, 5, 26), (-100, -5, 26)] {
        let guess = 1_700_000_000_000_000_000 + guess_ns;
        let guessed = Visit { guess_utc_ns: Some(guess), ..visit(&world.host, 4_000_000_000, 40) };
        world.add(guessed);
        let found = world.look()[0];
        let middle = Instant::from_unix_nanos(1_700_000_037_000_000_020 + moved_ns);
        let off = (found.tb - middle).ceil_nanos().abs();
        assert!(off <= 1 && found.error.ceil_nanos() == half_ns, "{guess_ns}: {found:?}");
    }
}

#[test]
fn what_is_of_another_boot_counter_or_moment_says_nothing() {
    for (change, status, text) in [
        ((|v| v.boot_id = "0".repeat(32)) as fn(&mut Visit), "old", "booted since"),
        (|v| v.counter = "tsc".to_owned(), "old", "the counter was tsc"),
        (|v| v.suspended_ns -= 2_000_000, "old", "suspended since"),
        (|v| v.ticks += 1 << 60, "future", "another machine's"),
    ] {
        let mut world = World::new();
        let mut odd = visit(&world.host, 1_000_000_000, 40);
        change(&mut odd);
        world.add(odd);
        assert_eq!(world.look(), []);
        let told = world.status();
        assert!(told.0 == status && told.1.contains(text), "{told:?}");
    }
}

#[test]
fn a_file_that_is_missing_damaged_or_open_to_others_is_said() {
    let mut world = World::new();
    assert_eq!(world.look(), []);
    let told = world.status();
    assert!(told.0 == "no-file" && told.1.contains("cluster bootstrap --seed"), "{told:?}");
    std::fs::write(&world.file, "{\"version\":1,\"visits\":[{").unwrap();
    assert_eq!(world.look(), []);
    assert!(world.status().1.contains("not understood"), "{:?}", world.status());
    let one = visit(&world.host, 1_000_000_000, 40);
    world.add(one);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&world.file, open).unwrap();
    assert_eq!(world.look(), []);
    assert!(world.status().1.contains("may write it"), "{:?}", world.status());
}
