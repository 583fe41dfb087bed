//! Answers lines of text with a line of JSON each: on stdin and stdout, or on a virtio-serial port
//! whose other end is on the host. It knows nothing of what the lines mean.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

/// Serves `stream` (`-`, or a port's path). Ends with stdin; a port has no end.
pub fn serve(
    stream: &str,
    mut answer: impl FnMut(&str) -> Result<Value, Box<dyn Error>>,
) -> io::Result<()> {
    let (input, mut output): (Box<dyn Read>, Box<dyn Write>) = if stream == "-" {
        (Box::new(io::stdin()), Box::new(io::stdout()))
    } else {
        // A port has one opener at a time, for both directions.
        let port = File::options().read(true).write(true).open(stream)?;
        (Box::new(port.try_clone()?), Box::new(port))
    };
    let mut input = BufReader::new(input);
    loop {
        let mut line = Vec::new();
        input.read_until(b'\n', &mut line)?;
        // Without its end a command may have lost more than that: it is not carried out.
        if line.pop() != Some(b'\n') {
            if stream == "-" {
                return Ok(());
            }
            // Nobody is connected to the port's other end.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let value = answer(String::from_utf8_lossy(&line).trim())
            .unwrap_or_else(|error| json!({ "error": error.to_string() }));
        output.write_all(format!("{value}\n").as_bytes())?;
        output.flush()?;
    }
}
