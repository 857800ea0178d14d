//! Which addresses may be called, however they are spelt and wherever they come from.

use std::net::IpAddr;

use codeq_webhooks::client::SendError;
use codeq_webhooks::policy::Refused;

use crate::support::{Names, PATIENCE, client, policy, post};

/// Addresses that tenants must not reach: the ends of every range, and those that an attacker would try first.
const CLOSED: &[&str] = &[
    "0.0.0.0",
    "0.0.0.1",
    "0.255.255.255",
    "10.0.0.0",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.0",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.0",
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.255",
    "168.63.129.16",
    "169.254.0.0",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.255.255",
    "172.16.0.0",
    "172.17.0.1",
    "172.31.255.255",
    "192.0.0.0",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.0.255",
    "192.0.2.0",
    "192.0.2.255",
    "192.88.99.0",
    "192.88.99.255",
    "192.168.0.0",
    "192.168.255.255",
    "198.18.0.0",
    "198.19.255.255",
    "198.51.100.0",
    "198.51.100.255",
    "203.0.113.0",
    "203.0.113.255",
    "224.0.0.0",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.0",
    "255.255.255.254",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::7f00:1",
    "::a00:1",
    "::5db8:d70e",
    "::ffff:0:7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "64:ff9b::7f00:1",
    "64:ff9b::5db8:d70e",
    "64:ff9b:1::1",
    "64:ff9b:1:ffff::a00:1",
    "100::",
    "100::1",
    "100:0:0:1::1",
    "200::1",
    "400::1",
    "1000::1",
    "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    "2001::",
    "2001::1",
    "2001:0:7f00:1::80ff:fffe",
    "2001:1::1",
    "2001:2::1",
    "2001:3::1",
    "2001:4:112::1",
    "2001:10::1",
    "2001:20::1",
    "2001:30::1",
    "2001:1ff:ffff::1",
    "2001:db8::",
    "2001:db8::1",
    "2001:db8:ffff:ffff::1",
    "2002::",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2002:5db8:d70e::1",
    "2002:ffff:ffff::1",
    "3fff::",
    "3fff::1",
    "3fff:fff:ffff::1",
    "4000::1",
    "5f00::1",
    "8000::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fdff::1",
    "fe00::1",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "feff::1",
    "ff02::1",
    "ff0e::1",
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
];

/// Addresses that everybody can reach: the neighbours of every range.
const OPEN: &[&str] = &[
    "1.0.0.0",
    "1.1.1.1",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.215.14",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "168.63.129.15",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "191.255.255.255",
    "192.0.1.0",
    "192.0.1.255",
    "192.0.3.0",
    "192.88.98.255",
    "192.88.100.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "198.51.99.255",
    "198.51.101.0",
    "203.0.112.255",
    "203.0.114.0",
    "223.255.255.255",
    "::ffff:1.1.1.1",
    "2000::1",
    "2001:200::",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2001:db7:ffff::1",
    "2001:db9::1",
    "2003::1",
    "2606:2800:21f:cb07::1",
    "2a00:1450::1",
    "3ffe:ffff::1",
    "3fff:1000::1",
    "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
];

/// Spellings that the URL standard reads as a closed address.
const SPELLINGS: &[&str] = &[
    "127.1",
    "127.0.1",
    "127.0.0.1.",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "0X7F.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "0",
    "0x0",
    "00",
    "0.0",
    "127.0.0.0x1",
    "127.0.00.01",
    "0x7f.0x0.0x0.0x1",
    "0x",
    "127.0.0.01",
    "127.0.0.0001",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "１２７.０.０.１",
    "127。0。0。1",
    "127．0．0．1",
    "127｡0｡0｡1",
    "①②⑦.⓪.⓪.①",
    "１２７。１",
    "0xa9fea9fe",
    "2852039166",
    "0251.0376.0251.0376",
    "169.254.43518",
    "0xa.1",
    "012.1",
    "167772161",
    "10.1",
    "192.168.257",
    "3232235521",
    "0xc0a80001",
    "172.1048577",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::0.0.0.1]",
    "[::ffff:7f00:1]",
    "[::FFFF:127.0.0.1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[2002:7f00:1::]",
    "[FE80::1]",
    "[::]",
];

