//! Checks on requests that their types cannot express: lengths, characters, ranges of numbers.
//!
//! What it does not do: know which timelines exist, or which client owns a binding.

use super::message::{Hello, InvalidRequirement, MAX_CLIENT_LEN, MAX_NAME_LEN, Request};

/// A request that every server refuses.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum InvalidRequest {
    /// The text would end up in the operator's log.
    #[error(
        "\"client\" is longer than {MAX_CLIENT_LEN} bytes or has control characters; shorten it"
    )]
    Client,
    /// The name would not fit into the page.
    #[error(
        "a timeline's name has 1 to {MAX_NAME_LEN} letters, digits, '.', '_' or '-'; choose another"
    )]
    Name,
    /// The requirement is meaningless.
    #[error(transparent)]
    Requirement(#[from] InvalidRequirement),
}

impl Request {
    /// Checks what the types cannot express.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check(&self) -> Result<(), InvalidRequest> {
        let requirement = match self {
            Self::Hello(Hello { client }) => {
                let fine = client.len() <= MAX_CLIENT_LEN && !client.chars().any(char::is_control);
                return if fine { Ok(()) } else { Err(InvalidRequest::Client) };
            }
            Self::Bind(bind) if !is_name(&bind.timeline) => return Err(InvalidRequest::Name),
            Self::Bind(bind) => bind.requirement,
            Self::Update(update) => update.requirement,
            Self::Unbind(_) | Self::Timelines | Self::KeepAlive => None,
        };
        requirement.map_or(Ok(()), |requirement| Ok(requirement.validate()?))
    }
}

/// Returns whether a text can be a timeline's name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(fine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::message::{Bind, Confidence, Requirement, Update};

    fn bind(timeline: &str, requirement: Option<Requirement>) -> Request {
        let timeline = timeline.to_owned();
        Request::Bind(Bind { timeline, create: None, requirement, best_effort: false })
    }

    #[test]
    fn names() {
        for name in ["tai", "a", "A.b_c-9", &"x".repeat(32)] {
            assert_eq!(bind(name, None).check(), Ok(()), "{name}");
        }
        for name in ["", "a b", "a/b", "ä", "a\0", &"x".repeat(33)] {
            assert_eq!(bind(name, None).check(), Err(InvalidRequest::Name), "{name}");
        }
    }

    #[test]
    fn clients() {
        let hello = |client: &str| Request::Hello(Hello { client: client.to_owned() }).check();
        assert_eq!(hello("timevisor 0.1 (ä)"), Ok(()));
        assert_eq!(hello(&"x".repeat(64)), Ok(()));
        assert_eq!(hello(&"x".repeat(65)), Err(InvalidRequest::Client));
        assert_eq!(hello("a\nlog line"), Err(InvalidRequest::Client));
    }

    #[test]
    fn requirements() {
        let mut requirement = Requirement::within_ns(1000);
        assert_eq!(bind("tai", Some(requirement)).check(), Ok(()));
        requirement.confidence = Confidence::Probability(1.0);
        assert!(bind("tai", Some(requirement)).check().is_err());
        let requirement = Some(requirement);
        let update = Request::Update(Update { binding: 1, requirement, best_effort: true });
        assert!(update.check().is_err());
    }
}
