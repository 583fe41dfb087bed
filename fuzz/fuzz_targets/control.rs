//! Lines on the control socket, both ways: what is understood means the same when it is sent again,
//! every error can be answered, VM names are safe as file names, and how the stream is cut does not
//! matter.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::pieces;
use timevisor_protocols::control::{ClientCodec, ControlError, Request, Response, ServerCodec};
use timevisor_protocols::line::LineReader;

fuzz_target!(|data: &[u8]| {
    let [first, second, stream @ ..] = data else { return };
    check_lines(stream, *first, *second);
    let whole = ServerCodec::default().on_bytes(stream);
    let mut codec = ServerCodec::default();
    let cut: Vec<_> = pieces(stream, *first, *second).flat_map(|p| codec.on_bytes(p)).collect();
    assert_same(&whole, &cut);
    whole.iter().for_each(check_request);
    let whole = ClientCodec::default().on_bytes(stream);
    let mut codec = ClientCodec::default();
    let cut: Vec<_> = pieces(stream, *first, *second).flat_map(|p| codec.on_bytes(p)).collect();
    assert_same(&whole, &cut);
    whole.iter().flatten().for_each(check_response);
});

fn assert_same(one: &impl Debug, other: &impl Debug) {
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}

/// The bound on a line's length, which no input here is long enough to reach in the codecs.
fn check_lines(stream: &[u8], first: u8, max: u8) {
    let max = usize::from(max);
    let mut reader = LineReader::new(max);
    for piece in pieces(stream, first, first) {
        let lines = reader.feed(piece);
        assert!(lines.iter().flatten().all(|line| line.len() <= max && !line.contains(&b'\n')));
        assert!(reader.pending() <= max + 1);
    }
}

fn check_request(read: &Result<Request, ControlError>) {
    match read {
        Ok(request) => {
            let line = ClientCodec::encode(request).expect("it came in a line");
            let again = ServerCodec::default().on_bytes(&line);
            assert!(matches!(&again[..], [Ok(same)] if same == request), "{again:?}");
            if let Request::VmRemove(vm) = request {
                let path = std::path::Path::new("/base").join(&vm.name);
                assert_eq!(path.parent(), Some(std::path::Path::new("/base")));
            }
        }
        Err(error) => {
            let line = ServerCodec::encode(&error.to_response()).expect("an error is short");
            let answer = ClientCodec::default().on_bytes(&line);
            assert!(matches!(&answer[..], [Ok(Response::Error(_))]), "{answer:?}");
        }
    }
}

/// The floats of a status are read to within a unit in the last place only, so it need not compare
/// equal.
fn check_response(response: &Response) {
    let line = ServerCodec::encode(response).expect("it came in a line");
    let again = ClientCodec::default().on_bytes(&line);
    let [Ok(again)] = &again[..] else { panic!("{again:?}") };
    assert_eq!(std::mem::discriminant(again), std::mem::discriminant(response));
    if !matches!(response, Response::Status(_)) {
        assert_eq!(again, response);
    }
}