/// Texts that are not addresses.
const NONSENSE: &[(&str, Refused)] = &[
    ("", Refused::NotAUrl),
    ("hook", Refused::NotAUrl),
    ("/hook", Refused::NotAUrl),
    ("//ok.example/", Refused::NotAUrl),
    ("http:", Refused::NotAUrl),
    ("http://", Refused::NotAUrl),
    ("http:///ok.example", Refused::NotAUrl),
    ("http:ok.example", Refused::NotAUrl),
    ("http:/ok.example", Refused::NotAUrl),
    ("http://?x", Refused::NotAUrl),
    ("http://#x", Refused::NotAUrl),
    ("http://:80/", Refused::NotAUrl),
    ("file:///etc/passwd", Refused::Scheme),
    ("gopher://ok.example/", Refused::Scheme),
    ("ftp://ok.example/", Refused::Scheme),
    ("unix:/run/x.sock", Refused::Scheme),
    ("data:text/plain,x", Refused::Scheme),
    ("ws://ok.example/", Refused::Scheme),
    ("javascript:alert(1)", Refused::Scheme),
    ("httpx://ok.example/", Refused::Scheme),
    ("https://user:pw@ok.example/", Refused::Credentials),
    ("https://user@ok.example/", Refused::Credentials),
    ("https://@ok.example/", Refused::Credentials),
    ("https://:@ok.example/", Refused::Credentials),
    ("https://a@127.0.0.1/", Refused::Credentials),
    ("https://ok.example:pw@127.0.0.1/", Refused::Credentials),
    ("https://127.0.0.1#@ok.example", Refused::AddressNotAllowed),
    ("http://localhost/", Refused::AddressNotAllowed),
    ("https://1.1:8443/", Refused::Host),
    ("https://0x01010101/", Refused::Host),
    ("http://LOCALHOST.:8080/", Refused::AddressNotAllowed),
    ("https://a.localhost/", Refused::AddressNotAllowed),
    ("https://127.0.0.1?@ok.example", Refused::AddressNotAllowed),
    ("https://127.0.0.1/@ok.example", Refused::AddressNotAllowed),
    ("https://ok.example\\@127.0.0.1/", Refused::NotAUrl),
    ("https:\\\\ok.example/", Refused::NotAUrl),
    ("https://ok.example\\x", Refused::NotAUrl),
    ("https://ok.exa\tmple/", Refused::NotAUrl),
    ("https://ok.exa\nmple/", Refused::NotAUrl),
    ("https://ok.example/\r\nX: y", Refused::NotAUrl),
    (" https://ok.example/", Refused::NotAUrl),
    ("https://ok.example/ x", Refused::NotAUrl),
    ("https://ok.example/\u{0}", Refused::NotAUrl),
    ("https://ok.example/\u{a0}", Refused::NotAUrl),
    ("https://ok.example/\u{2028}", Refused::NotAUrl),
    ("https://[fe80::1%25eth0]/", Refused::NotAUrl),
    ("https://[fe80::1%eth0]/", Refused::NotAUrl),
    ("https://[2606:2800:21f:cb07::1%251]/", Refused::NotAUrl),
    ("https://[::1/", Refused::NotAUrl),
    ("https://::1/", Refused::NotAUrl),
    ("https://[v1.x]/", Refused::NotAUrl),
    ("https://256.256.256.256/", Refused::NotAUrl),
    ("https://1.2.3.4.5/", Refused::NotAUrl),
    ("https://0x100000000/", Refused::NotAUrl),
    ("https://a%00b/", Refused::NotAUrl),
    ("https://a%2fb/", Refused::NotAUrl),
    ("https://a b/", Refused::NotAUrl),
    ("https://ok..example/", Refused::Host),
    ("https://.ok.example/", Refused::Host),
    ("https://./", Refused::Host),
    ("https://ok.example../", Refused::Host),
    ("https://a'b.example/", Refused::Host),
    ("https://a;b.example/", Refused::Host),
    ("https://a,b.example/", Refused::Host),
    ("https://*.example/", Refused::Host),
    ("https://ok.example:0/", Refused::PortNotAllowed),
    ("https://ok.example:22/", Refused::PortNotAllowed),
    ("http://ok.example:25/", Refused::PortNotAllowed),
    ("http://ok.example:6379/", Refused::PortNotAllowed),
    ("http://ok.example:11211/", Refused::PortNotAllowed),
    ("http://1.1.1.1:81/", Refused::PortNotAllowed),
    ("https://ok.example:65536/", Refused::NotAUrl),
    ("https://ok.example:-1/", Refused::NotAUrl),
    ("https://ok.example:http/", Refused::NotAUrl),
];

fn in_url(ip: &str) -> String {
    if ip.contains(':') { format!("http://[{ip}]/") } else { format!("https://{ip}:8443/x?y") }
}

