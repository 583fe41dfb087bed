//! Our portable crates on 64-bit Arm: their own tests, the page with the real counter, and the
//! fences in machine code.

use anyhow::{Context as _, ensure};

use crate::arm::{self, ArmToolchain};
use crate::scenario::Context;

/// Tests that say nothing under emulation, by a part of their name.
const SKIPPED: &[&str] = &[
    // QEMU's user emulation counts by gettimeofday, in steps of a microsecond: 10 ppm of the test's
    // baseline.
    "this_machine_calibrates_within_ten_ppm",
    // Asks the host's kernel for the host's processor.
    "kvm::",
    // QEMU's user emulation knows neither the PTP ioctls nor the stamps of messages that are
    // received many at a time.
    "phc::ioctl::tests::what_is_no_ptp_clock_says_so",
    "udp_server::tests::",
];

/// A snapshot: the sequence before the counter, and the counter before the fence that the second
/// sequence load waits for.
const READER: &[&str] =
    &["ldar x", "isb", "cntvct_el0", "ldr xzr, [sp, x", "dmb ishld", "ldr x", "cmp"];
/// A publication: the odd sequences before the counter, the data before the even sequences.
const WRITER: &[&str] = &["dsb ish", "isb", "cntvct_el0", "stlr x", "stlr w"];

pub(crate) fn arm(ctx: &Context) -> anyhow::Result<String> {
    let toolchain = ArmToolchain::open(ctx.lab_dir())?;
    let version = toolchain.version()?;
    let mut args: Vec<&str> =
        "-p timevisor-time -p timevisor-clock-page -p timevisor-linux --lib --test arm_page"
            .split(' ')
            .collect();
    // Optimized is the crate whose machine code is looked at, and what it inlines.
    args.extend(["--config", "profile.dev.package.timevisor-linux.opt-level=2"]);
    // One test at a time: readers give up on a writer that is kept from its processor within an
    // update.
    args.extend(["--", "--show-output", "--test-threads=1"]);
    args.extend(SKIPPED.iter().flat_map(|name| ["--skip", name]));
    let run = toolchain.test(&args, &ctx.path("cargo.log"))?;

    let program = run.binary("tests/arm_page.rs")?;
    for (what, name, wanted) in
        [("reader", "<arm_page::read>", READER), ("writer", "PageWriter<P>::publish", WRITER)]
    {
        let functions = arm::functions(&program, name)?;
        ensure!(
            functions.iter().any(|f| arm::in_order(f, wanted)),
            "the {what}'s machine code does not have {wanted:?} in this order: {functions:#?}"
        );
    }
    let said = |start: &str| {
        let line = run.output.lines().find_map(|l| l.strip_prefix(start));
        line.with_context(|| format!("the page's test did not say {start:?}"))
    };
    let (counter, raced) = (said("counter: ")?, said("race: ")?);
    Ok(format!("rustc {version}, {} tests on aarch64, counter {counter}, {raced}", run.passed))
}
