//! The language of the scripts: one step per line, each a list of words. "It" is the stack.
//!
//! - `listen [port]`: the stack listens, on port 7 by default
//! - `connect`, `connected`, `connect-error E`: it opens a connection to port 9 of the peer; that
//!   has succeeded; has failed with E
//! - `accept`, `accept none`: it takes an established connection; there is none
//! - `write N`, `write none`, `write error E`: the application writes N bytes; there is no room;
//!   the call fails with E
//! - `read N`, `read none`, `read eof`, `read error E`: it reads exactly N bytes; there are none;
//!   the stream has ended; the call fails with E
//! - `ended E`: the application asks how the connection ended, which it can do once
//! - `shutdown`, `close`, `abort`, `unlisten`: it ends its side; drops the socket; resets; stops
//!   listening
//! - `set nodelay [off]`, `set keepalive [off | IDLE INTERVAL PROBES]`, `set user-timeout T`,
//!   `set linger T`, `set cork [off]`, `set max-segment N`, `set newreno`, `set bbr`,
//!   `set ttl N`, `set tos N`: it sets an option of the connection
//! - `< FLAGS field=value ...`: the peer sends a segment
//! - `> FLAGS field=value ... [within=T] [after=T..T]`: the stack's next frame is such a segment,
//!   and comes at once, within T, or between both times after the step before
//! - `> text A..B`: the stack's next segments carry bytes A to B - 1, in order
//! - `> nothing [T]`: the stack sends nothing, now or for T
//! - `drain`: ignores all frames that the stack has sent so far
//! - `wait T`: time passes
//! - `state S`: the state of the connection, `CLOSED` if there is none
//! - `< router hops=17 mtu=1400 lifetime=1800 reachable=.. retrans=.. prefix=..`, `< redirect`,
//!   `< too-big echo=1400 mtu=1300`: over IPv6, with `routers = true`: the peer advertises itself;
//!   redirects to another router (`by-other` marks frames to that router); reports that an echo
//!   reply was too big
//! - `< arp request`, `< arp reply`, `> arp request`, `> arp reply`, `arp manual`: ARP; without
//!   `arp manual` the peer answers by itself
//! - `< icmp TYPE/CODE seq=N [mtu=N] [srcport=P]`: a router reports an ICMP error about the stack's
//!   segment at N
//! - `< echo len=N id=N`, `> echo-reply len=N id=N`: ICMP
//! - `udp bind P`, `udp connect P`, `udp close`, `udp send N [to=P] [all] [error=E]`,
//!   `udp recv N [from=P]`, `udp recv none`, `udp recv error E`: a UDP socket; `all` is broadcast
//! - `< udp from=P to=P len=N [checksum=none|bad] [all] [piece=A..B [more]]`,
//!   `> udp from=P to=P len=N`, `> fragment offset=A len=N [more]`: datagrams, or bytes A to B - 1
//!   of header and data
//! - `< icmp type=N code=N from=P to=P`, `> icmp type=N code=N`, `< ip protocol=N`: errors about
//!   datagrams; another protocol
//! - `< arp conflict`, `< arp probe`, `> arp announcement`: RFC 5227
//!
//! `FLAGS` are names joined by `-`, such as `SYN-ACK`, or `none`; `|` separates alternatives. PSH
//! is compared only if the script names it. `ts=V/E` is TSval and TSecr of the peer: a number,
//! `last` for the newest TSval of the stack, `last-N` for one N ticks older. `options=HEX` appends
//! option bytes after the options that have names. `seq` and `ack` count from the SYN of the side
//! whose bytes they name; `len` is the length of the data. Data is always a pattern that depends on
//! its offset in the stream, and is compared. `ce` marks a segment of the peer; `ect` and `no-ect`
//! check whether the stack's segments are ECN-capable. Times: `10ms`, `2s`, `500us`. `#` begins a
//! comment.

use std::collections::BTreeMap;

use dominoes_testkit::packet::Family;
use serde::Deserialize;

/// Values of a script's placeholders.
pub(crate) type Row = BTreeMap<String, String>;

/// A file of scripts.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Steps that scripts begin with, by name.
    #[serde(default)]
    pub(crate) prelude: BTreeMap<String, String>,
    /// Tables for which scripts are repeated, by name.
    #[serde(default)]
    pub(crate) rows: BTreeMap<String, Vec<Row>>,
    #[serde(default)]
    pub(crate) script: Vec<Written>,
    #[serde(default)]
    pub(crate) held: Vec<Held>,
}

/// A rule that no script can check, and the tests that check it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Held {
    /// RFC, section, and the rule.
    pub(crate) rule: String,
    /// The file with the tests, relative to the root of the repository.
    #[serde(rename = "in")]
    pub(crate) file: String,
    pub(crate) tests: Vec<String>,
}

