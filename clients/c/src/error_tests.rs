use super::*;

fn last() -> String {
    // SAFETY: never NULL, and no failure comes in between.
    unsafe { CStr::from_ptr(timevisor_last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn a_panic_becomes_a_code_and_the_thread_goes_on() {
    assert_eq!(last(), "");
    assert_eq!(guard(|| panic!("on purpose")), -libc::ENOTRECOVERABLE);
    assert!(last().contains("report"), "{}", last());
    assert_eq!(guard(|| Ok(7)), 7);
    assert!(last().contains("report"), "a success leaves the text alone");
}

#[test]
fn every_thread_has_its_own_last_error() {
    assert_eq!(guard(|| Err(Failure::invalid("here\0, with a zero byte"))), -libc::EINVAL);
    std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    assert_eq!(last(), "here, with a zero byte");
}

#[test]
fn causes_are_told() {
    let error = WaitError::System(std::io::Error::from_raw_os_error(libc::EMFILE));
    assert_eq!(guard(|| Err(error.into())), -libc::EMFILE);
    assert!(
        last().starts_with("the kernel refused a timer") && last().contains("os error"),
        "{}",
        last()
    );
}

/// The guide's table has every code, under its name in errno.h, and no other.
#[test]
fn the_guide_has_every_code() {
    let guide = include_str!("../../../docs/reference/clients/c.md");
    let rows: Vec<&str> = guide.lines().filter_map(|line| line.strip_prefix("| -E")).collect();
    for row in &rows {
        let name = format!("E{}", row.split(' ').next().unwrap());
        assert!(NAMES.iter().any(|(known, _)| *known == name), "{name} of the guide");
    }
    for (name, code) in NAMES {
        assert!(CODES.iter().any(|(known, _)| known == code), "strerror of {name}");
        let row = format!("{} |", &name[1..]);
        assert!(rows.iter().any(|line| line.starts_with(&row)), "{name} is not in the guide");
    }
    assert_eq!(CODES.len(), NAMES.len() + 1);
}

const NAMES: &[(&str, c_int)] = &[
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBADMSG", libc::EBADMSG),
    ("EBUSY", libc::EBUSY),
    ("ECANCELED", libc::ECANCELED),
    ("ECONNRESET", libc::ECONNRESET),
    ("EDQUOT", libc::EDQUOT),
    ("EEXIST", libc::EEXIST),
    ("EIDRM", libc::EIDRM),
    ("EILSEQ", libc::EILSEQ),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EMSGSIZE", libc::EMSGSIZE),
    ("ENODATA", libc::ENODATA),
    ("ENOENT", libc::ENOENT),
    ("ENOTCONN", libc::ENOTCONN),
    ("ENOTRECOVERABLE", libc::ENOTRECOVERABLE),
    ("ENOTSUP", libc::ENOTSUP),
    ("ENOTUNIQ", libc::ENOTUNIQ),
    ("ENXIO", libc::ENXIO),
    ("E2BIG", libc::E2BIG),
    ("EPROTO", libc::EPROTO),
    ("ERANGE", libc::ERANGE),
    ("ESHUTDOWN", libc::ESHUTDOWN),
    ("ESTALE", libc::ESTALE),
    ("ETIME", libc::ETIME),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EUSERS", libc::EUSERS),
    ("EXDEV", libc::EXDEV),
];
