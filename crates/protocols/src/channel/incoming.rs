//! What arrives at a server's end: frames found in the stream, and the requests in them, checked as
//! far as no session is needed.
//!
//! A daemon can do this in a thread without rights and give the result to [`super::server`].
//!
//! What it does not do: limit rates. The caller bounds the bytes of a turn and of a tenant, and a
//! byte costs at most a step of the checksum and of the JSON parser.

use super::frame::{Frame, FrameHeader};
use super::message::{Problem, ProblemCode, Request};
use super::problem;
use super::reader::{Direction, FrameReader, Received};

/// One frame.
#[derive(Clone, PartialEq, Debug)]
pub enum Incoming {
    /// A frame of this version.
    Request {
        /// The session's number, 0 for a hello.
        session: u64,
        /// The request's id.
        id: u64,
        /// The request, which has passed [`Request::check`], or what to tell the client instead.
        request: Result<Request, Problem>,
    },
    /// A whole frame of another version.
    OtherVersion(FrameHeader),
}

/// What some bytes have completed.
#[derive(Clone, PartialEq, Debug)]
pub struct Arrived {
    /// In order.
    pub requests: Vec<Incoming>,
    /// Bytes since the last frame's end.
    pub since_frame: u64,
}

/// Finds the requests in one stream.
#[derive(Clone, Debug)]
pub struct RequestReader(FrameReader);

impl Default for RequestReader {
    /// A reader for any position of a stream.
    fn default() -> Self {
        Self(FrameReader::new(Direction::ToServer))
    }
}

impl RequestReader {
    /// Reads the stream's next bytes.
    pub fn read(&mut self, bytes: &[u8]) -> Arrived {
        let requests = self.0.feed(bytes).into_iter().map(|received| match received {
            Received::Frame(Frame { header, payload }) => Incoming::Request {
                session: header.session,
                id: header.id,
                request: parse(&payload),
            },
            Received::OtherVersion(header) => Incoming::OtherVersion(header),
        });
        let requests = requests.collect();
        Arrived { requests, since_frame: self.0.since_frame() }
    }

    /// Returns the number of bytes that were not part of a frame.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.0.skipped()
    }
}

fn parse(payload: &[u8]) -> Result<Request, Problem> {
    let bad = |message: String| {
        let next_step = "check its spelling and that both ends have the same version";
        problem(ProblemCode::BadRequest, &shortened(&message), next_step)
    };
    let request: Request = serde_json::from_slice(payload)
        .map_err(|error| bad(format!("the request is not understood: {error}")))?;
    match request.check() {
        Ok(()) => Ok(request),
        Err(invalid) => Err(bad(invalid.to_string())),
    }
}

/// Shortens a peer's text for quoting.
fn shortened(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}
