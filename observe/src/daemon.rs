//! Questions to timevisord over the read-only socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use timevisor_protocols::control::{ClientCodec, OBSERVE_NAME, OBSERVERS, Question, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// timevisord answers all questions within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug)]
pub enum Silence {
    /// Nobody listens, or not for this user: the text says what to do.
    Socket(String),
    /// It listens and does not answer.
    Late,
    /// The connection broke, or what came is no answer.
    Broken(String),
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(text) => f.write_str(text),
            Self::Late => {
                write!(f, "timevisord does not answer within {} s", PATIENCE.as_secs())
            }
            Self::Broken(text) => write!(f, "timevisord answers badly: {text}"),
        }
    }
}

/// timevisord, as it is asked.
pub struct Daemon {
    socket: PathBuf,
    connection: Option<UnixStream>,
}

impl Daemon {
    pub fn in_directory(run_directory: &Path) -> Self {
        Self { socket: run_directory.join(OBSERVE_NAME), connection: None }
    }

    /// Asks all questions; the answers are in the order of [`Question::OBSERVED`].
    ///
    /// # Errors
    /// When there is no answer to one of them. What refuses a question is an answer.
    pub async fn ask(&mut self) -> Result<Vec<Response>, Silence> {
        // A connection that timevisord has ended meanwhile is no reason to give up.
        let is_new = self.connection.is_none();
        match self.try_once().await {
            Err(Silence::Broken(_)) if !is_new => self.try_once().await,
            done => done,
        }
    }

    async fn try_once(&mut self) -> Result<Vec<Response>, Silence> {
        let mut stream = match self.connection.take() {
            Some(stream) => stream,
            None => UnixStream::connect(&self.socket).await.map_err(|e| self.explain(&e))?,
        };
        let answers =
            timeout(PATIENCE, exchange(&mut stream)).await.map_err(|_| Silence::Late)??;
        self.connection = Some(stream);
        Ok(answers)
    }

    fn explain(&self, error: &io::Error) -> Silence {
        let path = self.socket.display();
        Silence::Socket(match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                format!("timevisord is not running (nobody listens at {path})")
            }
            io::ErrorKind::PermissionDenied => format!(
                "{path} is for root and the group {OBSERVERS}; let this run with that group"
            ),
            _ => format!("cannot connect to {path}: {error}"),
        })
    }
}

async fn exchange(stream: &mut UnixStream) -> Result<Vec<Response>, Silence> {
    let broken = |error: &dyn std::fmt::Display| Silence::Broken(error.to_string());
    let mut requests = Vec::new();
    for question in Question::OBSERVED {
        requests.extend(ClientCodec::encode(&question.request()).map_err(|e| broken(&e))?);
    }
    stream.write_all(&requests).await.map_err(|e| broken(&e))?;
    let (mut codec, mut answers) = (ClientCodec::default(), Vec::new());
    let mut buffer = vec![0; 16 << 10];
    while answers.len() < Question::OBSERVED.len() {
        let count = stream.read(&mut buffer).await.map_err(|e| broken(&e))?;
        if count == 0 {
            // It says why before it turns a client away.
            return Err(match answers.pop() {
                Some(Response::Error(error)) => Silence::Broken(error.to_string()),
                _ => Silence::Broken("the connection ended".to_owned()),
            });
        }
        for answer in codec.on_bytes(&buffer[..count]) {
            answers.push(answer.map_err(|e| broken(&e))?);
        }
    }
    Ok(answers)
}
