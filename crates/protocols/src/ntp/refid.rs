//! Reference ids: the 32 bits that name a server's source of time (RFC 5905 section 7.3).
//!
//! | function | about |
//! | --- | --- |
//! | [`of_address`] | the id of a server that is synchronized to this address |
//! | [`declares_smear`] | servers that declare that they smear leap seconds |
//! | [`shown`] | an id for people: a name or an address |
//!
//! What it does not do: detect smearing servers that do not declare it, such as the clients of a
//! smearing server (their id is its address), or decide what to do about them
//! ([`super::response`]).

use std::net::IpAddr;

use md5::{Digest, Md5};

/// chronyd's id while its `smoothtime` or leap smear is active: 127.127.1.255 (ntp.h,
/// `NTP_REFID_SMOOTH`).
const CHRONY_SMOOTHED: [u8; 4] = [127, 127, 1, 255];
/// ntpd while it smears: 254 and the smear's offset in 2:22 fixed point (ntpd's README.leapsmear).
const NTPD_SMEARED: u8 = 254;
/// Google's public servers, which smear every leap second.
const GOOGLE: [u8; 4] = *b"GOOG";

/// The reference id of a server whose time comes from `address`: an IPv4 address itself, or the
/// first four bytes of the MD5 hash of an IPv6 address.
#[must_use]
pub fn of_address(address: IpAddr) -> [u8; 4] {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let hash = Md5::digest(address.octets());
            [hash[0], hash[1], hash[2], hash[3]]
        }
    }
}

/// Returns true if the reference id of a server of `stratum` declares a leap smear.
///
/// One in 256 servers that are synchronized over IPv6 has an id that looks like ntpd's by chance,
/// because the hash of its source's address may start with 254. Such servers are refused, too,
/// unless smearing is allowed for them.
#[must_use]
pub fn declares_smear(reference_id: [u8; 4], stratum: u8) -> bool {
    reference_id == CHRONY_SMOOTHED
        || reference_id[0] == NTPD_SMEARED
        || (stratum == 1 && reference_id == GOOGLE)
}

/// The id of a server of `stratum` as people read it: a primary server's name (`GPS`), or four
/// bytes as an address. For a server that is synchronized over IPv6, these are a hash and no
/// address.
#[must_use]
pub fn shown(reference_id: [u8; 4], stratum: u8) -> String {
    let name = reference_id.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_name = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
    if stratum <= 1 && is_name {
        return name.escape_ascii().to_string();
    }
    std::net::Ipv4Addr::from(reference_id).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_ids() {
        let of = |text: &str| of_address(text.parse().unwrap());
        assert_eq!(of("192.0.2.7"), [192, 0, 2, 7]);
        assert_eq!(of("::ffff:192.0.2.7"), [192, 0, 2, 7], "the same host");
        // md5sum of the 16 bytes of each address.
        assert_eq!(of("2001:db8::1"), [0x39, 0xab, 0x9b, 0x37]);
        assert_eq!(of("::"), [0x4a, 0xe7, 0x13, 0x36]);
    }

    #[test]
    fn ids_for_people() {
        assert_eq!(shown(*b"GPS\0", 1), "GPS");
        assert_eq!(shown(*b"GPS\0", 2), "71.80.83.0", "an address, or a hash");
        assert_eq!(shown([192, 0, 2, 7], 2), "192.0.2.7");
        assert_eq!(shown([0x1b, b'[', b'2', b'J'], 1), "27.91.50.74", "no terminal's commands");
        assert_eq!(shown([0; 4], 1), "0.0.0.0");
    }

    #[test]
    fn smearing_servers_by_id() {
        assert!(declares_smear([0x7f, 0x7f, 0x01, 0xff], 3), "chrony");
        assert!(declares_smear([254, 0x10, 0, 0], 2), "ntpd");
        assert!(declares_smear(*b"GOOG", 1), "Google");
        assert!(!declares_smear(*b"GOOG", 2), "71.79.79.71 is an address");
        assert!(!declares_smear([127, 127, 1, 1], 10), "chrony's local clock");
        assert!(!declares_smear(*b"GPS\0", 1));
        assert!(!declares_smear([253, 0, 0, 0], 2));
    }
}
