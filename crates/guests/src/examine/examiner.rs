//! Inside the helper: one question after the other.

use std::collections::HashMap;
use std::error::Error;

use timevisor_linux::process::{Process, ProcessError};

use super::message::{Answer, Answered, Asked, NotServed, Question};
use crate::counter_mapping::{self, MappingError, MappingSource, Programs};
use crate::qemu::{Accelerator, Qemu, QemuError};

/// Sources of mappings that are kept open, each with a descriptor or two. More VMs than that cost
/// another search each time.
const MOST_SOURCES: usize = 300;

/// What a helper keeps between questions.
#[derive(Default)]
pub struct Examiner {
    sources: HashMap<Process, Box<dyn MappingSource + Send>>,
    programs: Programs,
}

impl Examiner {
    /// The answer to a packet, as a packet; `None` to one that is no question.
    pub fn answer(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let asked = Asked::from_bytes(packet).ok()?;
        let answer = self.examine(asked.process, &asked.question);
        Some(Answered { number: asked.number, answer }.to_bytes())
    }

    /// Answers one question.
    pub fn examine(&mut self, process: Process, question: &Question) -> Answer {
        match *question {
            Question::Examine => Answer::Examined(examined(process).map(Box::new)),
            Question::Mapping { accelerator, icount } => {
                let found = self.mapping(process, accelerator, icount);
                Answer::Mapping(found.map(Into::into).map_err(|error| with_causes(&error)))
            }
        }
    }

    fn mapping(
        &mut self,
        process: Process,
        accelerator: Accelerator,
        icount: bool,
    ) -> Result<counter_mapping::CounterMapping, MappingError> {
        let source = match self.sources.remove(&process) {
            Some(source) => source,
            None => counter_mapping::source(process, accelerator, icount, &mut self.programs)?,
        };
        let mut source = source;
        let found = source.read();
        // The source may belong to an earlier state (a QEMU that was still starting).
        if matches!(found, Ok(_) | Err(MappingError::Unsettled)) {
            if self.sources.len() >= MOST_SOURCES {
                self.sources.retain(|process, _| process.is_running());
            }
            if self.sources.len() < MOST_SOURCES {
                self.sources.insert(process, source);
            }
        }
        found
    }
}

fn examined(process: Process) -> Result<Qemu, NotServed> {
    match Qemu::open(process) {
        Ok(qemu) => Ok(qemu),
        Err(QemuError::NotQemu(_) | QemuError::Process(ProcessError::Gone(_))) => {
            Err(NotServed::NotQemu)
        }
        Err(error) => Err(NotServed::Problem(with_causes(&error))),
    }
}

/// An error and its causes, in one line.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_no_qemu_and_nonsense_is_no_question() {
        let us = Process::open(std::process::id()).unwrap();
        let mut examiner = Examiner::default();
        let answer = examiner.examine(us, &Question::Examine);
        assert_eq!(answer, Answer::Examined(Err(NotServed::NotQemu)));
        let question = Question::Mapping { accelerator: Accelerator::Tcg, icount: false };
        let Answer::Mapping(Err(why)) = examiner.examine(us, &question) else {
            panic!("{answer:?}")
        };
        assert!(why.contains("timers_state"), "{why}");
        assert_eq!(examiner.answer(b"[]"), None);
    }
}
