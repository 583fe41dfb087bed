//! The service with the real kernel, and clients that use the public library.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use timevisor::{ThreadAge, ThreadAgeError};
use timevisor_linux::counter::{HostCounter, HostMonotonicRaw};
use timevisor_linux::event_fd::EventFd;
use timevisor_linux::seqpacket::PacketStream;
use timevisor_protocols::ages::{ANSWER, Answer, SOCKET};

use super::service::Service;
use super::{Told, starting};

const PATIENCE: Duration = Duration::from_secs(60);

fn wait(told: &Told, done: impl Fn(&timevisor_protocols::control::ThreadAges) -> bool) {
    let begun = Instant::now();
    while !done(&told.lock().unwrap()) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", told.lock().unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn threads_get_ages_and_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let told: Told = Arc::new(Mutex::new(starting("monotonic-raw, because a test says so")));
    let stop = Arc::new(EventFd::new().unwrap());
    let service = Service {
        directory: folder.path().to_owned(),
        counter: HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL),
        why: "monotonic-raw, because a test says so".to_owned(),
        told: Arc::clone(&told),
        stop: Arc::clone(&stop),
    };
    let thread = std::thread::spawn(move || service.run());
    wait(&told, |told| told.state != "starting");
    let said = told.lock().unwrap().clone();
    if said.state == "serving" {
        served(folder.path(), &told);
        let age = ThreadAge::begin_in(folder.path()).unwrap();
        stop.set().unwrap();
        thread.join().unwrap();
        let over = age.now().unwrap_err();
        assert!(matches!(over, ThreadAgeError::Ended), "{over}");
    } else {
        // Not root, or without BPF: everybody is told why.
        assert_eq!(said.state, "unavailable");
        assert!(said.reason.contains("and not bpf, because"), "{said:?}");
        let begun = Instant::now();
        let refused = loop {
            match ThreadAge::begin_in(folder.path()).map(drop).unwrap_err() {
                ThreadAgeError::NotServed { .. } if begun.elapsed() < PATIENCE => {}
                error => break error,
            }
        };
        assert!(matches!(refused, ThreadAgeError::Refused(reason) if reason == said.reason));
        stop.set().unwrap();
        thread.join().unwrap();
    }
    let none = ThreadAge::begin_in(folder.path()).map(drop).unwrap_err();
    assert!(matches!(none, ThreadAgeError::NotServed { .. }), "{none}");
}

fn served(directory: &std::path::Path, told: &Told) {
    assert_eq!(ThreadAge::source_in(directory).unwrap(), "bpf, because a test says so");
    let age = ThreadAge::begin_in(directory).unwrap();
    let mut last = age.now().unwrap();
    for _ in 0..1_000 {
        let now = age.now().unwrap();
        assert!(now > last);
        last = now;
    }
    let twice = ThreadAge::begin_in(directory).map(drop).unwrap_err();
    assert!(twice.to_string().contains("already"), "{twice}");
    let path = directory.to_owned();
    let other = std::thread::spawn(move || {
        let age = ThreadAge::begin_in(&path).unwrap();
        age.now().unwrap();
        // The thread ends with the connection open: the record is taken back anyway.
        std::mem::forget(age);
    });
    other.join().unwrap();
    wait(told, |told| told.threads == 1 && told.last_apart_ppm.is_some());
    assert!(age.now().unwrap() > last);
    drop(age);
    wait(told, |told| told.threads == 0);
    drop(ThreadAge::begin_in(directory).unwrap());

    // What is no request is answered, too.
    for nonsense in [&b"nonsense"[..], &[0; 16], &[0xff; 4096]] {
        let stream = PacketStream::connect(&directory.join(SOCKET), PATIENCE).unwrap();
        stream.send(nonsense, &[]).unwrap();
        let mut buffer = [0; ANSWER];
        let (length, descriptors) = stream.receive(&mut buffer).unwrap();
        let answer = Answer::from_bytes(&buffer[..length]);
        assert!(matches!(answer, Some(Answer::Refused(reason)) if reason.contains("version")));
        assert!(descriptors.is_empty());
    }
}
