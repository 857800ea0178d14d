//! Random URLs: nothing panics, and no closed address is accepted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use codeq_core::callback_retry::receiver_of;
use codeq_webhooks::policy::{AddressPolicy, Destination};
use proptest::prelude::*;
use proptest::string::string_regex;

/// The rules for IPv4, written differently than in the policy.
fn is_closed_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        || matches!((a, b, c), (0 | 240..=255, _, _) | (100, 64..=127, _) | (198, 18..=19, _))
        || matches!((a, b, c), (192, 0, 0) | (192, 88, 99))
        || ip == Ipv4Addr::new(168, 63, 129, 16)
}

fn is_closed(ip: IpAddr) -> bool {
    let six = match ip.to_canonical() {
        IpAddr::V4(ip) => return is_closed_v4(ip),
        IpAddr::V6(ip) => ip.segments(),
    };
    let [a, b, ..] = six;
    !(0x2000..=0x3fff).contains(&a)
        || (a == 0x2001 && (b < 0x200 || b == 0xdb8))
        || a == 0x2002
        || (a == 0x3fff && b < 0x1000)
}

fn leads_to(to: &Destination) -> Option<IpAddr> {
    to.host().trim_matches(['[', ']']).parse().ok()
}

fn check(text: &str) {
    if let Ok(to) = AddressPolicy::default().read(text) {
        assert!(!leads_to(&to).is_some_and(is_closed), "{text:?} leads to {to:?}");
        assert!(to.port() != 0 && !to.host().is_empty(), "{text:?}");
        // The URL that is kept leads to the same host and port when it is read again.
        let again = AddressPolicy::default().read(to.url().as_str()).unwrap();
        assert_eq!(again.authority(), to.authority(), "{text:?}");
    }
}

/// One number of an address in a spelling of it.
fn spelt(number: u32, way: u8) -> String {
    match way % 5 {
        0 => format!("{number:#x}"),
        1 => format!("0{number:o}"),
        2 => format!("{number}").bytes().map(|b| format!("%{b:02x}")).collect(),
        3 => {
            number.to_string().chars().map(|c| char::from_u32(c as u32 + 0xfee0).unwrap()).collect()
        }
        _ => number.to_string(),
    }
}

/// An address in one to four numbers.
fn spelt_v4(ip: u32, numbers: usize, ways: [u8; 4]) -> String {
    let octets = ip.to_be_bytes();
    let mut parts: Vec<u32> = octets[..numbers - 1].iter().map(|b| u32::from(*b)).collect();
    parts.push(ip & (u32::MAX >> (8 * (numbers - 1))));
    let parts = parts.into_iter().zip(ways).map(|(number, way)| spelt(number, way));
    parts.collect::<Vec<_>>().join(".")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_096, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_text_is_read_safely(text in ".{0,60}") {
        check(&text);
        check(&format!("http://{text}"));
        check(&format!("https://ok.example{text}"));
    }

    #[test]
    fn any_bytes_are_read_safely(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        check(&String::from_utf8_lossy(&bytes));
        check(&format!("https://{}/", String::from_utf8_lossy(&bytes)));
    }

    #[test]
    fn texts_like_addresses_are_read_safely(text in string_regex(
        r"(http|https|HTTP|ftp):/{1,3}([0-9a-fx.:\[\]%@。０-９\\#?/-]|localhost|::1|127){1,24}"
    ).unwrap()) {
        check(&text);
    }

    #[test]
    fn a_receiver_is_a_host_and_port_however_it_is_written(
        texts in prop::array::uniform2(string_regex(
            r"(http|https|HTTPS)://(h|H|h\.|b\u{fc}cher\.example|xn--bcher-kva\.example|8\.8\.8\.8|\[2600::(0:)?1\])(:(0?443|80|8080))?[/?#]?[:@a]{0,2}"
        ).unwrap()),
    ) {
        let [one, other] = texts.map(|text| (receiver_of(&text), AddressPolicy::default().read(&text), text));
        if let (Ok(a), Ok(b)) = (&one.1, &other.1) {
            let (same, texts) = (a.authority() == b.authority(), (&one.2, &other.2));
            prop_assert_eq!(one.0 == other.0, same, "{:?}", texts);
        }
    }

    #[test]
    fn only_the_usual_spelling_of_an_ipv4_address_is_accepted(
        ip in prop_oneof![any::<u32>(), 0x7f00_0000_u32..0x7fff_ffff, 0x0a00_0000_u32..0x0aff_ffff],
        numbers in 1_usize..=4,
        ways in any::<[u8; 4]>(),
    ) {
        let spelt = spelt_v4(ip, numbers, ways);
        let text = format!("http://{spelt}/");
        let address = Ipv4Addr::from(ip);
        let read = AddressPolicy::default().read(&text);
        let fine = !is_closed_v4(address) && spelt == address.to_string();
        prop_assert_eq!(read.is_ok(), fine, "{} {}", text, address);
        if let Ok(to) = read {
            prop_assert_eq!(leads_to(&to), Some(IpAddr::V4(address)), "{}", text);
        }
    }

    #[test]
    fn ipv6_addresses_are_judged_by_their_network(start in prop_oneof![any::<u16>(), 0x1ff0_u16..0x2010, 0x3ff0_u16..0x4010],
                             second in prop_oneof![any::<u16>(), 0_u16..0x300, Just(0xdb8)],
                             rest in any::<[u16; 6]>()) {
        let [c, d, e, f, g, h] = rest;
        let ip = Ipv6Addr::new(start, second, c, d, e, f, g, h);
        let policy = AddressPolicy::default();
        prop_assert_eq!(policy.allows(ip.into()), !is_closed(ip.into()), "{}", ip);
        prop_assert_eq!(policy.read(&format!("http://[{ip}]/")).is_ok(), policy.allows(ip.into()));
        let mapped = Ipv4Addr::from((u32::from(start) << 16) | u32::from(second));
        prop_assert_eq!(
            policy.allows(mapped.to_ipv6_mapped().into()), policy.allows(mapped.into()), "{}", mapped
        );
    }
}
