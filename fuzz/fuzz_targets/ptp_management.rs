//! Datagrams in place of ptp4l's: a state needs all six answers of one round, and what follows
//! from it always admits that the clock is right.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, log_scaled, some_bytes};
use timevisor_protocols::ptp::management::{Id, get, parse};
use timevisor_protocols::ptp::{Assumptions, OffsetWindow, Query, State};
use timevisor_time::{Duration, RateError};

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = parse(data) {
        assert!(data[54..].starts_with(message.data));
    }
    decode(data, run);
});

fn run(u: &mut Unstructured) -> Result<()> {
    let (domain, transport) = (u.arbitrary()?, u.arbitrary::<u8>()? & 0xf);
    let mut query = Query::new(domain, transport);
    let mut window = OffsetWindow::new(Assumptions {
        grandmaster_accuracy: if u.arbitrary()? { Some(Duration::from_nanos(100)) } else { None },
        hop_error: Duration::from_micros(1),
        drift: RateError::from_ppm(1),
        drift_unlocked: RateError::from_ppm(100),
        accuracy: Duration::from_nanos(log_scaled(u)?),
        max_age: Duration::from_secs(10),
        arbitrary_is_utc: u.arbitrary()?,
    });
    let (mut sequence, mut answered) = (0, 0);
    while !u.is_empty() {
        if u.ratio(1, 8)? {
            let requests = query.begin();
            sequence = u16::from_be_bytes([requests[0][30], requests[0][31]]);
            answered = 0;
        }
        let (datagram, id) = datagram(u, sequence)?;
        match query.on_datagram(&datagram) {
            Ok(state) => {
                answered |= id.map_or(0, |id| 1 << id);
                assert_eq!(state.is_some(), answered == 0b11_1111);
                if let Some(state) = state {
                    judge(u, &mut window, &state)?;
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    Ok(())
}

/// Raw bytes, or a reply of this round with arbitrary data; the second is the data set's number.
fn datagram(u: &mut Unstructured, sequence: u16) -> Result<(Vec<u8>, Option<usize>)> {
    if u.ratio(1, 8)? {
        let raw = some_bytes(u)?.to_vec();
        let id = parse(&raw).ok().and_then(|m| Id::ALL.iter().position(|id| *id == m.id));
        return Ok((raw, id));
    }
    let number = u.int_in_range(0..=5)?;
    let mut reply = get(Id::ALL[number], 0, 0, sequence).to_vec();
    assert!(parse(&reply).is_err(), "a question is no answer");
    let ours: [u8; 10] = std::array::from_fn(|i| reply[20 + i]);
    reply[34..44].copy_from_slice(&ours);
    reply[46] = 2;
    let data = some_bytes(u)?;
    reply.extend(data);
    let length = u16::try_from(data.len() + 2).expect("it is short");
    reply[50..52].copy_from_slice(&length.to_be_bytes());
    Ok((reply, Some(number)))
}

fn judge(u: &mut Unstructured, window: &mut OffsetWindow, state: &State) -> Result<()> {
    let clock_ns = match u.arbitrary()? {
        true => u.arbitrary()?,
        false => state.ingress_ns.saturating_add(log_scaled(u)?),
    };
    match window.judge(state, clock_ns) {
        Ok(error) => {
            let measured = Duration::from_nanos(state.master_offset_ns).abs();
            assert!(measured + state.mean_path_delay <= error);
            assert!(state.grandmaster_present && state.port.follows());
            assert!(state.ingress_ns != 0 && state.mean_path_delay > Duration::ZERO);
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
    Ok(())
}
