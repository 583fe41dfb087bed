use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timevisor_linux::poll::{PollFd, wait};
use timevisor_protocols::control::{
    ClientCodec, Request, Reservations, Response, Timelines, VmList, VmRemove,
};

use super::serving::{FRESH, MOST_OF_A_USER};
use super::{OBSERVERS, Observers};
use timevisor_linux::users::gid_of;

/// An event loop that answers, and counts how often; `work` runs beside it.
fn with_loop(work: impl FnOnce(&Path, &AtomicU64)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("observe");
    let observers = Observers::listen(&path).unwrap();
    let (over, reports) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut fds = [PollFd::readable(observers.fd())];
                wait(&mut fds, Some(Duration::from_millis(20))).unwrap();
                if let Some(question) = observers.asked() {
                    reports.fetch_add(1, Ordering::Relaxed);
                    let response = match question.request() {
                        Request::VmList => {
                            Response::VmList(VmList { vms: Vec::new(), not_served: Vec::new() })
                        }
                        Request::ReserveList => Response::Reservations(Reservations::default()),
                        _ => Response::Timelines(Timelines::default()),
                    };
                    observers.tell(question, response);
                }
            }
        });
        let worked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&path, &reports)));
        over.store(true, Ordering::Relaxed);
        worked.unwrap();
    });
    drop(observers);
    assert!(!path.exists());
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn answer(stream: &UnixStream) -> Response {
    let mut line = Vec::new();
    BufReader::with_capacity(1, stream).read_until(b'\n', &mut line).unwrap();
    ClientCodec::default().on_bytes(&line).remove(0).unwrap()
}

fn ask(mut stream: &UnixStream, request: &Request) -> Response {
    stream.write_all(&ClientCodec::encode(request).unwrap()).unwrap();
    answer(stream)
}

fn refused(response: &Response, word: &str) -> bool {
    matches!(response, Response::Error(error) if error.to_string().contains(word))
}

#[test]
fn questions_are_answered_and_everything_else_is_refused() {
    with_loop(|path, _| {
        let stream = connect(path);
        assert!(matches!(ask(&stream, &Request::VmList), Response::VmList(_)));
        assert!(matches!(ask(&stream, &Request::ReserveList), Response::Reservations(_)));
        for request in [
            Request::Reload,
            Request::VmRemove(VmRemove { name: "a".to_owned() }),
            Request::IntrospectPlugins,
        ] {
            assert!(refused(&ask(&stream, &request), "run as root"), "{request:?}");
        }
        (&stream).write_all(b"what?\n").unwrap();
        assert!(refused(&answer(&stream), "not JSON"));
        // The connection goes on.
        assert!(matches!(ask(&stream, &Request::VmList), Response::VmList(_)));
    });
}

#[test]
fn a_flood_costs_the_event_loop_a_few_reports() {
    with_loop(|path, reports| {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut stream = connect(path);
                    let request = ClientCodec::encode(&Request::VmList).unwrap();
                    // Several at once, as a flood comes.
                    for _ in 0..25 {
                        stream.write_all(&request.repeat(10)).unwrap();
                        for _ in 0..10 {
                            assert!(matches!(answer(&stream), Response::VmList(_)));
                        }
                    }
                });
            }
        });
        let windows = begun.elapsed().as_nanos() / u128::try_from(FRESH.floor_nanos()).unwrap();
        let made = u128::from(reports.load(Ordering::Relaxed));
        assert!(made <= windows + 2, "{made} reports for 2,000 requests in {windows} windows");
    });
}

#[test]
fn a_user_has_so_many_connections_and_is_told_when_they_are_used() {
    with_loop(|path, _| {
        let held: Vec<_> = (0..MOST_OF_A_USER).map(|_| connect(path)).collect();
        for stream in &held {
            ask(stream, &Request::VmList);
        }
        assert!(refused(&answer(&connect(path)), "too many connections"));
        drop(held);
        // A place is free as soon as the thread has noticed.
        let served = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let stream = connect(path);
            let sent = (&stream).write_all(&ClientCodec::encode(&Request::VmList).unwrap());
            sent.is_ok() && matches!(answer(&stream), Response::VmList(_))
        });
        assert!(served);
    });
}

#[test]
fn what_is_too_long_or_too_slow_ends() {
    with_loop(|path, _| {
        let stream = connect(path);
        (&stream).write_all(&[b'x'; 1500]).unwrap();
        (&stream).write_all(b"\n").unwrap();
        assert!(refused(&answer(&stream), "exceeds 1024 bytes"));
        let slow = connect(path);
        (&slow).write_all(b"{").unwrap();
        assert_eq!((&slow).read(&mut [0; 8]).unwrap(), 0, "the connection ends");
    });
}

#[test]
fn an_event_loop_that_hangs_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("observe");
    let observers = Observers::listen(&path).unwrap();
    assert!(refused(&ask(&connect(&path), &Request::VmList), "has not answered"));
    // Its answer comes after all, and the next client gets it.
    assert_eq!(observers.asked(), Request::VmList.question());
    observers.tell(Request::VmList.question().unwrap(), Response::Timelines(Timelines::default()));
    assert!(matches!(ask(&connect(&path), &Request::VmList), Response::Timelines(_)));
}

#[test]
fn its_file_is_for_root_and_the_group() {
    with_loop(|path, _| {
        let metadata = std::fs::metadata(path).unwrap();
        let mode = metadata.permissions().mode() & 0o777;
        // Without the group, or without the right to give the file to it, it is the owner's alone.
        match gid_of(OBSERVERS) {
            Some(group) if metadata.gid() == group => assert_eq!(mode, 0o660),
            _ => assert_eq!(mode, 0o600),
        }
    });
}
