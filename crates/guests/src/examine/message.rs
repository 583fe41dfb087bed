//! Questions to a helper, and its answers: JSON, one per packet, each with the number of its question.

use serde::{Deserialize, Serialize};
use timevisor_linux::helper::LONGEST;
use timevisor_linux::process::Process;
use timevisor_time::CounterRatio;

use crate::counter_mapping::CounterMapping;
use crate::qemu::{Accelerator, Qemu};

/// What a helper is asked about one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Whether it is a QEMU, and which one.
    Examine,
    /// How its guest's counter follows from the host's, now.
    Mapping {
        /// What runs the guest.
        accelerator: Accelerator,
        /// `-icount` is given.
        icount: bool,
    },
}

impl Question {
    /// The mapping of this QEMU's guest.
    #[must_use]
    pub fn mapping(qemu: &Qemu) -> Self {
        Self::Mapping { accelerator: qemu.accelerator, icount: qemu.command_line.icount }
    }
}

/// Why a process is not served, for now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NotServed {
    /// It is no QEMU, or has ended.
    NotQemu,
    /// It cannot be examined; why, and what to do.
    Problem(String),
}

/// What a helper has found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Question::Examine`].
    Examined(Result<Box<Qemu>, NotServed>),
    /// To [`Question::Mapping`]; or why it is unknown.
    Mapping(Result<Mapping, String>),
}

/// A [`CounterMapping`] on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mapping {
    mul: u64,
    frac_bits: u8,
    offset: i64,
    running: bool,
}

impl From<CounterMapping> for Mapping {
    fn from(found: CounterMapping) -> Self {
        let CounterMapping { ratio: CounterRatio { mul, frac_bits }, offset, running } = found;
        Self { mul, frac_bits, offset, running }
    }
}

impl Mapping {
    /// The mapping; `None` for a ratio that no processor has.
    #[must_use]
    pub fn get(self) -> Option<CounterMapping> {
        let Self { mul, frac_bits, offset, running } = self;
        let possible = mul > 0 && frac_bits < 64;
        possible.then_some(CounterMapping {
            ratio: CounterRatio { mul, frac_bits },
            offset,
            running,
        })
    }
}

/// A question with its number, as it travels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// Its number.
    pub number: u64,
    /// About whom.
    pub process: Process,
    /// What.
    pub question: Question,
}

/// An answer with the number of its question, as it travels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answered {
    /// The question's number.
    pub number: u64,
    /// What was found.
    pub answer: Answer,
}

impl Asked {
    /// As one packet.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From one packet.
    ///
    /// # Errors
    /// When it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

impl Answered {
    /// As one packet. An answer that is too long says so instead.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        if !bytes.is_empty() && bytes.len() <= LONGEST {
            return bytes;
        }
        let text = "its command line and its files are more than a QEMU has".to_owned();
        let answer = match self.answer {
            Answer::Examined(_) => Answer::Examined(Err(NotServed::Problem(text))),
            Answer::Mapping(_) => Answer::Mapping(Err(text)),
        };
        serde_json::to_vec(&Self { number: self.number, answer }).unwrap_or_default()
    }

    /// From one packet.
    ///
    /// # Errors
    /// When it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::CommandLine;

    #[test]
    fn what_is_said_is_heard() {
        let process = Process::open(std::process::id()).unwrap();
        let command_line =
            CommandLine::parse(&["qemu", "-name", "a b", "-device", "vmclock"].map(str::to_owned));
        let qemu = Qemu {
            name: "a b".to_owned(),
            command_line,
            ..Qemu::unexamined(process, Accelerator::Tcg)
        };
        let asked = Asked { number: 7, process, question: Question::mapping(&qemu) };
        assert_eq!(Asked::from_bytes(&asked.to_bytes()).unwrap(), asked);
        let answered = Answered { number: 7, answer: Answer::Examined(Ok(Box::new(qemu))) };
        assert_eq!(Answered::from_bytes(&answered.to_bytes()).unwrap(), answered);
        let mapping = Mapping::from(CounterMapping::IDENTITY);
        assert_eq!(mapping.get(), Some(CounterMapping::IDENTITY));
        assert_eq!(Mapping { mul: 0, ..mapping }.get(), None);
        assert_eq!(Mapping { frac_bits: 64, ..mapping }.get(), None);
        assert!(Answered::from_bytes(b"{\"number\":1}").is_err());
    }

    #[test]
    fn what_is_too_long_is_a_problem_of_that_process() {
        let process = Process::open(std::process::id()).unwrap();
        let name = "n".repeat(LONGEST);
        let qemu = Qemu { name, ..Qemu::unexamined(process, Accelerator::Tcg) };
        let long = Answered { number: 1, answer: Answer::Examined(Ok(Box::new(qemu))) };
        let heard = Answered::from_bytes(&long.to_bytes()).unwrap();
        assert!(matches!(heard.answer, Answer::Examined(Err(NotServed::Problem(_)))));
    }
}
