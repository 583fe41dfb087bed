//! Examining what other users control, in a helper process: command lines, executables and memory of
//! QEMUs, and what KVM shows of them.
//!
//! All of these can be made to hang, to be huge, or to be nonsense by whoever runs the process (a
//! file system of its own is enough). The daemon asks questions; a helper, which has next to no
//! rights and may be killed at any time, answers with facts. It reads, and decides nothing.
//!
//! | module | owns |
//! | --- | --- |
//! | [`message`] | [`Question`] and [`Answer`], and how they travel |
//! | [`examiner`] | [`Examiner`]: answers questions, inside the helper |
//! | [`watch`] | [`Watch`]: who is asked, for how long, and who is asked no longer |

pub mod examiner;
pub mod message;
pub mod watch;

pub use examiner::Examiner;
pub use message::{Answer, NotServed, Question};
pub use watch::Watch;
