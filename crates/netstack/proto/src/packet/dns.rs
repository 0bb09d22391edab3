//! Names: the side of DNS that asks (RFC 1034, RFC 1035), as plain data.
//!
//! A [`Lookup`] decides which question goes to which server, and reads the answers. Its caller has
//! the sockets and the clock.
//!
//! An answer counts only if identifier, question and the case of each letter of the name are those
//! of the question (RFC 5452 section 9.1, draft-vixie-dnsext-dns0x20-00); the caller sends each
//! question from another port, and drops datagrams of other hosts. Nothing is cached.

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher24;
use smoltcp::wire::{
    DnsFlags, DnsOpcode, DnsPacket, DnsQueryType, DnsQuestion, DnsRcode, DnsRecord, DnsRecordData,
    DnsRepr,
};

/// The port of DNS servers.
pub const PORT: u16 = 53;

/// The most aliases that a lookup follows. RFC 1034 section 3.6.2 gives no number.
pub const MAX_ALIASES: u8 = 8;

/// The most addresses of a result.
pub const MAX_ADDRESSES: usize = 32;

/// The longest name in a message, and the longest label (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;

/// A domain name as in messages: labels after their lengths, and an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name(Vec<u8>);

impl Name {
    /// The name of these labels; `None` if one of them is empty or too long, or the name is.
    fn of<'a>(labels: impl IntoIterator<Item = &'a [u8]>) -> Option<Name> {
        let mut name = Vec::new();
        for label in labels {
            if !(1..=MAX_LABEL).contains(&label.len()) || name.len() + label.len() + 2 > MAX_NAME {
                return None;
            }
            name.push(label.len() as u8);
            name.extend_from_slice(label);
        }
        name.push(0);
        (name.len() > 1).then_some(Name(name))
    }

    /// The name that `text` is, in ASCII.
    fn parse(text: &str) -> Option<Name> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        let labels = text.strip_suffix('.').unwrap_or(text).split('.');
        Name::of(labels.map(str::as_bytes)).filter(|_| is_plain)
    }

    /// The name at `bytes` of `packet`.
    fn read(packet: &DnsPacket<&[u8]>, bytes: &[u8]) -> Option<Name> {
        let labels: Result<Vec<&[u8]>, _> = packet.parse_name(bytes).take(MAX_NAME).collect();
        Name::of(labels.ok()?)
    }

    fn is(&self, other: &Name) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

/// The names that `text` may mean, in the order to ask: with a dot at its end only itself, with
/// another dot itself first, and otherwise with each domain of `search` first.
fn candidates<'a>(text: &str, search: impl IntoIterator<Item = &'a str>) -> Vec<Name> {
    let itself = Name::parse(text);
    if text.ends_with('.') {
        return itself.into_iter().collect();
    }
    let within = search.into_iter();
    let mut names: Vec<Name> = within
        .filter_map(|domain| Name::parse(&format!("{text}.{domain}")))
        .collect();
    let at = if text.contains('.') { 0 } else { names.len() };
    if let Some(itself) = itself {
        names.insert(at, itself);
    }
    names
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Addresses(Vec<IpAddr>),
    /// The name is another one's, whose addresses the answer does not contain.
    Alias(Name),
    /// The name has no such addresses.
    Nothing,
    /// There is no such name (RFC 8020).
    NoName,
    /// The answer does not fit a datagram.
    Truncated,
    /// The server cannot or will not say.
    Failed,
}

/// A question that waits for its answer.
#[derive(Clone, Debug)]
struct Query {
    id: u16,
    name: Name,
    kind: DnsQueryType,
}

