//! lab-load: load for a guest's processor or network, until it is killed.
//!
//! | command | does |
//! | --- | --- |
//! | `lab-load spin PAGE` | reads the page in a tight loop, as QuartzV's loaded guests do |
//! | `lab-load send ADDRESS` | sends to a `serve` over TCP as fast as it can |
//! | `lab-load receive ADDRESS` | has a `serve` send to it |
//! | `lab-load serve ADDRESS` | the other end, for any number of guests |
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use timevisor_clock_page::Reader;
use timevisor_clock_page::reader::counter_of;
use timevisor_linux::counter::HostCounter;

#[path = "../pages.rs"]
mod pages;

const CHUNK: usize = 64 << 10;
/// The first byte on a connection says what the guest does.
const GUEST_SENDS: u8 = b's';
const GUEST_RECEIVES: u8 = b'r';

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["spin", page] => spin(Path::new(page)),
        ["send", address] => again(|| connect(address, GUEST_SENDS).and_then(flood)),
        ["receive", address] => again(|| connect(address, GUEST_RECEIVES).and_then(drain)),
        ["serve", address] => serve(address),
        _ => bail!("usage: lab-load spin PAGE | send ADDRESS | receive ADDRESS | serve ADDRESS"),
    }
}

fn spin(path: &Path) -> Result<()> {
    let page = pages::open(path)?;
    let counter = HostCounter::for_reader(counter_of(&page, 0)).context("a foreign counter")?;
    let reader = Reader::open(page, counter, 0)?;
    loop {
        let _ = black_box(reader.read());
    }
}

/// Reconnects when a connection breaks under overload: the load must continue.
fn again(mut work: impl FnMut() -> Result<()>) -> ! {
    loop {
        if let Err(error) = work() {
            eprintln!("lab-load: {error:#}; trying again");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn connect(address: &str, role: u8) -> Result<TcpStream> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("nobody serves at {address}"))?;
    stream.write_all(&[role])?;
    Ok(stream)
}

fn flood(mut stream: TcpStream) -> Result<()> {
    let chunk = vec![0x55; CHUNK];
    loop {
        stream.write_all(&chunk)?;
    }
}

fn drain(mut stream: TcpStream) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    while stream.read(&mut chunk)? > 0 {}
    bail!("the other end closed the connection")
}

fn serve(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot serve {address}"))?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        std::thread::spawn(move || {
            let mut role = [0];
            stream.read_exact(&mut role)?;
            match role[0] {
                GUEST_SENDS => drain(stream),
                GUEST_RECEIVES => flood(stream),
                other => bail!("a connection that starts with {other:#x}"),
            }
        });
    }
    Ok(())
}
