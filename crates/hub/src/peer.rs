//! Where a request comes from: the address of whoever connected, or the one that a trusted proxy in front names. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::http::HeaderMap;

/// The address that a request counts for. The program puts it among the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    /// The peer of a connection from `address` whose request has these headers. What a proxy of `trusted` says in `X-Forwarded-For` is believed
    /// from the right up to the first address that is no proxy of ours: what stands before it, anybody could have written.
    #[must_use]
    pub fn of(address: IpAddr, headers: &HeaderMap, trusted: &[Network]) -> Self {
        let mut found = address.to_canonical();
        let is_ours = |address: IpAddr| trusted.iter().any(|network| network.holds(address));
        let said: Vec<&str> =
            headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).collect();
        for said in said.iter().rev() {
            if !is_ours(found) {
                break;
            }
            let Ok(named) = said.trim().parse::<IpAddr>() else { break };
            found = named.to_canonical();
        }
        Self(found)
    }

    /// Whether it is this very machine: its own users, or a proxy in front that does not say for whom it asks. Neither can be told from the other
    /// clients of this machine, so nothing is counted.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.0.is_loopback()
    }

    /// What is counted together: an IPv4 address, or the /64 that one IPv6 client has to itself.
    pub(crate) fn subnet(self) -> IpAddr {
        match self.0 {
            IpAddr::V4(_) => self.0,
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) & (u128::MAX << 64))),
        }
    }
}

/// A range of addresses, written `192.0.2.7` or `192.0.2.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: u128,
    mask: u128,
}

impl Network {
    /// Reads a range.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().ok()?;
        let (bits, whole): (u32, u32) = match address {
            IpAddr::V4(_) => (96, 32),
            IpAddr::V6(_) => (0, 128),
        };
        let length = length.map_or(Some(whole), |length| length.parse().ok().filter(|length| *length <= whole))?;
        let mask = u128::MAX.checked_shl(128 - bits - length).unwrap_or(0);
        Some(Self { first: wide(address) & mask, mask })
    }

    fn holds(self, address: IpAddr) -> bool {
        wide(address) & self.mask == self.first
    }
}

fn wide(address: IpAddr) -> u128 {
    u128::from(match address.to_canonical() {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
        IpAddr::V6(v6) => v6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str, forwarded: &[&'static str], trusted: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", axum::http::HeaderValue::from_static(value));
        }
        let trusted: Vec<Network> = trusted.iter().map(|text| Network::parse(text).unwrap()).collect();
        Peer::of(address.parse().unwrap(), &headers, &trusted).0.to_string()
    }

    #[test]
    fn only_a_trusted_proxy_says_for_whom_it_asks() {
        assert_eq!(peer("203.0.113.9", &["198.51.100.1"], &[]), "203.0.113.9");
        assert_eq!(peer("203.0.113.9", &["198.51.100.1"], &["203.0.113.0/24"]), "198.51.100.1");
        assert_eq!(peer("::ffff:203.0.113.9", &["198.51.100.1"], &["203.0.113.9"]), "198.51.100.1");
        // What the client wrote itself stands on the left.
        assert_eq!(peer("10.0.0.1", &["1.1.1.1, 198.51.100.1", "10.0.0.2"], &["10.0.0.0/8"]), "198.51.100.1");
        assert_eq!(peer("10.0.0.1", &["unknown"], &["10.0.0.0/8"]), "10.0.0.1");
        assert_eq!(peer("10.0.0.1", &["2001:db8::1"], &["10.0.0.0/8"]), "2001:db8::1");
    }

    #[test]
    fn ranges_are_read_or_refused() {
        for good in ["127.0.0.1", "0.0.0.0/0", "::/0", "fd00::/8", "192.0.2.0/24", "::1/128"] {
            assert!(Network::parse(good).is_some(), "{good}");
        }
        for bad in ["", "localhost", "1.2.3.4/33", "::1/129", "1.2.3.4/", "1.2.3/8", "/8"] {
            assert!(Network::parse(bad).is_none(), "{bad}");
        }
        let all = Network::parse("0.0.0.0/0").unwrap();
        assert!(all.holds("8.8.8.8".parse().unwrap()) && !all.holds("2001:db8::1".parse().unwrap()));
        assert!(Network::parse("::/0").unwrap().holds("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn one_ipv6_client_has_a_whole_subnet() {
        let subnet = |text: &str| Peer(text.parse().unwrap()).subnet();
        assert_eq!(subnet("2001:db8::1"), subnet("2001:db8::ffff:1"));
        assert_ne!(subnet("2001:db8::1"), subnet("2001:db8:0:1::1"));
        assert_ne!(subnet("192.0.2.1"), subnet("192.0.2.2"));
        assert!(Peer("127.3.2.1".parse().unwrap()).is_here() && Peer("::1".parse().unwrap()).is_here());
    }
}
