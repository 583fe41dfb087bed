//! Everything that touches the kernel or the processor: the only room with system calls, ioctls and
//! assembly.
//!
//! | module | owns |
//! | --- | --- |
//! | [`adjust`] | the kernel's clock discipline: reading, steering, restoring (clock_adjtime) |
//! | [`affinity`] | which processors there are, which one runs a thread |
//! | [`counter`] | [`counter::HostCounter`] and the choice of one; calibration |
//! | [`clock`] | the kernel's clocks, read only; brackets |
//! | [`cpu_limit`] | at most so much processor time for a thread: cgroup v1 and v2 |
//! | [`cpuset`] | processors of their own for threads: cgroup v1 and v2 |
//! | [`crash_file`] | a file that survives a crash, for undoing changes of the host |
//! | [`datagram`] | Unix datagram sockets: chronyd's and ptp4l's management sockets |
//! | [`mapping`] | [`mapping::SharedMapping`]: shared memory as an address and a length |
//! | [`page`] | a mapped page as timevisor-clock-page's `Page` |
//! | [`page_file`] | page files: ownership, size, one writer |
//! | [`append_file`] | files that records are appended to |
//! | [`clock_set`] | whether somebody has set CLOCK_REALTIME |
//! | [`udp`] | a UDP client with kernel stamps |
//! | [`udp_server`] | a UDP server: batches, kernel stamps, replies from the address that was asked |
//! | [`stamps`] | kernel stamps to counter bounds |
//! | [`peer`] | the process and the user at the other end of a Unix socket |
//! | [`last_words`] | a connection whose other end is told something when this process ends |
//! | [`virtio_port`] | a guest's end of a virtio-serial port |
//! | [`vsock`] | stream sockets between a host and its guests |
//! | [`pci`] | clock pages in the memory of a guest's ivshmem device |
//! | [`phc`] | PTP hardware clocks, read only |
//! | [`poll`], [`signals`], [`notify`] | a daemon's waiting, ending and telling systemd |
//! | [`event_fd`], [`timer_fd`] | a flag and a timer as descriptors |
//! | [`process`] | /proc: what runs, with which files and mappings; other processes' memory, read only |
//! | [`scheduling`] | a thread's policy, and the processor time that it had |
//! | `bpf` | RVEC by BPF programs (feature `bpf`, x86-64) |
//! | [`elapsed_source`] | what tells how long a thread has been running on this host, and why |
//! | [`kvm`] | whether KVM really runs guests here |
//!
//! What it does not do: decide anything. Algorithms live in rooms without system calls.

pub mod adjust;
pub mod affinity;
pub mod append_file;
#[cfg(all(feature = "bpf", target_arch = "x86_64"))]
pub mod bpf;
pub mod clock;
pub mod clock_set;
pub mod counter;
pub mod cpu_limit;
pub mod cpuset;
pub mod crash_file;
pub mod datagram;
pub mod elapsed_source;
pub mod event_fd;
pub mod kvm;
pub mod last_words;
pub mod mapping;
pub mod notify;
pub mod page;
pub mod page_file;
pub mod pci;
pub mod peer;
pub mod phc;
pub mod poll;
pub mod process;
pub mod scheduling;
pub mod signals;
pub mod stamps;
pub mod timer_fd;
pub mod udp;
pub mod udp_server;
pub mod virtio_port;
pub mod vsock;
