//! Tests with the real kernel that the maps of records can be given to anybody: nobody can write
//! them, and who was given them reads as the process that has loaded the programs.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};

use super::reader::{AgeReader, ReadError, Records};
use super::record::{FineAge, Service};
use super::{BpfError, ElapsedBpf, call};
use crate::affinity;
use crate::mapping::{Access, SharedMapping};

/// `None` where this process may not load programs, or has none.
fn programs() -> Option<ElapsedBpf> {
    match ElapsedBpf::start() {
        Ok(programs) => Some(programs),
        Err(BpfError::NotPermitted { .. } | BpfError::NotBuilt(_) | BpfError::NoTypes) => None,
        Err(other) => panic!("{other:?}"),
    }
}

/// All that a process could try with a descriptor. This one is root, and may no more than others.
fn attack(fd: &OwnedFd) {
    let code = call::update(fd.as_fd(), 0, 0).unwrap_err().raw_os_error();
    assert_eq!(code, Some(libc::EPERM), "an element was set");
    let file = || File::from(fd.try_clone().unwrap());
    assert!(SharedMapping::new(file(), 4096, Access::ReadWrite).is_err(), "mapped for writing");
    let mapping = SharedMapping::new(file(), 4096, Access::ReadOnly).unwrap();
    // SAFETY: the mapping's own pages; protection only changes if the kernel is wrong, and the test
    // fails then.
    let changed = unsafe {
        let address = mapping.as_ptr().as_ptr().cast();
        libc::mprotect(address, 4096, libc::PROT_READ | libc::PROT_WRITE)
    };
    assert_ne!(changed, 0, "made writable");
}

#[test]
fn nobody_can_write_the_records() {
    let Some(programs) = programs() else { return };
    let given = programs.descriptors().unwrap();
    for fd in &given {
        attack(fd);
    }
}

#[test]
fn a_client_reads_with_what_it_was_given() {
    let Some(programs) = programs() else { return };
    let [cores, tasks] = programs.descriptors().unwrap();
    let own = std::thread::scope(|scope| {
        let (programs, all) = (&programs, affinity::allowed().unwrap());
        let client = scope.spawn(move || {
            let pid = programs.own_pid().unwrap();
            let place = programs.register(pid, FineAge(5 << 32)).unwrap();
            let records = Records::read_only(cores, tasks).unwrap();
            let reader = AgeReader::new(records, place, pid);
            assert!(reader.settle());
            let mut last = FineAge(5 << 32);
            for turn in 0..50 {
                affinity::pin(all[turn % all.len()]).unwrap();
                for _ in 0..100 {
                    let age = reader.read().unwrap();
                    assert!(age > last);
                    last = age;
                }
            }
            programs.attend(Service::Serving).unwrap();
            reader.read().unwrap();
            programs.attend(Service::Parted).unwrap();
            assert_eq!(reader.read(), Err(ReadError::Parted));
            programs.attend(Service::Ended).unwrap();
            assert_eq!(reader.read(), Err(ReadError::Ended));
            programs.attend(Service::Serving).unwrap();
            programs.release(place, pid);
            assert_eq!(reader.read(), Err(ReadError::Gone));
            last
        });
        client.join().unwrap()
    });
    assert!(own.nanos() > 5);
}
