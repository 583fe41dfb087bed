//! Converts between lines and messages, for both ends of the control socket.
//!
//! A malformed line costs an error, not the connection: the server answers with
//! [`ControlError::to_response`] and continues to read.
//!
//! What it does not do: I/O, or matching answers to requests; answers come in the order of the
//! requests.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::VERSION;
use super::request::{NameError, Request};
use super::response::{ErrorBody, ErrorCode, Response};
use crate::line::{LineReader, LineTooLong};

/// The longest request line in bytes.
pub const MAX_REQUEST_LEN: usize = 64 << 10;

/// The longest response line in bytes: a list of ten thousand VMs.
pub const MAX_RESPONSE_LEN: usize = 4 << 20;

/// A line that is not a message.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The line is longer than the limit.
    #[error(transparent)]
    TooLong(#[from] LineTooLong),
    /// The line is not JSON.
    #[error("not a line of JSON; check what is connected to the control socket")]
    Json(#[source] serde_json::Error),
    /// The line is JSON, but not `{"v":1,"request":...}` or `{"v":1,"response":...}`.
    #[error(
        "not a control message: expected an object with \"v\" and \"{member}\" and nothing else"
    )]
    Envelope {
        /// The missing member.
        member: &'static str,
    },
    /// Another protocol version.
    #[error(
        "protocol version {got}, but this end speaks {VERSION}; install the same version of timevisor and timevisord"
    )]
    Version {
        /// The version that the other end speaks.
        got: u64,
    },
    /// The envelope is right, but its content is not.
    #[error(
        "the {member} is not understood; check its spelling and that both ends have the same version"
    )]
    Content {
        /// `request` or `response`.
        member: &'static str,
        /// The part in question.
        source: serde_json::Error,
    },
    /// The name is not valid for a VM.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl ControlError {
    /// Returns the server's answer to a line that it could not accept.
    #[must_use]
    pub fn to_response(&self) -> Response {
        let example = "send one JSON object per line, such as {\"v\":1,\"request\":\"status\"}";
        let (code, message, next_step) = match self {
            Self::TooLong(LineTooLong { max }) => (
                ErrorCode::BadRequest,
                format!("the request exceeds {max} bytes"),
                "send a shorter one",
            ),
            Self::Json(source) => {
                (ErrorCode::BadRequest, format!("the request is not JSON: {source}"), example)
            }
            Self::Envelope { member } => (
                ErrorCode::BadRequest,
                format!(
                    "the request is not an object with \"v\" and \"{member}\" and nothing else"
                ),
                example,
            ),
            Self::Version { got } => (
                ErrorCode::Version,
                format!("the request has protocol version {got}, but the daemon speaks {VERSION}"),
                "install the same version of timevisor and timevisord",
            ),
            Self::Content { source, .. } => (
                ErrorCode::BadRequest,
                format!("the request is not understood: {source}"),
                "check its spelling and that both ends have the same version",
            ),
            Self::Name(source) => (ErrorCode::BadRequest, source.to_string(), "then try again"),
        };
        Response::Error(ErrorBody { code, message, next_step: next_step.to_owned() })
    }
}

/// The daemon's end of one connection.
#[derive(Clone, Debug)]
pub struct ServerCodec(LineReader);

/// The command line's end of one connection.
#[derive(Clone, Debug)]
pub struct ClientCodec(LineReader);

impl Default for ServerCodec {
    fn default() -> Self {
        Self(LineReader::new(MAX_REQUEST_LEN))
    }
}

impl Default for ClientCodec {
    fn default() -> Self {
        Self(LineReader::new(MAX_RESPONSE_LEN))
    }
}

impl ServerCodec {
    /// A codec that refuses request lines of more than `max` bytes.
    #[must_use]
    pub fn with_limit(max: usize) -> Self {
        Self(LineReader::new(max))
    }

    /// Reads bytes and returns the requests that are now complete, checked, in order.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Vec<Result<Request, ControlError>> {
        self.0.feed(bytes).into_iter().map(|line| decode_request(&line?)).collect()
    }

    /// Encodes a response as a line.
    ///
    /// # Errors
    /// [`ControlError::TooLong`] when no client would take it.
    pub fn encode(response: &Response) -> Result<Vec<u8>, ControlError> {
        encode("response", response, MAX_RESPONSE_LEN)
    }
}

impl ClientCodec {
    /// Reads bytes and returns the responses that are now complete, in order.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Vec<Result<Response, ControlError>> {
        self.0.feed(bytes).into_iter().map(|line| open("response", &line?)).collect()
    }

    /// Returns the size of an unfinished response. If it is not 0 when the connection closes, an
    /// answer was cut off.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.0.pending()
    }

    /// Encodes a request as a line.
    ///
    /// # Errors
    /// [`ControlError::Name`] or [`ControlError::TooLong`]: what the server would answer, detected
    /// before sending.
    pub fn encode(request: &Request) -> Result<Vec<u8>, ControlError> {
        request.check()?;
        encode("request", request, MAX_REQUEST_LEN)
    }
}

fn decode_request(line: &[u8]) -> Result<Request, ControlError> {
    let request: Request = open("request", line)?;
    request.check()?;
    Ok(request)
}

/// Checks the version before the content, because another version may have other contents.
fn open<T: DeserializeOwned>(member: &'static str, line: &[u8]) -> Result<T, ControlError> {
    let mut message: Value = serde_json::from_slice(line).map_err(ControlError::Json)?;
    let envelope = || ControlError::Envelope { member };
    let object = message.as_object_mut().ok_or_else(envelope)?;
    let version = object.get("v").and_then(Value::as_u64).ok_or_else(envelope)?;
    if version != u64::from(VERSION) {
        return Err(ControlError::Version { got: version });
    }
    let content = object.remove(member).ok_or_else(envelope)?;
    if object.len() > 1 {
        return Err(envelope());
    }
    T::deserialize(content).map_err(|source| ControlError::Content { member, source })
}

fn encode<T: Serialize>(
    member: &'static str,
    content: &T,
    max: usize,
) -> Result<Vec<u8>, ControlError> {
    let content = serde_json::to_string(content)
        .map_err(|source| ControlError::Content { member, source })?;
    let line = format!("{{\"v\":{VERSION},\"{member}\":{content}}}\n");
    if line.len() > max + 1 {
        return Err(LineTooLong { max }.into());
    }
    Ok(line.into_bytes())
}
