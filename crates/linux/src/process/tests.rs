//! Tests of the /proc readers on this very process and on a child.

use super::*;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

fn us() -> Process {
    Process::open(std::process::id()).unwrap()
}

#[test]
fn we_find_ourselves() {
    let all = Process::all().unwrap();
    let ours: Vec<_> = all.iter().filter(|seen| seen.pid == us().pid()).collect();
    assert_eq!(ours[0].name, us().comm().unwrap());
    assert_eq!(
        ours,
        Process::all().unwrap().iter().filter(|s| s.pid == us().pid()).collect::<Vec<_>>()
    );
    assert!(us().is_running());
    assert_eq!(us().exe().unwrap(), std::env::current_exe().unwrap());
    assert_eq!(us().arguments().unwrap(), std::env::args().collect::<Vec<_>>());
    assert!(!us().comm().unwrap().is_empty());
}

#[test]
fn open_files_and_mappings_are_listed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = file.path().to_str().unwrap();
    let search = us().find_fds(usize::MAX, |target| target == name).unwrap();
    let [link] = search.found.as_slice() else { panic!("{search:?}") };
    assert_eq!(link.fd, u32::try_from(file.as_file().as_raw_fd()).unwrap());
    assert!(!search.cut);
    // Without a start time: QEMU's user emulation, under which the lab runs these tests for Arm, makes
    // up another one in each thread, and descriptors are duplicated in a thread of their own.
    let nameless = Process::new(std::process::id());
    let copy = std::fs::File::from(nameless.duplicate_fd(link.fd).unwrap());
    copy.write_all_at(b"through", 0).unwrap();
    assert_eq!(std::fs::read(file.path()).unwrap(), b"through");
    assert!(nameless.duplicate_fd(u32::MAX / 2).is_err());
    let ours = std::env::current_exe().unwrap();
    assert!(
        us().maps()
            .unwrap()
            .iter()
            .any(|map| map.path == ours.to_str().unwrap() && map.permissions == "r-xp")
    );
}

#[test]
fn a_process_runs_as_its_user() {
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let users = us().users().unwrap();
    assert_eq!((users.only(), users.real), (Some(owner), owner));
}

/// A process with very many descriptors costs no more than one with a few thousand.
#[test]
fn descriptors_are_looked_at_up_to_a_limit() {
    // In a child: other tests of this process look at its descriptors.
    let (ready, said) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: the child makes system calls only, until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = crate::descriptors::raise_limit(8192);
        // SAFETY: system calls that touch no memory but one byte.
        unsafe {
            let all = (0..5000).all(|_| libc::dup(ready.as_raw_fd()) >= 0);
            libc::write(ready.as_raw_fd(), [u8::from(all)].as_ptr().cast(), 1);
            loop {
                libc::pause();
            }
        }
    }
    let mut all = [0];
    std::io::Read::read_exact(&mut &said, &mut all).unwrap();
    let process = Process::open(u32::try_from(child).unwrap()).unwrap();
    let search = process.find_fds(usize::MAX, |_| true);
    let first = process.find_fds(1, |_| true);
    // SAFETY: a child of ours that has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    assert_eq!(all, [1], "this test needs a hard limit of some 5100 open files");
    let (search, first) = (search.unwrap(), first.unwrap());
    assert!(search.cut && search.found.len() <= MOST_DESCRIPTORS, "{}", search.found.len());
    assert_eq!((first.found.len(), first.cut), (1, false), "and no further than needed");
}

#[test]
fn map_lines_parse() {
    let map = text::map(
        "7f00-7fff r--p 00001000 fd:01 1234                       /usr/lib/a b (deleted)",
    )
    .unwrap();
    assert_eq!((map.start, map.end, map.offset, map.inode), (0x7f00, 0x7fff, 0x1000, 1234));
    assert_eq!((map.device.as_str(), map.path.as_str()), ("fd:01", "/usr/lib/a b (deleted)"));
    assert_eq!(text::map("7f00-7fff rw-p 00000000 00:00 0 ").unwrap().path, "");
    assert_eq!(text::map("7f00-7fff rw-p 00000000 00:00 0").unwrap().inode, 0);
    assert_eq!(text::map("nonsense"), None);
}

#[test]
fn memory_reads_what_is_there() {
    let secret = *b"timevisor reads memory";
    let memory = ProcessMemory::open(us()).unwrap();
    let mut buffer = [0; 22];
    memory.read_at(secret.as_ptr() as u64, &mut buffer).unwrap();
    assert_eq!(buffer, secret);
    assert!(matches!(memory.read_at(16, &mut buffer), Err(ProcessError::Read { .. })));
}

#[test]
fn an_ended_process_is_gone_everywhere() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::open(child.id()).unwrap();
    let memory = ProcessMemory::open(process).unwrap();
    let pidfd = PidFd::open(process).unwrap();
    assert!(!pidfd.has_ended());
    // Another process with the same pid would have a different start time.
    let reused = Process { started: process.started.map(|ticks| ticks + 1), ..process };
    assert!(!reused.is_running() && matches!(PidFd::open(reused), Err(ProcessError::Gone(_))));

    child.kill().unwrap();
    while !pidfd.has_ended() {
        std::thread::yield_now();
    }
    // A zombie has ended, although its pid still exists.
    assert!(!process.is_running());
    child.wait().unwrap();
    assert!(matches!(process.comm(), Err(ProcessError::Gone(_))));
    assert!(matches!(memory.read_at(0x1000, &mut [0]), Err(ProcessError::Gone(_))));
    assert!(matches!(PidFd::open(process), Err(ProcessError::Gone(_))));
}
