//! lab-hostile: a guest that attacks its host over the channel. Each attack prints one line of
//! JSON: what was tried and what came back. Usage: `lab-hostile PORT ATTACK...`. The host's side of
//! the test decides whether that was right.
#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use timevisor_linux::virtio_port::VirtioPort;
use timevisor_protocols::channel::{
    Bind, Binding, Direction, Epoch, Frame, FrameReader, Hello, Kind, Problem, Received, Request,
    Requirement, Response, frame::HEADER_LEN,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let path = words.next().context("usage: lab-hostile PORT ATTACK...")?;
    let mut attacker = Attacker::open(Path::new(&path))?;
    for attack in words {
        let (name, argument) = attack.split_once('=').unwrap_or((&attack, ""));
        let result = match name {
            "garbage" => attacker.garbage()?,
            "half" => attacker.half_frames()?,
            "flood" => attacker.flood()?,
            "replay" => attacker.replay()?,
            "binds" => attacker.thousand_binds()?,
            "names" => attacker.others_names(argument)?,
            "unread" => attacker.unread()?,
            other => bail!("no attack {other}"),
        };
        println!("{}", json!({ "attack": name, "result": result }));
    }
    Ok(())
}

/// An attacker with the port open, who speaks the protocol when that helps.
struct Attacker {
    port: VirtioPort,
    reader: FrameReader,
    frames: Vec<Frame>,
    session: u64,
    id: u64,
    noise: u64,
}

