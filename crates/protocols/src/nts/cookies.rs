//! The store of cookies. Each cookie is sent once, so that an observer cannot tell that two
//! requests come from one client (RFC 8915 sections 5.7 and 9.2).
//!
//! What it does not do: read cookies. Only the server can.

use std::collections::VecDeque;

use super::config::COOKIES;
use super::negotiation::MAX_COOKIE;

/// Up to eight cookies, oldest first.
#[derive(Clone, Default)]
pub struct Cookies(VecDeque<Vec<u8>>);

impl Cookies {
    /// Replaces all cookies by these.
    pub fn replace(&mut self, cookies: impl IntoIterator<Item = Vec<u8>>) {
        self.0.clear();
        for cookie in cookies {
            self.add(&cookie);
        }
    }

    /// Adds a cookie; drops those beyond eight and those too long for any request.
    pub fn add(&mut self, cookie: &[u8]) {
        if self.0.len() < COOKIES && (1..=MAX_COOKIE).contains(&cookie.len()) {
            self.0.push_back(cookie.to_vec());
        }
    }

    /// Takes the oldest cookie out, and returns how many more the store needs beyond the one in
    /// every answer.
    pub fn take(&mut self) -> Option<(Vec<u8>, usize)> {
        let cookie = self.0.pop_front()?;
        Some((cookie, COOKIES - 1 - self.0.len()))
    }

    /// Returns the number of cookies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Shows the number only, never the cookies.
impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cookies({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_oldest_first() {
        let mut cookies = Cookies::default();
        cookies.replace((1..=10).map(|n| vec![n]));
        assert_eq!(cookies.len(), 8, "two too many");
        let taken: Vec<_> = std::iter::from_fn(|| cookies.take()).collect();
        let expected: Vec<_> = (1..=8).map(|n| (vec![n], usize::from(n) - 1)).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn what_cannot_be_sent_is_not_kept() {
        let mut cookies = Cookies::default();
        cookies.add(&[]);
        cookies.add(&[0; MAX_COOKIE + 1]);
        assert!(cookies.is_empty());
        cookies.add(&[0; MAX_COOKIE]);
        assert_eq!(format!("{cookies:?}"), "Cookies(1)");
    }
}