#[test]
fn closed_addresses_are_refused_and_open_ones_accepted() {
    let policy = policy(&[]);
    let refused = |text: &str| policy.read(text).map(|to| to.url().to_string()).unwrap_err();
    for ip in CLOSED {
        assert!(!policy.allows(ip.parse().unwrap()), "{ip}");
        assert_eq!(refused(&in_url(ip)), Refused::AddressNotAllowed, "{ip}");
    }
    for ip in OPEN {
        assert!(policy.allows(ip.parse().unwrap()), "{ip}");
        assert!(policy.read(&in_url(ip)).is_ok(), "{ip}");
    }
    for host in SPELLINGS {
        for url in [format!("http://{host}"), format!("hTTps://{host}:8443/x#y")] {
            assert_eq!(refused(&url), Refused::AddressNotAllowed, "{url}");
        }
    }
    for (text, why) in NONSENSE {
        assert_eq!(refused(text), *why, "{text:?}");
    }
    let long = |len: usize| format!("https://ok.example/{}", "x".repeat(len - 19));
    assert!(policy.read(&long(2_048)).is_ok());
    assert_eq!(refused(&long(2_049)), Refused::TooLong);
}

#[tokio::test]
async fn closed_addresses_from_dns_are_refused() {
    let names = Names::none();
    let client = client(&[], &names, PATIENCE);
    for ip in CLOSED {
        names.set("hook.example", ip.parse().unwrap());
        let posted = post(&client, "http://hook.example/").await;
        assert_eq!(posted, Err(SendError::NotAllowed), "{ip}");
    }
    assert_eq!(names.asked(), CLOSED.len());
}

#[test]
fn host_names_are_accepted_unresolved() {
    let policy = policy(&[]);
    for (text, host, port, tls, authority) in [
        ("https://ok.example", "ok.example", 443, true, "ok.example:443"),
        ("HTTP://OK.Example:8080/x", "ok.example", 8080, false, "ok.example:8080"),
        ("https://ok.example./x#y", "ok.example.", 443, true, "ok.example:443"),
        ("http://a_b-c.example:80/", "a_b-c.example", 80, false, "a_b-c.example:80"),
        ("https://bücher.example/ü?ö", "xn--bcher-kva.example", 443, true, ""),
        ("https://ok。example/", "ok.example", 443, true, ""),
        ("https://[2606:4700::1111]/", "[2606:4700::1111]", 443, true, "[2606:4700::1111]:443"),
        ("https://ok.example/a|b?c=[d]&e='f'", "ok.example", 443, true, ""),
    ] {
        let to = policy.read(text).unwrap_or_else(|why| panic!("{text} {why}"));
        assert_eq!((to.host(), to.port(), to.is_tls()), (host, port, tls), "{text}");
        assert!(authority.is_empty() || to.authority() == authority, "{text} {}", to.authority());
        assert_eq!(to.url().fragment(), None);
    }
}

#[test]
fn opened_networks_are_open_in_all_forms() {
    let policy = policy(&["10.0.0.0/8", "::ffff:192.168.1.0/120", "fd00:1::/32", "127.0.0.1/32"]);
    for ip in ["10.0.0.1", "::ffff:10.0.0.1", "192.168.1.7", "::ffff:192.168.1.7", "fd00:1::7"] {
        assert!(policy.allows(ip.parse().unwrap()), "{ip}");
        assert!(policy.read(&in_url(ip)).is_ok(), "{ip}");
    }
    // Only these, and not in forms that lead through a translator or relay of somebody else.
    for ip in [
        "11.0.0.1",
        "192.168.2.7",
        "fd00:2::7",
        "127.0.0.2",
        "::1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
    ] {
        let open = ip == "11.0.0.1";
        assert_eq!(policy.allows(ip.parse::<IpAddr>().unwrap()), open, "{ip}");
    }
    assert!(policy.read("http://127.0.0.1:22/").is_ok());
    assert_eq!(policy.read("http://127.1:22/").unwrap_err(), Refused::Host);
    assert_eq!(policy.read("http://127.0.0.1:0/").unwrap_err(), Refused::PortNotAllowed);
    assert_eq!(policy.read("http://ok.example:22/").unwrap_err(), Refused::PortNotAllowed);
}

#[test]
fn refusals_do_not_reveal_the_network() {
    let policy = policy(&[]);
    let why = policy.read("http://10.20.30.40/").unwrap_err().to_string();
    assert!(why.starts_with("the address is not public"), "{why}");
}
