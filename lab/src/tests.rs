//! The table of all lab tests; each module holds one family.

mod boot;
mod migrate;
mod network;
mod page;

use crate::scenario::Test;

/// Every test, in the order of `test all`.
pub const ALL: &[Test] = &[
    Test {
        name: "boot-6.1",
        about: "a kernel without the vmclock driver boots and has no /dev/vmclock0",
        run: boot::without_driver,
    },
    Test {
        name: "boot-7.2-vmclock",
        about: "QEMU 10's vmclock device is seen by a stock 7.2 kernel",
        run: boot::vmclock_device,
    },
    Test {
        name: "boot-7.2-nvdimm",
        about: "a page file behind a read-only nvdimm is a vmclock and a PTP clock to a stock 7.2 kernel",
        run: boot::nvdimm,
    },
    Test {
        name: "migrate-nvdimm",
        about: "the first read after a migration sees the destination host's page, on both QEMUs",
        run: migrate::nvdimm,
    },
    Test {
        name: "chronyd",
        about: "two chronyds serve time in their own network namespaces",
        run: network::chronyd,
    },
];
