//! Our portable crates on 64-bit Arm: their own tests, the page with the real counter, and the
//! barriers in the machine code.

use anyhow::{Context as _, ensure};

use crate::arm::{self, ArmToolchain};
use crate::scenario::Context;

/// Tests that are meaningless under emulation, by a part of their name.
const SKIPPED: &[&str] = &[
    // QEMU's user emulation derives the counter from gettimeofday in steps of a microsecond, which
    // is 10 ppm of the test's baseline.
    "this_machine_calibrates_within_ten_ppm",
    // Queries the host's kernel about the host's processor.
    "kvm::",
    // QEMU's user emulation supports neither the ioctls of PTP clocks and GPIO chips nor timestamps of messages that are
    // received in batches.
    "phc::ioctl::tests::what_is_no_ptp_clock_says_so",
    "phc::pins::tests::what_is_no_ptp_clock_says_so",
    "gpio::tests::what_is_no_chip_says_so",
    "udp_server::tests::",
    // The emulator's signals and descriptors are its own: it ends a program whose handler for SIGBUS
    // was passed the fault on, and needs more than 40 descriptors. Not tested on Arm.
    "truncation::tests::what_is_not_ours_is_passed_on",
    "descriptors::tests::the_limit_is_raised_and_the_rest_is_counted",
    // A filter of system calls would be the emulator's, whose calls are this machine's. Not tested on
    // Arm.
    "confine::",
    // The emulator needs address space of its own, and its limits are not the kernel's.
    "introspector::",
];

/// A snapshot: the sequence is read before the counter, and the counter before the barrier that the
/// second sequence load waits for.
const READER: &[&str] =
    &["ldar x", "isb", "cntvct_el0", "ldr xzr, [sp, x", "dmb ishld", "ldr x", "cmp"];
/// A publication: the odd sequences are stored before the counter is read, the data before the even
/// sequences.
const WRITER: &[&str] = &["dsb ish", "isb", "cntvct_el0", "stlr x", "stlr w"];

pub(crate) fn arm(ctx: &Context) -> anyhow::Result<String> {
    let toolchain = ArmToolchain::open(ctx.lab_dir())?;
    let version = toolchain.version()?;
    let mut args: Vec<&str> =
        "-p timevisor-time -p timevisor-clock-page -p timevisor-linux --lib --test arm_page"
            .split(' ')
            .collect();
    // Optimizes the crate whose machine code is checked, along with what it inlines.
    args.extend(["--config", "profile.dev.package.timevisor-linux.opt-level=2"]);
    // One test at a time: readers give up on a writer that is preempted within an update.
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
