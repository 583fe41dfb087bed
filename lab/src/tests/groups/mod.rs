//! Members of groups that act together at a time.

pub(crate) mod how_to;

use crate::scenario::Need::Root;
use crate::scenario::{Family, Test, Tier};

/// The family's table.
pub const FAMILY: Family = Family { name: "groups", tests: TESTS };

const TESTS: &[Test] = &[Test {
    name: "group-how-to",
    about: "the commands of docs/how-to/act-together.md: a bus, two members, a proposal that all three fire",
    tier: Tier::Test,
    needs: &[Root],
    seconds: 15,
    run: how_to::how_to,
}];
