//! Finds the tasks that started before the trap points were set, by repeated looks at a running
//! guest.
//!
//! The trap points are in place before the first look, and their events are handled after the last
//! one, so events report every change between two looks. A result is accepted when two consecutive
//! looks agree.

use crate::tasks::table::Task;

/// Maximum number of looks before the scan is abandoned.
const LOOKS: u32 = 10;

/// What to do after a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Look again a moment later.
    Again,
    /// These tasks were already running.
    Known(Vec<Task>),
    /// The tasks are unknown. The reason is absent if this guest system cannot list its tasks.
    NotKnown(Option<String>),
}

/// The looks so far.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    last: Option<Vec<Task>>,
    count: u32,
}

impl Looks {
    /// Takes the result of one [`GuestOs::running`](crate::os::guest_os::GuestOs::running) call.
    pub fn take(&mut self, seen: Result<Option<Vec<Task>>, String>) -> Verdict {
        self.count += 1;
        let why = match seen {
            Ok(None) => return Verdict::NotKnown(None),
            Ok(Some(now)) if self.last.as_ref() == Some(&now) => return Verdict::Known(now),
            Ok(Some(now)) => {
                self.last = Some(now);
                "its real-time tasks change from one look to the next".to_owned()
            }
            Err(why) => {
                self.last = None;
                why
            }
        };
        if self.count < LOOKS { Verdict::Again } else { Verdict::NotKnown(Some(why)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::event::Thread;

    fn task(tid: u32) -> Task {
        let thread = Thread { tid, ..Thread::default() };
        Task { thread, attributes: None, jobs: 0, aborted: 0, counter: None }
    }

    #[test]
    fn two_looks_have_to_agree() {
        let mut looks = Looks::default();
        assert_eq!(looks.take(Ok(Some(vec![task(1)]))), Verdict::Again);
        assert_eq!(looks.take(Ok(Some(vec![task(2)]))), Verdict::Again);
        assert_eq!(looks.take(Err("it changes".into())), Verdict::Again);
        assert_eq!(looks.take(Ok(Some(vec![task(2)]))), Verdict::Again, "not in a row");
        assert_eq!(looks.take(Ok(Some(vec![task(2)]))), Verdict::Known(vec![task(2)]));
    }

    #[test]
    fn no_tasks_are_known_too() {
        let mut looks = Looks::default();
        assert_eq!(looks.take(Ok(Some(vec![]))), Verdict::Again, "one look is none");
        assert_eq!(looks.take(Ok(Some(vec![]))), Verdict::Known(vec![]));
    }

    #[test]
    fn a_guest_that_never_agrees_is_not_known() {
        let mut looks = Looks::default();
        for tid in 1..LOOKS {
            assert_eq!(looks.take(Ok(Some(vec![task(tid)]))), Verdict::Again);
        }
        assert!(matches!(looks.take(Err("why".into())), Verdict::NotKnown(Some(_))));
        assert_eq!(Looks::default().take(Ok(None)), Verdict::NotKnown(None));
    }
}
