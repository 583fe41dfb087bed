//! Everything that touches the kernel or the processor: the only room with system calls, ioctls and assembly.
//!
//! | module | owns |
//! | --- | --- |
//! | [`adjust`] | the kernel's clock discipline: reading, steering, restoring (clock_adjtime) |
//! | [`counter`] | [`counter::HostCounter`] and the choice of one; calibration |
//! | [`clock`] | the kernel's clocks, read only; brackets |
//! | [`datagram`] | Unix datagram sockets: chronyd's and ptp4l's management sockets |
//! | [`mapping`] | [`mapping::SharedMapping`]: shared memory as an address and a length |
//! | [`page`] | a mapped page as timevisor-clock-page's `Page` |
//! | [`page_file`] | page files: ownership, size, one writer |
//! | [`udp`] | a UDP client with kernel stamps |
//! | [`udp_server`] | a UDP server: batches, kernel stamps, replies from the address that was asked |
//! | [`stamps`] | kernel stamps to counter bounds |
//! | [`peer`] | the process at the other end of a Unix socket |
//! | [`phc`] | PTP hardware clocks, read only |
//! | [`poll`], [`signals`], [`notify`] | a daemon's waiting, ending and telling systemd |
//! | [`process`] | /proc: what runs, with which files and mappings; other processes' memory, read only |
//! | [`kvm`] | whether KVM really runs guests here |
//!
//! What it does not do: decide anything. Algorithms live in rooms without system calls.

pub mod adjust;
pub mod clock;
pub mod counter;
pub mod datagram;
pub mod kvm;
pub mod mapping;
pub mod notify;
pub mod page;
pub mod page_file;
pub mod peer;
pub mod phc;
pub mod poll;
pub mod process;
pub mod signals;
pub mod stamps;
pub mod udp;
pub mod udp_server;
