use timevisor_time::Duration;

use super::*;
use crate::ptp::datasets::{PortIdentity, TimeProperties};

fn master(id: u8) -> Master {
    let clock = [id; 8];
    Master { grandmaster: clock, parent: PortIdentity { clock, port: 1 } }
}

fn seen(id: u8, port: PortState, ingress_ns: i64, offset_ns: i64) -> State {
    State {
        port,
        master: master(id),
        measured_grandmaster: [id; 8],
        steps_removed: 1,
        mean_path_delay: Duration::from_micros(2),
        grandmaster_accuracy: 0x21,
        grandmaster_class: 6,
        time: TimeProperties {
            utc_offset: 37,
            utc_offset_valid: true,
            leap: 0,
            ptp_timescale: true,
            traceable: true,
        },
        own_utc_offset: 37,
        master_offset_ns: offset_ns,
        ingress_ns,
        grandmaster_present: true,
    }
}

use PortState::{Slave, Uncalibrated};

#[test]
fn the_first_sight_is_only_a_mark() {
    let mut settling = Settling::default();
    assert_eq!(settling.observe(&seen(1, Slave, 10, 5)), Err(Refusal::Unmeasured));
    // The same Sync again, and then the next one, with the same offset by chance.
    assert_eq!(settling.observe(&seen(1, Slave, 10, 5)), Err(Refusal::Unmeasured));
    assert_eq!(settling.observe(&seen(1, Slave, 20, 5)), Ok(()));
    // From then on a repeated answer is one.
    assert_eq!(settling.observe(&seen(1, Slave, 20, 5)), Ok(()));
}

/// A new master's Sync renews the time before anything renews the offset.
#[test]
fn an_old_offset_beside_a_new_time_is_not_taken() {
    let mut settling = Settling::default();
    for ingress in [10, 20] {
        let _ = settling.observe(&seen(1, Slave, ingress, 5));
    }
    let new = Err(Refusal::NewMaster(master(2)));
    assert_eq!(settling.observe(&seen(2, Uncalibrated, 0, 5)), new);
    for ingress in [30, 40, 50] {
        assert_eq!(settling.observe(&seen(2, Uncalibrated, ingress, 5)), new);
    }
    assert_eq!(settling.observe(&seen(2, Uncalibrated, 60, 900)), Ok(()));
}

/// The port's state is read after the measurement: SLAVE says nothing of one that came before.
#[test]
fn a_lock_counts_from_the_next_measurement() {
    let mut settling = Settling::default();
    settling.observe(&seen(2, Uncalibrated, 0, 5)).unwrap_err();
    settling.observe(&seen(2, Slave, 30, 5)).unwrap_err();
    settling.observe(&seen(2, Slave, 30, 5)).unwrap_err();
    assert_eq!(settling.observe(&seen(2, Slave, 40, 5)), Ok(()));
}

#[test]
fn a_new_utc_offset_waits_for_a_measurement_with_it() {
    let mut settling = Settling::default();
    for ingress in [10, 20] {
        let _ = settling.observe(&seen(1, Slave, ingress, 5));
    }
    let mut leapt = seen(1, Slave, 20, 5);
    leapt.time.utc_offset = 38;
    assert_eq!(settling.observe(&leapt), Err(Refusal::NewTimescale));
    assert_eq!(settling.observe(&leapt), Err(Refusal::NewTimescale));
    assert_eq!(settling.observe(&State { ingress_ns: 30, ..leapt }), Ok(()));
}

#[test]
fn a_round_of_two_pieces_is_not_taken() {
    let mut settling = Settling::default();
    for ingress in [10, 20] {
        let _ = settling.observe(&seen(1, Slave, ingress, 5));
    }
    let mixed = State { measured_grandmaster: [1; 8], ..seen(2, Slave, 30, 6) };
    assert_eq!(settling.observe(&mixed), Err(Refusal::NewMaster(master(2))));
    // Even if it was back at the next look.
    settling.observe(&seen(1, Slave, 40, 7)).unwrap_err();
    assert_eq!(settling.observe(&seen(1, Slave, 50, 8)), Ok(()));
}

#[test]
fn a_lost_lock_begins_anew_and_a_free_running_ptp4l_never_has_one() {
    let mut settling = Settling::default();
    for ingress in [10, 20] {
        let _ = settling.observe(&seen(1, Slave, ingress, 5));
    }
    settling.observe(&seen(1, Uncalibrated, 30, 5)).unwrap_err();
    settling.observe(&seen(1, Uncalibrated, 40, 5)).unwrap_err();
    assert_eq!(settling.observe(&seen(1, Uncalibrated, 50, 6)), Ok(()));
    assert_eq!(settling.observe(&seen(1, Uncalibrated, 60, 6)), Ok(()));
    settling.restart();
    settling.observe(&seen(1, Uncalibrated, 70, 6)).unwrap_err();
}