impl Query {
    /// The bytes of the question.
    fn message(&self) -> Vec<u8> {
        let repr = DnsRepr {
            transaction_id: self.id,
            opcode: DnsOpcode::Query,
            flags: DnsFlags::RECURSION_DESIRED,
            question: DnsQuestion {
                name: &self.name.0,
                type_: self.kind,
            },
        };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut DnsPacket::new_unchecked(&mut bytes[..]));
        bytes
    }

    /// Reads an answer; `None` if it is none to this question.
    fn read(&self, bytes: &[u8]) -> Option<Answer> {
        let packet = DnsPacket::new_checked(bytes).ok()?;
        let flags = packet.flags();
        let is_answer = flags.contains(DnsFlags::RESPONSE)
            && packet.opcode() == DnsOpcode::Query
            && packet.transaction_id() == self.id
            && packet.question_count() == 1;
        let (rest, question) = DnsQuestion::parse(packet.payload()).ok()?;
        if !is_answer || question.type_ != self.kind || question.name != self.name.0 {
            return None;
        }
        if flags.contains(DnsFlags::TRUNCATED) {
            return Some(Answer::Truncated);
        }
        Some(match packet.rcode() {
            DnsRcode::NoError => self.read_records(&packet, rest).unwrap_or(Answer::Failed),
            DnsRcode::NXDomain => Answer::NoName,
            _ => Answer::Failed,
        })
    }

    /// Reads the records of an answer; `None` if they are malformed.
    fn read_records(&self, packet: &DnsPacket<&[u8]>, mut rest: &[u8]) -> Option<Answer> {
        let (mut aliases, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..packet.answer_record_count() {
            let (after, record) = DnsRecord::parse(rest).ok()?;
            rest = after;
            let owner = Name::read(packet, record.name)?;
            match record.data {
                DnsRecordData::A(address) => addresses.push((owner, IpAddr::V4(address))),
                DnsRecordData::Aaaa(address) => addresses.push((owner, IpAddr::V6(address))),
                DnsRecordData::Cname(name) => aliases.push((owner, Name::read(packet, name)?)),
                DnsRecordData::Other(..) => {}
            }
        }
        // Aliases may be in any order (RFC 1034 section 3.6.2).
        let mut name = &self.name;
        for _ in 0..MAX_ALIASES {
            match aliases.iter().find(|(owner, _)| owner.is(name)) {
                Some((_, target)) => name = target,
                None => break,
            }
        }
        let of_name = addresses.iter().filter(|(owner, address)| {
            owner.is(name) && address.is_ipv4() == (self.kind == DnsQueryType::A)
        });
        let found: Vec<IpAddr> = of_name
            .map(|(_, address)| *address)
            .take(MAX_ADDRESSES)
            .collect();
        Some(match found.is_empty() {
            false => Answer::Addresses(found),
            true if name.is(&self.name) => Answer::Nothing,
            true => Answer::Alias(name.clone()),
        })
    }
}

/// Why a lookup has no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The text is no name, or no such name has an address.
    NoName,
    /// No server answered, or all refused.
    NoAnswer,
}

/// The next step of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send `message` to server number `server`, and call [`Lookup::answer`] with what arrives from
    /// it, or [`Lookup::no_answer`] if nothing does within a few seconds.
    Ask {
        /// An index into the caller's list of servers.
        server: usize,
        /// Over a connection, where two bytes with the length precede a message (RFC 7766), and
        /// not in a datagram.
        over_tcp: bool,
        /// The bytes of the question.
        message: Vec<u8>,
    },
    /// The lookup is over. IPv6 addresses come first (RFC 6724 section 2.1).
    Done(Result<Vec<IpAddr>, LookupError>),
}

/// The lookup of the addresses of one name.
///
/// For each name that the text may mean, it asks for IPv4 and for IPv6 addresses, one server after
/// the other, the whole list `attempts` times, until one answers. The last round asks without
/// random letters, for servers that change their case.
#[derive(Clone, Debug)]
pub struct Lookup {
    names: Vec<Name>,
    servers: usize,
    attempts: u8,
    secret: [u64; 2],
    /// Questions so far.
    count: u64,
    /// Servers that did not answer the current question.
    tries: usize,
    aliases: u8,
    over_tcp: bool,
    query: Option<Query>,
    found: Vec<IpAddr>,
    error: LookupError,
}

