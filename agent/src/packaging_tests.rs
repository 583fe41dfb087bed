//! The udev rules of packaging/ are made of words that udev knows. `udevadm verify` (systemd 254 and
//! newer) says more, but is not on every machine that builds.

const RULES: &str = include_str!("../../packaging/60-timevisor.rules");

/// udev(7): what is compared, and what is assigned.
const MATCHES: &[&str] = &["ACTION", "SUBSYSTEM", "KERNEL", "ATTR", "ENV"];
const ASSIGNS: &[&str] = &["MODE", "GROUP", "SYMLINK", "TAG", "RUN"];

/// Key, attribute, operator and value of one part of a rule.
fn part(text: &str) -> Option<(&str, Option<&str>, &str, &str)> {
    let at = text.find(['=', '!', '+', '-', ':'])?;
    let (left, rest) = text.split_at(at);
    let operator = ["==", "!=", "+=", "-=", ":=", "="].into_iter().find(|o| rest.starts_with(o))?;
    let value = rest[operator.len()..].strip_prefix('"')?.strip_suffix('"')?;
    let (key, attribute) = match left.split_once('{') {
        Some((key, attribute)) => (key, Some(attribute.strip_suffix('}')?)),
        None => (left, None),
    };
    (!value.contains('"')).then_some((key, attribute, operator, value))
}

#[test]
fn every_rule_has_matches_then_assignments() {
    let mut rules = 0;
    for line in RULES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut assigned = false;
        for text in line.split(", ") {
            let (key, attribute, operator, _) = part(text).unwrap_or_else(|| panic!("{text}"));
            let is_match = matches!(operator, "==" | "!=");
            assert!(if is_match { MATCHES } else { ASSIGNS }.contains(&key), "{text}");
            assert_eq!(matches!(key, "ATTR" | "ENV" | "RUN"), attribute.is_some(), "{text}");
            assert!(!(is_match && assigned), "a match behind an assignment: {line}");
            assigned |= !is_match;
        }
        assert!(assigned, "it does nothing: {line}");
        rules += 1;
    }
    assert_eq!(rules, 4);
}

#[test]
fn mistakes_are_seen() {
    for bad in ["MODE=0444", "MODE=\"0444", "ATTR{name==\"x\"", "nothing", "MODE=\"a\"b\""] {
        assert_eq!(part(bad), None, "{bad}");
    }
    assert_eq!(part("ATTR{a}==\"b\""), Some(("ATTR", Some("a"), "==", "b")));
}

/// The names on which the rules and the rest of the house have to agree.
#[test]
fn names_are_those_of_the_programs() {
    for name in [timevisor_protocols::channel::PORT_NAME, "acpi:AMZNC10C:*", "ptp_vmclock"] {
        assert!(RULES.contains(&format!("{name}\"")), "{name}");
    }
}
