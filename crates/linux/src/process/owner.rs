//! Who a process belongs to, by what the kernel says: nothing here is the process's own text, and
//! nothing reads its memory.

use std::fs;

use super::{Process, ProcessError, text};

/// The users of a process, as this user namespace knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Users {
    /// Who started it.
    pub real: u32,
    /// Whose rights it has; files that it makes belong to this user.
    pub effective: u32,
    /// To whom it may return.
    pub saved: u32,
    /// Whose files it may open.
    pub file_system: u32,
}

impl Users {
    /// The user, if all four are the same.
    #[must_use]
    pub fn only(&self) -> Option<u32> {
        let others = [self.effective, self.saved, self.file_system];
        others.iter().all(|user| *user == self.real).then_some(self.real)
    }
}

/// linux/capability.h: 25.
const CAP_SYS_TIME: u64 = 1 << 25;

impl Process {
    /// Who it runs as.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn users(&self) -> Result<Users, ProcessError> {
        let status = self.read("status")?;
        text::users(&String::from_utf8_lossy(&status)).ok_or_else(|| self.odd("status"))
    }

    /// Whether it is in the same user namespace as this process. A user who makes a namespace is
    /// root in it, and decides who else runs there.
    ///
    /// # Errors
    /// When the process has ended, or permission is missing.
    pub fn shares_our_user_namespace(&self) -> Result<bool, ProcessError> {
        let link = |process: &Self| {
            fs::read_link(process.path("ns/user"))
                .map_err(|source| process.error("the user namespace", source))
        };
        Ok(link(self)? == link(&Self::new(std::process::id()))?)
    }

    /// Whether it has CAP_SYS_TIME where this process is. One of which that cannot be found out counts as
    /// if it had. Nothing is read that it could keep from being read.
    #[must_use]
    pub fn may_set_clocks(&self) -> bool {
        let Ok(status) = self.read("status") else { return false };
        let has = text::capabilities(&String::from_utf8_lossy(&status))
            .is_none_or(|capabilities| capabilities & CAP_SYS_TIME != 0);
        // Who makes a user namespace has every capability in it, and none here. Its map is another
        // one than ours, unless root gave it all users.
        let map = |process: &Self| process.read("uid_map").ok();
        has && map(self).is_none_or(|its| map(&Self::new(std::process::id())) == Some(its))
    }

    /// Whether its program was started with more rights than its starter had: a set-user-id or
    /// set-group-id program, or one with file capabilities. Its arguments and open files are then
    /// the starter's, not those of its user. The kernel notes it in the auxiliary vector.
    ///
    /// # Errors
    /// When the process has ended, or permission is missing.
    pub fn has_gained_rights(&self) -> Result<bool, ProcessError> {
        let vector = self.read("auxv")?;
        at_secure(&vector).map(|value| value != 0).ok_or_else(|| self.odd("auxv"))
    }
}

/// AT_SECURE of an auxiliary vector (getauxval(3)): pairs of a type and a value. Those of 32-bit
/// programs are not understood; QEMU has none since version 10.
fn at_secure(vector: &[u8]) -> Option<u64> {
    const AT_SECURE: u64 = 23;
    let word = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let words: Vec<u64> = vector.chunks_exact(8).filter_map(word).collect();
    words.chunks_exact(2).find(|pair| pair[0] == AT_SECURE).map(|pair| pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn all_four_users_are_read() {
        let status = "Name:\tx\nUid:\t4001\t0\t0\t4001\nGid:\t1\t2\t3\t4\n";
        let users = text::users(status).unwrap();
        assert_eq!(users, Users { real: 4001, effective: 0, saved: 0, file_system: 4001 });
        assert_eq!(users.only(), None);
        assert_eq!(text::users("Uid:\t7\t7\t7\t7").unwrap().only(), Some(7));
        for odd in ["", "Uid:\t7\t7\t7", "Uid:\t7\t7\t7\t-1", "Uid:\t7\t7\t7\t7\t7"] {
            assert_eq!(text::users(odd), None, "{odd}");
        }
    }

    #[test]
    fn who_may_not_set_clocks_is_known() {
        let has = |line: &str| text::capabilities(line).map(|all| all & CAP_SYS_TIME != 0);
        assert_eq!(has("CapPrm:\t0\nCapEff:\t0000000002000000\n"), Some(true));
        assert_eq!(has("CapEff:\t000001fffdffffff"), Some(false));
        assert_eq!(has("CapEff:\tx"), None);
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set=-sys_time",
            "--inh-caps=-sys_time",
            "sh",
            "-c",
            "echo; exec sleep 60",
        ]);
        let Ok(mut child) = command.stdout(std::process::Stdio::piped()).spawn() else { return };
        let mut line = [0];
        let there = std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).is_ok();
        let may = Process::open(child.id()).map(|process| process.may_set_clocks());
        let _ = child.kill();
        let _ = child.wait();
        // Only root can give a capability up for good.
        if there {
            assert!(!may.unwrap());
        }
    }

    #[test]
    fn the_kernel_says_whether_rights_were_gained() {
        let vector = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        assert_eq!(at_secure(&vector(&[6, 4096, 23, 1, 0, 0])), Some(1));
        assert_eq!(at_secure(&vector(&[6, 4096, 23, 0, 0, 0])), Some(0));
        // 23 as a value is none as a type.
        assert_eq!(at_secure(&vector(&[6, 23, 0, 0])), None);
        let us = Process::open(std::process::id()).unwrap();
        assert!(!us.has_gained_rights().unwrap());
    }

    #[test]
    fn a_process_in_another_user_namespace_is_known() {
        let us = Process::open(std::process::id()).unwrap();
        assert!(us.shares_our_user_namespace().unwrap());
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", "echo; exec sleep 60"]);
        let Ok(mut child) = command.stdout(std::process::Stdio::piped()).spawn() else { return };
        let mut line = [0];
        let there = std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).is_ok();
        let other = Process::open(child.id()).map(|process| process.shares_our_user_namespace());
        let _ = child.kill();
        let _ = child.wait();
        // Some kernels let no user make a namespace.
        if there {
            assert!(!other.unwrap().unwrap());
        }
    }
}
