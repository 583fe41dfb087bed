//! Everything that touches the kernel or the processor: the only crate with system calls, ioctls
//! and assembly.
//!
//! | module | owns |
//! | --- | --- |
//! | [`adjust`] | the kernel's clock discipline: reading, steering, restoring (clock_adjtime) |
//! | [`affinity`] | which processors exist, which one runs a thread |
//! | [`counter`] | [`counter::HostCounter`] and the choice of one; calibration |
//! | [`clockbound_segment`] | shared memory that clients of AWS ClockBound map |
//! | [`clock`] | the kernel's clocks, read only; brackets |
//! | [`cpu_limit`] | limits a thread's processor time: cgroup v1 and v2 |
//! | [`cpuset`] | exclusive processors for threads: cgroup v1 and v2 |
//! | [`confine`] | gives up what a process does not need: user, capabilities, system calls |
//! | [`introspector`] | what is left to the process that introspects VMs |
//! | [`helper`] | this program once more, as a process that may hang or crash |
//! | [`crash_file`] | a file that survives a crash, for undoing changes of the host |
//! | [`state_file`] | files of state: read and replaced without being led astray |
//! | [`lock_file`] | one holder, and nobody else can get at the lock |
//! | [`descriptors`] | how many descriptors this process may have, and keeping some free |
//! | [`datagram`] | Unix datagram sockets: chronyd's and ptp4l's management sockets |
//! | [`mapping`] | [`mapping::SharedMapping`]: shared memory as an address and a length |
//! | [`page`] | a mapped page as timevisor-clock-page's `Page` |
//! | [`page_file`] | page files: ownership, size, one writer |
//! | [`truncation`] | survives SIGBUS on a page that was truncated |
//! | [`freezer`] | freezes and thaws control groups: cgroup v1 and v2 |
//! | [`file_system`] | whether files are in memory or on a disk |
//! | [`foreign_memory`] | shared memory that another process hands over by a descriptor |
//! | [`append_file`] | append-only record files |
//! | [`clock_set`] | whether CLOCK_REALTIME has been set |
//! | [`route_watch`] | tells when routes or addresses change (netlink) |
//! | [`tcp_listener`] | a TCP server's socket |
//! | [`udp`] | a UDP client with kernel stamps |
//! | [`udp_server`] | a UDP server: batches, kernel stamps, replies from the address that the request was sent to |
//! | [`stamps`] | converts kernel stamps to counter bounds |
//! | [`peer`] | the process and the user at the other end of a Unix socket |
//! | [`seqpacket`] | Unix sockets of packets, which may bring descriptors along |
//! | `passing` | descriptors in messages |
//! | [`last_words`] | a connection that sends a last message when this process ends |
//! | [`virtio_port`] | a guest's end of a virtio-serial port |
//! | [`vsock`] | stream sockets between a host and its guests |
//! | [`pci`] | clock pages in the memory of a guest's ivshmem device |
//! | [`gpio`] | GPIO lines: events with the kernel's stamps, outputs |
//! | `ioctl` | device calls, each with the structure that its number was made for |
//! | [`phc`] | PTP hardware clocks: reading, pins |
//! | [`poll`], [`signals`], [`notify`] | a daemon's event loop, termination signals and systemd notifications |
//! | [`event_fd`], [`timer_fd`] | a flag and a timer as descriptors |
//! | [`process`] | /proc: processes with their users, files and mappings; other processes' memory, read only |
//! | [`users`] | users by name |
//! | [`topology`] | which processors share a core, are near in memory, or are left alone by the kernel |
//! | [`scheduling`] | a thread's scheduling policy, and the processor time it has received |
//! | `bpf` | RVEC (x86-64): reading ages, and with feature `bpf` the BPF programs that keep them |
//! | [`elapsed_source`] | the source of elapsed time on this host, and why it was chosen |
//! | [`kvm`] | whether KVM can actually run guests here |
//!
//! What it does not do: decide anything. Algorithms live in crates without system calls.

pub mod adjust;
pub mod affinity;
pub mod append_file;
#[cfg(target_arch = "x86_64")]
pub mod bpf;
pub mod clock;
pub mod clock_set;
pub mod clockbound_segment;
pub mod confine;
pub mod counter;
pub mod cpu_limit;
pub mod cpuset;
pub mod crash_file;
pub mod datagram;
pub mod descriptors;
pub mod elapsed_source;
pub mod event_fd;
pub mod file_system;
pub mod foreign_memory;
pub mod freezer;
pub mod gpio;
pub mod helper;
pub mod introspector;
mod ioctl;
pub mod kvm;
pub mod last_words;
pub mod lock_file;
pub mod mapping;
pub mod notify;
pub mod page;
pub mod page_file;
mod passing;
pub mod pci;
pub mod peer;
pub mod phc;
pub mod poll;
pub mod process;
pub mod route_watch;
pub mod scheduling;
pub mod seqpacket;
pub mod signals;
pub mod stamps;
pub mod state_file;
pub mod tcp_listener;
pub mod timer_fd;
pub mod topology;
pub mod truncation;
pub mod udp;
pub mod udp_server;
pub mod users;
pub mod virtio_port;
pub mod vsock;
