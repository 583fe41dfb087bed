//! The control protocol: golden lines (the documented JSON), round trips, and clear errors.

use proptest::prelude::*;
use timevisor_protocols::control::codec::MAX_REQUEST_LEN;
use timevisor_protocols::control::{
    ClientCodec, ClockStatus, ClockSummary, ControlError, CounterSummary, ElapsedSince, ErrorBody,
    ErrorCode, LeapSummary, Notice, Now, Reference, Request, Response, ServerCodec, Status,
    TimeType, Timescale, UserNamespace, VmAdd, VmList, VmMigrate, VmNotice, VmPrepare, VmPrepared,
    VmRemove, VmRemoved, VmRow,
};

fn request_error(line: &str) -> String {
    let mut results = ServerCodec::default().on_bytes(format!("{line}\n").as_bytes());
    assert_eq!(results.len(), 1);
    let Response::Error(body) = results.remove(0).expect_err("a mistake").to_response() else {
        panic!("not an error")
    };
    format!("{:?}: {body}", body.code)
}

fn vm() -> VmRow {
    VmRow {
        qemu_name: None,
        name: "db1".into(),
        pid: 4711,
        accelerator: "kvm".into(),
        delivery: "vmclock".into(),
        mapping: "tsc-offset".into(),
        status: "synchronized".into(),
        reason: None,
        time_type: TimeType::Tai,
        pages_published: 12,
        disruption_marker: 1,
        notice: Notice::None,
        migration: None,
        arrived: false,
        elapsed_since: None,
    }
}

fn status() -> Status {
    Status {
        version: "0.1.0".into(),
        pid: 100,
        uptime_s: 3600,
        host_id: "5f0c".into(),
        counter: CounterSummary {
            name: "x86-tsc".into(),
            hz: Some(2.5e9),
            reason: None,
            problem: None,
        },
        clock: ClockSummary {
            status: ClockStatus::FreeRunning,
            reason: Some("no reference answers".into()),
            timescale: Timescale::Tai,
            half_width_ns: Some(40_000),
            below_ns: Some(30_000),
            above_ns: Some(50_000),
            estimated_error_ns: Some(1800),
            rate_bound_ppb: Some(15_000.0),
            since_update_s: Some(20.5),
            contradictions: 0,
            assumption: None,
            wander_per_s: None,
            oscillator_problem: None,
        },
        references: vec![Reference {
            name: "ntp1".into(),
            kind: "ntp".into(),
            status: "reachable".into(),
            detail: "the server answers".into(),
            stratum: Some(1),
            offset_ns: Some(-1200),
            rtt_ns: Some(80_000),
            accepted: 9,
            rejected: [("late".to_owned(), 2)].into(),
            reach: "377".into(),
            poll_s: 16.0,
            polling: None,
            shares_vote_with: Vec::new(),
            suggestion: None,
        }],
        leap_table: LeapSummary {
            expires_unix: Some(1_800_000_000),
            tai_offset: Some(37),
            problem: None,
            warning: None,
        },
        discipline: None,
        server: None,
        thread_ages: None,
        vms: 1,
    }
}