impl Attacker {
    fn open(path: &Path) -> Result<Self> {
        let port = VirtioPort::at(path)?;
        let deadline = Instant::now() + PATIENCE;
        while !port.is_connected()? {
            if Instant::now() > deadline {
                bail!("nobody on the host has connected");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let id = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
        let id = u64::try_from(id).unwrap_or(1).max(1);
        let reader = FrameReader::new(Direction::ToClient);
        Ok(Self { port, reader, frames: Vec::new(), session: 0, id, noise: 88_172_645_463_325_252 })
    }

    fn write(&self, mut bytes: &[u8]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            match self.port.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        bail!("the host takes no more");
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what has arrived.
    fn read(&mut self) {
        let mut buffer = [0; 8192];
        while let Ok(count) = self.port.read(&mut buffer) {
            if count == 0 {
                break;
            }
            for received in self.reader.feed(&buffer[..count]) {
                if let Received::Frame(frame) = received {
                    self.frames.push(frame);
                }
            }
        }
    }

    fn frame(&mut self, request: &Request) -> Result<Vec<u8>> {
        self.id += 1;
        let session = if matches!(request, Request::Hello(_)) { 0 } else { self.session };
        Ok(Frame::of(Kind::Request, session, self.id, request)?.encode())
    }

    fn answer(&mut self, id: u64) -> Result<Response> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.read();
            let found = self
                .frames
                .iter()
                .position(|f| f.header.kind == Kind::Response && f.header.id == id);
            if let Some(index) = found {
                return Ok(serde_json::from_slice(&self.frames.remove(index).payload)?);
            }
            if Instant::now() > deadline {
                bail!("no answer");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Response> {
        let frame = self.frame(request)?;
        let id = self.id;
        self.write(&frame)?;
        self.answer(id)
    }

    /// Repeats the hello until the host answers: it ignores requests beyond the rate limit.
    fn hello(&mut self) -> Result<()> {
        let hello = Request::Hello(Hello { client: "lab-hostile".to_owned() });
        for _ in 0..50 {
            let frame = self.frame(&hello)?;
            let id = self.id;
            self.write(&frame)?;
            let deadline = Instant::now() + Duration::from_secs(1);
            while Instant::now() < deadline {
                self.read();
                let found = self.frames.iter().find(|f| f.header.id == id);
                if let Some(frame) = found
                    && let Ok(Response::Welcome(welcome)) = serde_json::from_slice(&frame.payload)
                {
                    self.session = welcome.session;
                    self.frames.clear();
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        bail!("no welcome")
    }

    fn random(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            self.noise ^= self.noise << 13;
            self.noise ^= self.noise >> 7;
            self.noise ^= self.noise << 17;
            bytes.extend(self.noise.to_le_bytes());
        }
        bytes
    }

    /// 256 KiB of noise that contains frame magics, then an honest request.
    fn garbage(&mut self) -> Result<Value> {
        for _ in 0..64 {
            let mut noise = self.random(4096);
            noise[1000..1004].copy_from_slice(b"TVCH");
            noise[2000..2008].copy_from_slice(b"TVCH\x01\x01\xff\xff");
            self.write(&noise)?;
        }
        self.hello()?;
        Ok(json!("welcomed"))
    }

    /// Incomplete frames, as a guest that is reset in between leaves them.
    fn half_frames(&mut self) -> Result<Value> {
        for cut in [1, HEADER_LEN - 1, HEADER_LEN, HEADER_LEN + 3] {
            let frame = self.frame(&Request::Timelines)?;
            self.write(&frame[..cut.min(frame.len())])?;
            self.hello()?;
        }
        Ok(json!("welcomed"))
    }

    /// 20,000 requests at once: how many were answered, and whether an honest one is still
    /// answered.
    fn flood(&mut self) -> Result<Value> {
        self.hello()?;
        let began = Instant::now();
        for _ in 0..20_000 {
            let frame = self.frame(&Request::Timelines)?;
            self.write(&frame)?;
            self.read();
        }
        std::thread::sleep(Duration::from_secs(2));
        self.read();
        let (mut answered, mut refused) = (0, 0);
        for frame in self.frames.drain(..) {
            match serde_json::from_slice(&frame.payload) {
                Ok(Response::Timelines(_)) => answered += 1,
                Ok(Response::Problem(_)) => refused += 1,
                _ => {}
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        self.hello()?;
        let after = matches!(self.ask(&Request::Timelines)?, Response::Timelines(_));
        Ok(
            json!({ "sent": 20_000, "answered": answered, "refused": refused, "seconds": seconds, "after": after }),
        )
    }

    /// Repeats the same bind many times.
    fn replay(&mut self) -> Result<Value> {
        self.hello()?;
        let frame = self.frame(&bind("tai", None))?;
        let id = self.id;
        for _ in 0..50 {
            self.write(&frame)?;
        }
        std::thread::sleep(Duration::from_secs(3));
        self.read();
        let answers = self.frames.drain(..).filter(|frame| frame.header.id == id);
        let bound = answers
            .filter(|f| matches!(serde_json::from_slice(&f.payload), Ok(Response::Bound(_))))
            .count();
        Ok(json!({ "bound": bound, "members": self.members("tai")? }))
    }

    /// A thousand bindings, as fast as the host permits.
    fn thousand_binds(&mut self) -> Result<Value> {
        self.hello()?;
        let (mut bound, mut problems) = (Vec::new(), Vec::<Problem>::new());
        for _ in 0..1000 {
            // 100 a second are allowed; requests beyond that would not be answered.
            std::thread::sleep(Duration::from_millis(12));
            match self.ask(&bind("tai", None))? {
                Response::Bound(b) => bound.push(b.binding),
                Response::Problem(problem) => problems.push(problem),
                _ => {}
            }
        }
        let members = self.members("tai")?;
        let code = problems.last().map(|problem| json!(problem.code));
        for binding in bound.iter().take(3) {
            std::thread::sleep(Duration::from_millis(12));
            self.ask(&Request::Unbind(Binding { binding: *binding }))?;
        }
        std::thread::sleep(Duration::from_millis(50));
        let again = matches!(self.ask(&bind("tai", None))?, Response::Bound(_));
        Ok(
            json!({ "bound": bound.len(), "refused": problems.len(), "code": code, "members": members, "again": again }),
        )
    }

    /// Tries to bind to, to create, and to end the bindings of timelines that belong to another VM.
    fn others_names(&mut self, name: &str) -> Result<Value> {
        self.hello()?;
        let code = |response: Response| match response {
            Response::Problem(problem) => json!(problem.code),
            Response::Bound(_) => json!("bound"),
            Response::Unbound(_) => json!("unbound"),
            _ => json!("other"),
        };
        let listed = match self.ask(&Request::Timelines)? {
            Response::Timelines(rows) => rows.iter().any(|row| row.name == name),
            _ => bail!("no list"),
        };
        let bind_it = code(self.ask(&bind(name, None))?);
        let unbind: Vec<_> = (1..20)
            .map(|binding| {
                std::thread::sleep(Duration::from_millis(12));
                Ok(code(self.ask(&Request::Unbind(Binding { binding }))?))
            })
            .collect::<Result<_>>()?;
        let own = code(self.ask(&bind(name, Some(Epoch::Local)))?);
        let members = self.members(name)?;
        Ok(
            json!({ "listed": listed, "bind": bind_it, "unbind": unbind, "own": own, "members": members }),
        )
    }

    /// Sends requests and never reads: the host must not keep all the answers.
    fn unread(&mut self) -> Result<Value> {
        self.hello()?;
        let mut written = 0u32;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(8) {
            let frame = self.frame(&Request::Timelines)?;
            match self.port.write(&frame) {
                Ok(_) => written += 1,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Ok(json!({ "written": written }))
    }

    fn members(&mut self, name: &str) -> Result<u32> {
        match self.ask(&Request::Timelines)? {
            Response::Timelines(rows) => {
                Ok(rows.iter().find(|row| row.name == name).map_or(0, |row| row.members))
            }
            other => bail!("no list but {other:?}"),
        }
    }
}

fn bind(name: &str, create: Option<Epoch>) -> Request {
    let requirement = Some(Requirement::within_ns(1_000_000_000));
    Request::Bind(Bind { timeline: name.to_owned(), create, requirement, best_effort: true })
}
