//! A share of the random schedules in every `cargo test`; `make schedules` runs 100,000.

use super::{Judged, run};

#[test]
fn members_never_disagree_silently() {
    let mut all = Judged::default();
    (0..600).for_each(|seed| all.add(run(seed)));
    let shown: Vec<_> = all.wrong.iter().take(10).collect();
    assert!(all.wrong.is_empty(), "{} wrong, the first: {shown:#?}", all.wrong.len());
    // Without these the schedules would show nothing.
    assert!(all.fires > 2_000 && all.split > 30 && all.quiet > 1_000, "{all:?}");
    assert!(all.leases > 3_000 && all.releases > 300, "{all:?}");
}