/// Every shape with its line. These lines are a promise to other programs.
fn golden_responses() -> Vec<(Response, &'static str)> {
    let now = Now {
        timeline: "host".into(),
        timescale: Timescale::Utc,
        earliest_ns: Some(1_800_000_000_000_000_000),
        estimate_ns: Some(1_800_000_000_000_000_020),
        latest_ns: Some(1_800_000_000_000_000_041),
        status: ClockStatus::Synchronized,
        estimated_error_ns: Some(3),
        disruption: 7,
        counter: u64::MAX,
    };
    let unset = Now {
        earliest_ns: None,
        estimate_ns: None,
        latest_ns: None,
        estimated_error_ns: None,
        status: ClockStatus::Initializing,
        ..now.clone()
    };
    vec![
        (
            Response::Now(now),
            r#"{"v":1,"response":{"now":{"timeline":"host","timescale":"utc","earliest_ns":1800000000000000000,"estimate_ns":1800000000000000020,"latest_ns":1800000000000000041,"status":"synchronized","estimated_error_ns":3,"disruption":7,"counter":18446744073709551615}}}"#,
        ),
        (
            Response::Now(unset),
            r#"{"v":1,"response":{"now":{"timeline":"host","timescale":"utc","earliest_ns":null,"estimate_ns":null,"latest_ns":null,"status":"initializing","estimated_error_ns":null,"disruption":7,"counter":18446744073709551615}}}"#,
        ),
        (
            Response::VmList(VmList { vms: vec![vm()], not_served: Vec::new() }),
            r#"{"v":1,"response":{"vm_list":{"vms":[{"name":"db1","pid":4711,"accelerator":"kvm","delivery":"vmclock","mapping":"tsc-offset","status":"synchronized","reason":null,"time_type":"tai","pages_published":12,"disruption_marker":1}]}}}"#,
        ),
        (
            Response::VmAdded(VmRow { migration: Some("leaving".into()), ..vm() }),
            r#"{"v":1,"response":{"vm_added":{"name":"db1","pid":4711,"accelerator":"kvm","delivery":"vmclock","mapping":"tsc-offset","status":"synchronized","reason":null,"time_type":"tai","pages_published":12,"disruption_marker":1,"migration":"leaving"}}}"#,
        ),
        (
            Response::VmRemoved(VmRemoved { name: "db1".into() }),
            r#"{"v":1,"response":{"vm_removed":{"name":"db1"}}}"#,
        ),
        (
            Response::VmPrepared(VmPrepared {
                name: "db1".into(),
                time_type: TimeType::Utc,
                page: Some("/run/timevisor/vm/db1.page".into()),
                ssdt: Some("/run/timevisor/vm/db1.aml".into()),
                monitor: None,
            }),
            r#"{"v":1,"response":{"vm_prepared":{"name":"db1","time_type":"utc","page":"/run/timevisor/vm/db1.page","ssdt":"/run/timevisor/vm/db1.aml"}}}"#,
        ),
        (
            Response::VmList(VmList {
                vms: Vec::new(),
                not_served: vec!["process 7 is not served".into()],
            }),
            r#"{"v":1,"response":{"vm_list":{"vms":[],"not_served":["process 7 is not served"]}}}"#,
        ),
        (
            Response::Error(ErrorBody {
                code: ErrorCode::NotFound,
                message: "no VM is called db2".into(),
                next_step: "see timevisor vm list".into(),
            }),
            r#"{"v":1,"response":{"error":{"code":"not_found","message":"no VM is called db2","next_step":"see timevisor vm list"}}}"#,
        ),
        (
            Response::Status(Box::new(status())),
            r#"{"v":1,"response":{"status":{"version":"0.1.0","pid":100,"uptime_s":3600,"host_id":"5f0c","counter":{"name":"x86-tsc","hz":2500000000.0},"clock":{"status":"freerunning","reason":"no reference answers","timescale":"tai","half_width_ns":40000,"below_ns":30000,"above_ns":50000,"estimated_error_ns":1800,"rate_bound_ppb":15000.0,"since_update_s":20.5,"contradictions":0},"references":[{"name":"ntp1","kind":"ntp","status":"reachable","detail":"the server answers","stratum":1,"offset_ns":-1200,"rtt_ns":80000,"accepted":9,"rejected":{"late":2},"reach":"377","poll_s":16.0}],"leap_table":{"expires_unix":1800000000,"tai_offset":37,"problem":null},"vms":1}}}"#,
        ),
    ]
}

#[test]
fn responses_are_the_documented_lines() {
    for (response, line) in golden_responses() {
        assert_eq!(
            String::from_utf8(ServerCodec::encode(&response).unwrap()).unwrap(),
            format!("{line}\n")
        );
        let back =
            ClientCodec::default().on_bytes(format!("{line}\n").as_bytes()).remove(0).unwrap();
        assert_eq!(back, response);
    }
}

#[test]
fn a_newer_daemon_may_add_fields() {
    let line = b"{\"v\":1,\"response\":{\"vm_removed\":{\"name\":\"db1\",\"since\":3}}}\n";
    let back = ClientCodec::default().on_bytes(line).remove(0).unwrap();
    assert_eq!(back, Response::VmRemoved(VmRemoved { name: "db1".into() }));
}