impl Lookup {
    /// A lookup of `text`, an ASCII domain name (RFC 5890 section 2.3.2.1 for others), with the
    /// domains of `search`. It asks `servers` servers, `attempts` times each. `secret` is random:
    /// it hides identifiers and letters from other hosts.
    pub fn new<'a>(
        text: &str,
        search: impl IntoIterator<Item = &'a str>,
        servers: usize,
        attempts: u8,
        secret: [u64; 2],
    ) -> Lookup {
        let mut names = candidates(text, search);
        names.reverse();
        let mut lookup = Lookup {
            names,
            servers,
            attempts,
            secret,
            count: 0,
            tries: 0,
            aliases: 0,
            over_tcp: false,
            query: None,
            found: Vec::new(),
            error: LookupError::NoName,
        };
        lookup.next_name();
        lookup
    }

    /// What to do now; the same until an answer, or none, is reported.
    pub fn step(&self) -> Step {
        match &self.query {
            Some(query) => Step::Ask {
                server: self.tries % self.servers,
                over_tcp: self.over_tcp,
                message: query.message(),
            },
            None if self.found.is_empty() => Step::Done(Err(self.error)),
            None => {
                let mut found = self.found.clone();
                found.sort_by_key(IpAddr::is_ipv4);
                Step::Done(Ok(found))
            }
        }
    }

    /// Reads a message from the server. Returns false if it is no answer to the question: it is to
    /// be dropped, and the right one may still arrive.
    pub fn answer(&mut self, message: &[u8]) -> bool {
        let answer = self.query.as_ref().and_then(|query| query.read(message));
        match answer {
            None => return false,
            Some(Answer::Truncated) if !self.over_tcp => {
                self.over_tcp = true;
            }
            Some(Answer::Truncated | Answer::Failed) => self.no_answer(),
            Some(Answer::Alias(name)) if self.aliases < MAX_ALIASES => {
                self.aliases += 1;
                let kind = self.kind();
                self.ask(name, kind);
            }
            Some(Answer::NoName) => self.next_name(),
            Some(Answer::Addresses(found)) => {
                self.found.extend(found);
                self.next_kind();
            }
            Some(Answer::Nothing | Answer::Alias(_)) => self.next_kind(),
        }
        true
    }

    /// The server did not answer in time, or cannot be reached.
    pub fn no_answer(&mut self) {
        let Some(query) = self.query.take() else {
            return;
        };
        self.tries += 1;
        if self.tries >= self.servers * usize::from(self.attempts) {
            self.error = LookupError::NoAnswer;
            self.query = Some(query);
            return self.next_kind();
        }
        self.over_tcp = false;
        let id = self.random() as u16;
        let name = self.mixed(&query.name);
        self.query = Some(Query { id, name, ..query });
    }

    fn kind(&self) -> DnsQueryType {
        self.query
            .as_ref()
            .map_or(DnsQueryType::A, |query| query.kind)
    }

    /// Asks for IPv6 addresses after IPv4 addresses; then the name is done.
    fn next_kind(&mut self) {
        let name = self.query.take().map(|query| (query.kind, query.name));
        match name {
            Some((DnsQueryType::A, name)) => self.ask(name, DnsQueryType::Aaaa),
            _ if self.found.is_empty() => self.next_name(),
            _ => {}
        }
    }

    /// Asks for the next name that the text may mean.
    fn next_name(&mut self) {
        self.query = None;
        self.aliases = 0;
        if self.servers > 0
            && self.attempts > 0
            && self.found.is_empty()
            && let Some(name) = self.names.pop()
        {
            self.ask(name, DnsQueryType::A);
        }
    }

    fn ask(&mut self, name: Name, kind: DnsQueryType) {
        self.tries = 0;
        self.over_tcp = false;
        let id = self.random() as u16;
        let name = self.mixed(&name);
        self.query = Some(Query { id, name, kind });
    }

    /// `name` with random upper-case letters, in the last round with none.
    fn mixed(&mut self, name: &Name) -> Name {
        let is_last = self.tries + self.servers >= self.servers * usize::from(self.attempts);
        let mix = self.attempts == 1 || !is_last;
        let mut bytes = name.0.to_ascii_lowercase();
        for letters in bytes.chunks_mut(64) {
            let bits = if mix { self.random() } else { 0 };
            for (i, letter) in letters.iter_mut().enumerate() {
                if bits >> i & 1 == 1 {
                    letter.make_ascii_uppercase();
                }
            }
        }
        Name(bytes)
    }

    /// A number that other hosts cannot predict.
    fn random(&mut self) -> u64 {
        self.count += 1;
        let mut hash = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        hash.write_u64(self.count);
        hash.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: [u64; 2] = [1, 2];

    fn name(text: &str) -> Vec<u8> {
        Name::parse(text).expect("a name").0
    }

    fn lookup(text: &str, search: &[&str], servers: usize, attempts: u8) -> Lookup {
        let search = search.iter().copied();
        Lookup::new(text, search, servers, attempts, SECRET)
    }

    /// The question that waits, and its server.
    fn asked(lookup: &Lookup) -> (usize, bool, Vec<u8>) {
        match lookup.step() {
            Step::Ask {
                server,
                over_tcp,
                message,
            } => (server, over_tcp, message),
            Step::Done(result) => panic!("{result:?}"),
        }
    }

    /// An answer to `question`: flags and code, and records of owner, type and data.
    fn answer(question: &[u8], flags: u16, records: &[(&str, u16, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = question.to_vec();
        bytes[2..4].copy_from_slice(&(0x8000 | flags).to_be_bytes());
        bytes[7] = records.len() as u8;
        for (owner, kind, data) in records {
            match *owner {
                // The name of the question, compressed.
                "" => bytes.extend([0xc0, 12]),
                owner => bytes.extend(name(owner)),
            }
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1, 0, 0, 0, 9]);
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    /// The name that a question asks for, in lower case, and the type.
    fn question(message: &[u8]) -> (String, u16) {
        let mut labels = Vec::new();
        let mut at = 12;
        while message[at] != 0 {
            let end = at + 1 + usize::from(message[at]);
            labels.push(String::from_utf8_lossy(&message[at + 1..end]).to_ascii_lowercase());
            at = end;
        }
        let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
        (labels.join("."), kind)
    }

    const V4: [u8; 4] = [192, 0, 2, 1];
    const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    #[test]
    fn both_families_are_asked_for_and_ipv6_comes_first() {
        let mut lookup = lookup("www.example.org", &["corp"], 1, 2);
        let (server, over_tcp, message) = asked(&lookup);
        assert_eq!((server, over_tcp), (0, false));
        assert_eq!(question(&message), ("www.example.org".to_owned(), 1));
        assert!(lookup.answer(&answer(&message, 0, &[("", 1, V4.into())])));
        let (_, _, message) = asked(&lookup);
        assert_eq!(question(&message).1, 28);
        assert!(lookup.answer(&answer(&message, 0, &[("", 28, V6.into())])));
        let found = vec![IpAddr::from(V6), IpAddr::from(V4)];
        assert_eq!(lookup.step(), Step::Done(Ok(found)));
    }

    #[test]
    fn aliases_are_followed_in_any_order_and_beyond_the_answer_but_not_forever() {
        let mut chain = lookup("a.example", &[], 1, 2);
        let (_, _, message) = asked(&chain);
        let records = [
            ("c.example", 1, V4.to_vec()),
            ("B.example", 5, name("c.example")),
            ("", 5, name("b.example")),
            ("evil.example", 1, vec![9; 4]),
        ];
        assert!(chain.answer(&answer(&message, 0, &records)));
        let (_, _, message) = asked(&chain);
        assert!(chain.answer(&answer(&message, 0, &[])));
        assert_eq!(chain.step(), Step::Done(Ok(vec![V4.into()])));

        let mut circle = lookup("a.example", &[], 1, 2);
        let mut questions = 0;
        while let Step::Ask { message, .. } = circle.step() {
            let other = match question(&message).0.as_str() {
                "a.example" => "b.example",
                _ => "a.example",
            };
            assert!(circle.answer(&answer(&message, 0, &[("", 5, name(other))])));
            questions += 1;
            assert!(questions <= 2 * usize::from(MAX_ALIASES));
        }
        assert_eq!(circle.step(), Step::Done(Err(LookupError::NoName)));
    }

    #[test]
    fn an_answer_to_another_question_is_dropped() {
        let mut lookup = lookup("www.example.org", &[], 1, 3);
        let (_, _, message) = asked(&lookup);
        let good = answer(&message, 0, &[("", 1, V4.into())]);
        let letter = (13..27).find(|&at| good[at].is_ascii_alphabetic());
        let letter = letter.expect("a letter");
        let type_at = message.len() - 3;
        for (at, flip) in [
            (0, 1),
            (2, 0x80),
            (2, 8),
            (5, 3),
            (letter, 0x20),
            (type_at, 4),
        ] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            assert!(!lookup.answer(&bad), "byte {at}");
            assert_eq!(asked(&lookup).2, message);
        }
        assert!(!lookup.answer(&message[..11]));
        assert!(lookup.answer(&good));
    }

    /// RFC 5452 section 9.2; the last round is in lower case.
    #[test]
    fn each_attempt_has_another_identifier_and_other_letters() {
        let mut lookup = lookup("a-long-name-with-many-letters.example.org", &[], 2, 3);
        let mut seen = Vec::new();
        for round in 0..3 {
            for server in 0..2 {
                let (to, _, message) = asked(&lookup);
                assert_eq!(to, server);
                let is_lower = !message[12..].iter().any(u8::is_ascii_uppercase);
                assert_eq!(is_lower, round == 2);
                assert!(!seen.contains(&message[..2].to_vec()));
                seen.push(message[..2].to_vec());
                lookup.no_answer();
            }
        }
        // IPv6 addresses are another question.
        assert_eq!(question(&asked(&lookup).2).1, 28);
        for _ in 0..6 {
            lookup.no_answer();
        }
        assert_eq!(lookup.step(), Step::Done(Err(LookupError::NoAnswer)));
    }

    #[test]
    fn a_truncated_answer_is_asked_for_again_over_tcp() {
        let mut lookup = lookup("www.example.org", &[], 1, 2);
        let (_, _, message) = asked(&lookup);
        assert!(lookup.answer(&answer(&message, 0x200, &[])));
        let (_, over_tcp, again) = asked(&lookup);
        assert!(over_tcp && again == message);
        assert!(lookup.answer(&answer(&again, 0, &[("", 1, V4.into())])));
        let (_, over_tcp, _) = asked(&lookup);
        assert!(!over_tcp);
    }

    #[test]
    fn a_search_list_is_asked_before_or_after_the_name_itself() {
        for (text, names) in [
            ("www", vec!["www.a.org", "www.b.org", "www"]),
            ("www.x", vec!["www.x", "www.x.a.org", "www.x.b.org"]),
            ("www.", vec!["www"]),
        ] {
            let mut lookup = lookup(text, &["a.org", "b.org."], 1, 1);
            for expected in names {
                let (_, _, message) = asked(&lookup);
                assert_eq!(question(&message), (expected.to_owned(), 1));
                // RFC 8020: no such name, so no other type either.
                assert!(lookup.answer(&answer(&message, 3, &[])));
            }
            assert_eq!(lookup.step(), Step::Done(Err(LookupError::NoName)));
        }
    }

    #[test]
    fn a_text_that_is_no_name_is_asked_of_nobody() {
        let long = "a.".repeat(128);
        for text in [
            "",
            ".",
            "a..b",
            ".a",
            "a b",
            "\u{e4}.de",
            &"a".repeat(64),
            &long,
        ] {
            let step = lookup(text, &[], 1, 1).step();
            assert_eq!(step, Step::Done(Err(LookupError::NoName)), "{text:?}");
        }
        let step = lookup("www", &[], 0, 1).step();
        assert_eq!(step, Step::Done(Err(LookupError::NoName)));
    }

    proptest! {
        /// Whatever a server sends, a lookup ends after a bounded number of questions.
        #[test]
        fn no_answer_makes_it_panic_or_ask_forever(
            seed: u64,
            tails in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..9),
            flags in proptest::collection::vec(any::<u16>(), 1..9),
        ) {
            let search = ["b.org"].into_iter();
            let mut lookup = Lookup::new("www.a", search, 2, 2, [seed, 0]);
            let mut questions = 0;
            while let Step::Ask { message, .. } = lookup.step() {
                let i = questions;
                let mut bytes = answer(&message, flags[i % flags.len()] & 0x7fff, &[]);
                bytes[7] = (seed >> (i % 64)) as u8;
                bytes.extend(&tails[i % tails.len()]);
                if !lookup.answer(&bytes) {
                    lookup.no_answer();
                }
                questions += 1;
                prop_assert!(questions < 500);
            }
        }
    }
}
