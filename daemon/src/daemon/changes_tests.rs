//! Reloads, in a daemon whose event loop does not run. One test, because a process has one daemon: it
//! handles the process's signals.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::config::span;

/// Nobody is asked, because no timer runs.
const BASE: &str = "[[reference]]\ntype = \"ntp\"\naddress = \"192.0.2.1\"\n";

struct Bench {
    _folder: tempfile::TempDir,
    head: String,
    text: Rc<RefCell<String>>,
    daemon: Daemon,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("run");
        let head = format!("run_directory = {directory:?}\ncounter = \"monotonic-raw\"\n{BASE}");
        let text = Rc::new(RefCell::new(head.clone()));
        let read = Rc::clone(&text);
        let load = move || -> Result<(Config, String)> {
            Ok((Config::parse(&read.borrow())?, "the file".to_owned()))
        };
        let daemon = Daemon::start(load().unwrap().0, Box::new(load)).unwrap();
        Self { _folder: folder, head, text, daemon }
    }

    /// Reloads a file with these tables besides.
    fn reload(&mut self, tables: &str) -> Result<Changed> {
        *self.text.borrow_mut() = format!("{}{tables}\n", self.head);
        self.daemon.reload()
    }

    /// Reloads it, and returns the tables that are in force now.
    fn applied(&mut self, tables: &str) -> Vec<String> {
        let Changed { changes, restart } = self.reload(tables).unwrap();
        assert_eq!(restart, Vec::<String>::new(), "{tables}");
        let table = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
        changes.iter().map(table).collect()
    }
}

#[test]
fn a_reload_applies_what_it_says_and_names_the_rest() {
    let mut bench = Bench::new();
    assert_eq!(bench.applied(""), Vec::<String>::new(), "the same file");

    // Reservations are made at the next look, and nobody looks for any without.
    let reserve = "[[guests.vm.a.reserve]]\nbudget = \"1ms\"\nperiod = \"10ms\"\n";
    assert_eq!(bench.daemon.reservations.poll_at(), Duration::MAX);
    assert_eq!(bench.applied(reserve), ["[guests]"]);
    assert_eq!(bench.daemon.reservations.poll_at(), Duration::ZERO);
    assert_eq!(bench.daemon.config.reservations().len(), 1);
    assert_eq!(bench.applied(""), ["[guests]"]);
    assert_eq!(bench.daemon.reservations.poll_at(), Duration::MAX);

    assert_eq!(bench.applied("[guests]\ndiscover = false"), ["[guests]"]);
    assert_eq!(bench.daemon.vms.poll_at(), Duration::MAX, "nobody is looked for");
    assert_eq!(bench.applied(""), ["[guests]"]);

    // Nothing is steered before the clock is synchronized, which it never is here.
    let slew = |bench: &Bench| bench.daemon.discipline.as_ref().map(|d| d.steering().max_slew_ppm);
    assert_eq!(slew(&bench), None);
    assert_eq!(bench.applied("[clock]\ndiscipline = true"), ["[clock]"]);
    assert_eq!(slew(&bench), Some(500));
    assert_eq!(bench.applied("[clock]\ndiscipline = true\nmax_slew_ppm = 100"), ["[clock]"]);
    assert_eq!(slew(&bench), Some(100));
    assert_eq!(bench.applied(""), ["[clock]"]);
    assert_eq!(slew(&bench), None);

    // A server whose socket somebody else has is missing, and status says so.
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    assert_eq!(bench.applied(&format!("[server]\nlisten = [\"{listen}\"]")), ["[server]"]);
    bench.daemon.start_server(monotonic());
    assert_eq!(bench.daemon.report_server(), None, "it is tried again for a while");
    bench.daemon.start_server(monotonic() + SERVER_RETRY + SERVER_PATIENCE);
    let missing = bench.daemon.report_server().unwrap();
    let problem = missing.problem.unwrap();
    assert!(problem.contains("correct [server] and reload"), "{problem}");
    assert_eq!(missing.listen, [listen.to_string()]);
    assert_eq!(bench.applied(""), ["[server]"]);
    assert_eq!(bench.daemon.report_server(), None);

    // What takes a restart is named, and stays as it was.
    let changed = bench.reload("[clock]\nvalidity = \"20s\"\nstale_after = \"95s\"").unwrap();
    assert_eq!(changed.changes, ["[clock] is in force as it is in the file"]);
    assert_eq!(
        changed.restart,
        ["clock.validity differs and takes `systemctl restart timevisord`"]
    );
    assert_eq!(span(bench.daemon.config.clock.validity), Duration::from_secs(10));
    assert_eq!(bench.daemon.config.stale_after(), Duration::from_secs(192), "3 polls of 64 s");
    assert_eq!(span(bench.daemon.config.clock.stale_after), Duration::from_secs(95));

    // A mistake changes nothing.
    let before = bench.daemon.config.clone();
    assert!(bench.reload("[guests]\ndiscover = false\n[clock]\nno_such_key = 1").is_err());
    let loop_error = bench.reload("[clock]\ndiscipline = true\n[[reference]]\ntype = \"system\"");
    assert!(format!("{:#}", loop_error.unwrap_err()).contains("a loop"));
    assert_eq!(bench.daemon.config, before);
    assert!(bench.daemon.discipline.is_none() && bench.daemon.references.len() == 1);

    // Whom a table does not reach is said.
    let changed = bench.reload("[introspection]\nkvm = \"port\"").unwrap();
    let attached = "[introspection] is in force as it is in the file, for guests that are attached from now on";
    assert!(changed.changes.iter().any(|line| line == attached), "{changed:?}");
}