/// A script as it is written, or a table of scripts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    name: String,
    /// RFC, section, and the rule.
    rule: String,
    #[serde(default)]
    pending: Option<String>,
    /// Why the script is meaningless over IPv6.
    #[serde(default)]
    only_ipv4: Option<String>,
    /// Why the script is meaningless over IPv4, or means something else.
    #[serde(default)]
    only_ipv6: Option<String>,
    /// Limits of the stack that differ from the default.
    #[serde(default)]
    limits: BTreeMap<String, u32>,
    /// Whether the stack accepts router advertisements; it then knows no other neighbours. IPv6
    /// only.
    #[serde(default)]
    routers: bool,
    /// The peer's initial sequence number.
    #[serde(default = "irs")]
    irs: u32,
    #[serde(default)]
    prelude: Option<String>,
    steps: String,
    /// Repeats the script with these values of its placeholders `{key}`.
    #[serde(default)]
    each: Vec<Row>,
    /// Repeats the script with the rows of these tables.
    #[serde(default)]
    rows: Vec<String>,
}

fn irs() -> u32 {
    // Sequence numbers wrap around soon.
    0xffff_ff00
}

/// One conversation.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) rule: String,
    pub(crate) pending: Option<String>,
    /// The IP versions that the script applies to.
    pub(crate) families: Vec<Family>,
    pub(crate) limits: BTreeMap<String, u32>,
    pub(crate) routers: bool,
    pub(crate) irs: u32,
    /// The location and the words of each step.
    pub(crate) steps: Vec<(String, String)>,
}

impl Script {
    /// A script without anything but steps; the first line is line 0.
    pub(crate) fn of_steps(steps: &str) -> Script {
        Script {
            name: "a test".to_owned(),
            rule: String::new(),
            pending: None,
            families: Family::ALL.to_vec(),
            limits: BTreeMap::new(),
            routers: false,
            irs: irs(),
            steps: lines("line", 0, steps),
        }
    }
}

fn lines(place: &str, first: usize, text: &str) -> Vec<(String, String)> {
    let code = |line: &str| line.split('#').next().unwrap_or("").trim().to_owned();
    text.lines()
        .enumerate()
        .map(|(number, line)| (format!("{place} {}", first + number), code(line)))
        .filter(|(_, line)| !line.is_empty())
        .collect()
}

impl Written {
    /// The scripts that this one expands to.
    pub(crate) fn expand(&self, shared: &File) -> Result<Vec<Script>, String> {
        let mut rows: Vec<&Row> = self.each.iter().collect();
        for table in &self.rows {
            let table = shared.rows.get(table);
            rows.extend(table.ok_or_else(|| format!("`{}`: no such table", self.name))?);
        }
        let once = Row::new();
        if rows.is_empty() {
            rows.push(&once);
        }
        let scripts = rows.iter();
        scripts
            .map(|row| self.script(row, &shared.prelude))
            .collect()
    }

    fn script(&self, row: &Row, preludes: &BTreeMap<String, String>) -> Result<Script, String> {
        let fill = |text: &str| {
            row.iter().fold(text.to_owned(), |text, (key, value)| {
                text.replace(&format!("{{{key}}}"), value)
            })
        };
        let name = fill(&self.name);
        let mut steps = Vec::new();
        if let Some(prelude) = &self.prelude {
            for part in fill(prelude).split_whitespace() {
                let text = preludes
                    .get(part)
                    .ok_or_else(|| format!("`{name}`: there is no prelude `{part}`"))?;
                steps.extend(lines(&format!("{part}, line"), 1, text));
            }
        }
        steps.extend(lines("line", 1, &fill(&self.steps)));
        if let Some((_, line)) = steps.iter().find(|(_, line)| line.contains(['{', '}'])) {
            return Err(format!("`{name}`: nothing says what `{line}` means"));
        }
        let says = |word: &str, field: &Option<String>| row.contains_key(word) || field.is_some();
        let families = match (
            says("only_ipv4", &self.only_ipv4),
            says("only_ipv6", &self.only_ipv6),
        ) {
            (false, false) => Family::ALL.to_vec(),
            (true, false) => vec![Family::V4],
            (false, true) => vec![Family::V6],
            (true, true) => return Err(format!("`{name}`: which family?")),
        };
        Ok(Script {
            name,
            rule: fill(&self.rule),
            pending: row.get("pending").cloned().or_else(|| self.pending.clone()),
            families,
            limits: self.limits.clone(),
            routers: self.routers,
            irs: self.irs,
            steps,
        })
    }
}