#[test]
fn requests_are_the_documented_lines() {
    let golden = [
        (Request::Status, r#"{"v":1,"request":"status"}"#),
        (Request::Now, r#"{"v":1,"request":"now"}"#),
        (Request::VmList, r#"{"v":1,"request":"vm_list"}"#),
        (
            Request::VmAdd(VmAdd { pid: Some(9), ..VmAdd::default() }),
            r#"{"v":1,"request":{"vm_add":{"pid":9,"resume":false}}}"#,
        ),
        (
            Request::VmAdd(VmAdd {
                qmp: Some("/run/q".into()),
                pid: None,
                name: Some("db1".into()),
                time_type: Some(TimeType::Tai),
                resume: true,
                incoming: None,
                elapsed_since: None,
            }),
            r#"{"v":1,"request":{"vm_add":{"qmp":"/run/q","name":"db1","time_type":"tai","resume":true}}}"#,
        ),
        (
            Request::VmAdd(VmAdd {
                qmp: Some("/run/q".into()),
                incoming: Some("tcp:0:4444".into()),
                ..VmAdd::default()
            }),
            r#"{"v":1,"request":{"vm_add":{"qmp":"/run/q","resume":false,"incoming":"tcp:0:4444"}}}"#,
        ),
        (
            Request::VmMigrate(VmMigrate {
                name: "db1".into(),
                to: Some("tcp:b:4444".into()),
                drain_seconds: 0,
            }),
            r#"{"v":1,"request":{"vm_migrate":{"name":"db1","to":"tcp:b:4444"}}}"#,
        ),
        (
            Request::VmMigrate(VmMigrate { name: "db1".into(), to: None, drain_seconds: 0 }),
            r#"{"v":1,"request":{"vm_migrate":{"name":"db1"}}}"#,
        ),
        (
            Request::VmMigrate(VmMigrate {
                name: "db1".into(),
                to: Some("tcp:b:4444".into()),
                drain_seconds: 30,
            }),
            r#"{"v":1,"request":{"vm_migrate":{"name":"db1","to":"tcp:b:4444","drain_seconds":30}}}"#,
        ),
        (
            Request::VmNotice(VmNotice { name: "db1".into(), notice: Notice::Imminent }),
            r#"{"v":1,"request":{"vm_notice":{"name":"db1","notice":"imminent"}}}"#,
        ),
        (
            Request::VmRemove(VmRemove { name: "db1".into() }),
            r#"{"v":1,"request":{"vm_remove":{"name":"db1"}}}"#,
        ),
        (
            Request::VmPrepare(VmPrepare {
                name: "db1".into(),
                time_type: TimeType::Utc,
                user: 64055,
                user_namespace: UserNamespace::Other,
                files: true,
                address: None,
            }),
            r#"{"v":1,"request":{"vm_prepare":{"name":"db1","time_type":"utc","user":64055,"user_namespace":"other","files":true}}}"#,
        ),
    ];
    for (request, line) in golden {
        assert_eq!(
            String::from_utf8(ClientCodec::encode(&request).unwrap()).unwrap(),
            format!("{line}\n")
        );
        assert_eq!(
            ServerCodec::default().on_bytes(format!("{line}\n").as_bytes()).remove(0).unwrap(),
            request
        );
    }
}

#[test]
fn mistakes_are_named() {
    for (line, part) in [
        ("hello", "BadRequest: the request is not JSON"),
        ("", "BadRequest: the request is not JSON"),
        ("[1]", "not an object with \"v\" and \"request\""),
        (r#"{"request":"now"}"#, "not an object with \"v\" and \"request\""),
        (r#"{"v":1,"response":"now"}"#, "not an object with \"v\" and \"request\""),
        (r#"{"v":1,"request":"now","extra":0}"#, "and nothing else"),
        (
            r#"{"v":2,"request":{"new_thing":1}}"#,
            "Version: the request has protocol version 2, but the daemon speaks 1; install",
        ),
        (r#"{"v":1,"request":"nwo"}"#, "unknown variant `nwo`"),
        (r#"{"v":1,"request":{"vm_add":{"pdi":1}}}"#, "unknown field `pdi`"),
        (r#"{"v":1,"request":{"vm_remove":{}}}"#, "missing field `name`"),
        (
            r#"{"v":1,"request":{"vm_prepare":{"name":"a","time_type":"gps"}}}"#,
            "unknown variant `gps`",
        ),
        (r#"{"v":1,"request":{"vm_remove":{"name":"../x"}}}"#, "contains '/'"),
    ] {
        let text = request_error(line);
        assert!(text.contains(part), "{line} gave {text}");
    }
}

#[test]
fn an_oversize_line_is_an_error_and_the_next_request_still_counts() {
    let mut server = ServerCodec::default();
    let mut results = server.on_bytes(&vec![b' '; MAX_REQUEST_LEN + 1]);
    assert!(matches!(results.remove(0), Err(ControlError::TooLong(_))));
    let results = server.on_bytes(b"  \n{\"v\":1,\"request\":\"now\"}\n");
    assert!(matches!(results[..], [Ok(Request::Now)]), "{results:?}");
}

#[test]
fn what_the_server_would_refuse_is_not_sent() {
    let long = Request::VmAdd(VmAdd { qmp: Some("x".repeat(MAX_REQUEST_LEN)), ..VmAdd::default() });
    assert!(matches!(ClientCodec::encode(&long), Err(ControlError::TooLong(_))));
    let escaping = Request::VmRemove(VmRemove { name: "..".into() });
    assert!(matches!(ClientCodec::encode(&escaping), Err(ControlError::Name(_))));
}

#[test]
fn a_cut_off_answer_shows() {
    let mut client = ClientCodec::default();
    assert!(client.on_bytes(b"{\"v\":1,\"resp").is_empty());
    assert_eq!(client.pending(), 12);
}

#[test]
fn ten_thousand_vms_fit() {
    let vms = (0..10_000).map(|i| VmRow { name: format!("vm{i:060}"), ..vm() }).collect();
    let line =
        ServerCodec::encode(&Response::VmList(VmList { vms, not_served: Vec::new() })).unwrap();
    assert!(matches!(ClientCodec::default().on_bytes(&line)[..], [Ok(Response::VmList(_))]));
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,20}"
}

prop_compose! {
    fn vm_add()(
        qmp in prop::option::of(text()), pid in any::<Option<u32>>(), name in prop::option::of("[a-z][a-z0-9._-]{0,20}"),
        time_type in prop::option::of(prop_oneof![Just(TimeType::Tai), Just(TimeType::Utc)]), resume in any::<bool>(),
        incoming in prop::option::of(text()),
        elapsed_since in prop::option::of((any::<i64>(), 1..i64::MAX)),
    ) -> VmAdd {
        let elapsed_since = elapsed_since.map(|(tai_ns, within_ns)| ElapsedSince { tai_ns, within_ns });
        VmAdd { qmp, pid, name, time_type, resume, incoming, elapsed_since }
    }
}

proptest! {
    #[test]
    fn requests_round_trip(add in vm_add(), cut in any::<prop::sample::Index>()) {
        let request = Request::VmAdd(add);
        let line = ClientCodec::encode(&request).unwrap();
        let mut server = ServerCodec::default();
        let (head, tail) = line.split_at(cut.index(line.len()));
        prop_assert!(server.on_bytes(head).is_empty());
        prop_assert_eq!(server.on_bytes(tail).remove(0).unwrap(), request);
    }

    #[test]
    fn rows_round_trip_whatever_the_texts(
        name in text(), reason in prop::option::of(text()), pages_published in any::<u64>(), disruption_marker in any::<u64>(),
    ) {
        let response = Response::VmAdded(VmRow { name, reason, pages_published, disruption_marker, ..vm() });
        let line = ServerCodec::encode(&response).unwrap();
        prop_assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1, "one line");
        prop_assert_eq!(ClientCodec::default().on_bytes(&line).remove(0).unwrap(), response);
    }

    #[test]
    fn garbage_never_panics_and_always_has_an_answer(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\"v:1,request\n".to_vec())], 0..300),
    ) {
        for result in ServerCodec::default().on_bytes(&bytes) {
            if let Err(error) = result {
                prop_assert!(matches!(error.to_response(), Response::Error(body) if !body.next_step.is_empty()));
            }
        }
        let _ = ClientCodec::default().on_bytes(&bytes);
    }
}
