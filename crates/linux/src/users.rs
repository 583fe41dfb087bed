//! Users and groups of this host by name: what /etc/passwd and /etc/group say.
//!
//! It does not ask a directory service (NSS): the ids of such users have to be given as numbers.

use std::fs;

/// The user id of a user that is given by name or as a number; `None` if there is no such name.
#[must_use]
pub fn uid_of(user: &str) -> Option<u32> {
    find(&fs::read_to_string("/etc/passwd").unwrap_or_default(), user)
}

/// The group id of a group that is given by name or as a number; `None` if there is no such name.
#[must_use]
pub fn gid_of(group: &str) -> Option<u32> {
    find(&fs::read_to_string("/etc/group").unwrap_or_default(), group)
}

/// As [`uid_of`], in the text of /etc/passwd or, with the same first three fields, /etc/group.
fn find(users: &str, user: &str) -> Option<u32> {
    let field = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.nth(1)?.parse().ok())?
    };
    user.parse().ok().or_else(|| users.lines().find_map(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:64055:108::/var/lib/libvirt:/usr/sbin/nologin\n";
        assert_eq!(find(users, "libvirt-qemu"), Some(64055));
        assert_eq!(find(users, "107"), Some(107));
        assert_eq!(find(users, "libvirt"), None);
        assert_eq!(uid_of("root"), Some(0));
        assert_eq!(find("timevisor:x:997:ann,bob\n", "timevisor"), Some(997));
        assert_eq!(gid_of("root"), Some(0));
    }
}
