//! Every lab test, by family: each folder's `mod.rs` holds the table of its tests.

pub(crate) mod cluster;
pub(crate) mod containers;
pub(crate) mod elapsed;
pub(crate) mod experiments;
pub(crate) mod faults;
pub(crate) mod groups;
pub(crate) mod guests;
pub(crate) mod hosts;
pub(crate) mod introspection;
pub(crate) mod libvirt;
pub(crate) mod migration;
pub(crate) mod packages;
pub(crate) mod pins;
pub(crate) mod reservations;
pub(crate) mod survival;
pub(crate) mod timelines;

use anyhow::Context as _;

use crate::scenario::Family;

/// Every family.
pub const FAMILIES: &[Family] = &[
    cluster::FAMILY,
    containers::FAMILY,
    elapsed::FAMILY,
    experiments::FAMILY,
    faults::FAMILY,
    groups::FAMILY,
    guests::FAMILY,
    hosts::FAMILY,
    introspection::FAMILY,
    libvirt::FAMILY,
    migration::FAMILY,
    packages::FAMILY,
    pins::FAMILY,
    reservations::FAMILY,
    survival::FAMILY,
    timelines::FAMILY,
];

/// How often a test that repeats one thing does so: the environment variable CYCLES, or else
/// `otherwise`.
pub(crate) fn cycles(otherwise: u32) -> anyhow::Result<u32> {
    std::env::var("CYCLES")
        .map_or(Ok(otherwise), |text| text.parse().context("CYCLES is to be a number"))
}
