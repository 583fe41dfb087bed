//! Both ends of helpers: one that was tricked may answer anything, and only what was asked, or is of
//! a bounded length, is taken.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_guests::examine::message::{Answer, Answered, Asked};
use timevisor_guests::examine::{Question, Watch};
use timevisor_linux::helper::LONGEST;
use timevisor_linux::process::Process;
use timevisor_protocols::qmp::orders::LONGEST_REPORT;
use timevisor_protocols::qmp::{Order, Report};
use timevisor_time::Duration;

fuzz_target!(|data: &[u8]| {
    if let Ok(asked) = Asked::from_bytes(data) {
        assert_eq!(Asked::from_bytes(&asked.to_bytes()).unwrap(), asked);
    }
    if let Ok(order) = Order::from_bytes(data) {
        assert_eq!(Order::from_bytes(&order.to_bytes()).unwrap(), order);
    }
    if let Ok(report) = Report::from_bytes(data) {
        let bytes = report.to_bytes();
        assert!(bytes.len() <= LONGEST_REPORT && LONGEST_REPORT <= LONGEST);
        assert_eq!(Report::from_bytes(&bytes).unwrap(), report);
    }
    let Ok(answered) = Answered::from_bytes(data) else { return };
    let bytes = answered.to_bytes();
    assert!(bytes.len() <= LONGEST && Answered::from_bytes(&bytes).is_ok());
    if let Answer::Mapping(Ok(mapping)) = &answered.answer
        && let Some(mapping) = mapping.get()
    {
        let _ = mapping.guest_from_host(u64::MAX);
    }
    let now = Duration::from_secs(1);
    let mut watch = Watch::default();
    watch.ask(1, Process::new(7), Question::Examine, now).unwrap();
    watch.ask(2, Process::new(8), Question::Examine, now).unwrap();
    let taken = watch.answered(answered.number, now);
    assert_eq!(taken.is_some(), answered.number == 1);
});
