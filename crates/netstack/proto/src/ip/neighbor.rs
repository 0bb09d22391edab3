//! The neighbour cache (RFC 826, RFC 4861), and the packets and opens that wait for an address.
//!
//! It is not replicated: the pump keeps it, answers requests, and writes the results that
//! connections need into the log.
//!
//! A neighbour is *reachable* for a while after we received a message from it, and *stale*
//! afterwards. A stale neighbour is still used when it is needed, and probed by unicast (RFC
//! 1122 section 2.3.2.1, mechanisms 1 and 2). One that does not answer is *silent*: when it is
//! needed again, it is resolved like an unknown one. If it then has another link-layer address,
//! it has moved.
//!
//! The states DELAY and PROBE of IPv6 (RFC 4861 section 7.3.2) correspond to a stale neighbour
//! that was needed since. In IPv6 only the answer to a solicitation makes a neighbour
//! reachable; a neighbour that solicits us becomes stale.

use core::ops::Deref;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::ip::rate_limit::TokenBucket;
use crate::packet::flow::Mac;
use crate::packet::flow::{Address, Endpoint};
use crate::time::{Duration, Instant};

/// Maximum number of neighbours in addition to the next hops of connections; above it, the
/// least recently needed ones are evicted.
const MAX_NEIGHBORS: usize = 1024;
/// Neighbours that are evicted together. An eviction scans the whole table, and anyone on the link
/// can claim to be a new neighbour with every frame: a batch spreads the cost over many frames.
const EVICTED_AT_ONCE: usize = MAX_NEIGHBORS / 16;
/// How long a neighbour counts as reachable (RFC 1122 section 2.3.2.1: of the order of a minute).
const REACHABLE: Duration = Duration::from_secs(60);
/// The default for IPv6 (RFC 4861 section 10), and the bounds of advertised values.
const REACHABLE_V6: Duration = Duration::from_secs(30);
const REACHABLE_V6_BOUNDS: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(3600));
/// Bounds of the time between two solicitations that routers may request.
pub const RETRANS_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(10));
/// Time from the use of a stale IPv6 neighbour to its first probe (RFC 4861 section 10).
const DELAY_FIRST_PROBE: Duration = Duration::from_secs(5);
/// Minimum limit of the bytes that wait for one neighbour, with [`FRAME_OVERHEAD`] for each
/// frame: the value of Linux. A datagram of 65,507 bytes counts 199,436 in packets of 68 bytes.
const LEAST_FOR_ONE: usize = 212_992;
/// How many times their size in a socket's send ring datagrams count here, at most.
const FRAMES_PER_RECORD: usize = 4;
/// Bytes that may wait for all neighbours together.
const MOST_FOR_ALL: usize = 4 << 20;
/// Limits for answers: the number of neighbours that are resolved only for answers, and the
/// waiting bytes above which answers are dropped, so that packets of sockets find room.
const MAX_ANSWERED: usize = MAX_NEIGHBORS / 4;
const MOST_WITH_ANSWERS: usize = MOST_FOR_ALL / 2;
/// Bytes that a frame counts in addition to its length.
pub const FRAME_OVERHEAD: usize = 64;
/// Time between two requests for the same address (RFC 1122 section 2.3.2.1: at most one a second;
/// the default of RetransTimer in RFC 4861 section 10).
const RETRY: Duration = Duration::from_secs(1);
/// Minimum time between two address changes of a neighbour; the rightful owner repeats its claim.
const MOVE_INTERVAL: Duration = Duration::from_secs(1);
/// Burst of address changes of all neighbours, and the time until one more is allowed. The pump
/// checks all connections at each change, and anyone on the link can claim any address.
const MOVES: (u64, Duration) = (16, Duration::from_millis(100));
/// Requests that go unanswered before a neighbour counts as unreachable.
const MAX_TRIES: u32 = 3;

/// An active open that waits for its next hop's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingOpen {
    /// The socket call that waits for it.
    pub request_id: u64,
    /// Our end; the stack replaces an unspecified address and port 0.
    pub local: Endpoint,
    /// The other end.
    pub remote: Endpoint,
}

#[derive(Debug)]
struct Resolution<F> {
    tries: u32,
    again_at: Instant,
    /// Whether something other than answers waits.
    cause: Cause,
    opens: Vec<WaitingOpen>,
    /// The frames of each datagram, newest last.
    datagrams: VecDeque<Vec<F>>,
    /// The cost of all waiting datagrams.
    bytes: usize,
}

/// The time between two requests for `address`; that for IPv6 is `retransmit`.
fn retry(address: Address, retransmit: Duration) -> Duration {
    if address.is_v4() { RETRY } else { retransmit }
}

/// The cost of a datagram's frames.
fn cost(frames: &[impl Deref<Target = [u8]>]) -> usize {
    frames
        .iter()
        .map(|frame| frame.len() + FRAME_OVERHEAD)
        .sum()
}

/// The cache entry of a neighbour.
#[derive(Clone, Copy, Debug)]
struct Neighbor {
    mac: Mac,
    /// When a message from it last arrived.
    last_seen: Instant,
    /// When it was last known to be reachable; `None`: it only sent messages.
    confirmed: Option<Instant>,
    /// When its address was last needed.
    last_used: Instant,
    /// When its link-layer address last changed.
    moved: Option<Instant>,
    /// Present while it is probed: the number of probes so far, and the time of the next.
    poll: Option<(u32, Instant)>,
    /// It did not answer; its link-layer address is not used until it sends a message.
    is_silent: bool,
}

/// Why frames are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A user of the stack sends them.
    Ours,
    /// They answer a packet, which any host can provoke.
    Answer,
}

/// The neighbour cache and the pending resolutions. `F` is the type of a waiting frame.
#[derive(Debug)]
pub struct Neighbors<F = Vec<u8>> {
    /// The link-layer address of all neighbours, on a link without ARP and neighbour discovery.
    /// The table is empty then.
    fixed_mac: Option<Mac>,
    moves: TokenBucket,
    /// When a link-layer address last changed.
    moved: Option<Instant>,
    reachable_v6: Duration,
    /// Time between two solicitations of an IPv6 neighbour.
    retransmit_v6: Duration,
    table: HashMap<Address, Neighbor>,
    /// How many connections have each neighbour as their next hop. Such a neighbour is not evicted:
    /// a connection follows it only while the table holds the address from which it moved.
    needed: HashMap<Address, u32>,
    /// No probe is due before this time.
    next_poll: Option<Instant>,
    /// The addresses that are being resolved.
    resolving: BTreeMap<Address, Resolution<F>>,
    /// How many of them only answers need.
    answered: usize,
    /// No request is repeated before this time; it may be too early.
    next_ask: Instant,
    /// Number of opens that wait.
    opens: usize,
    /// Limit of the bytes that wait for one neighbour.
    most_for_one: usize,
    /// Bytes that wait for all neighbours.
    bytes: usize,
}

impl<F> Default for Neighbors<F> {
    fn default() -> Self {
        Neighbors {
            fixed_mac: None,
            moves: TokenBucket::new(MOVES.0, MOVES.1),
            moved: None,
            reachable_v6: REACHABLE_V6,
            retransmit_v6: RETRY,
            table: HashMap::new(),
            needed: HashMap::new(),
            next_poll: None,
            resolving: BTreeMap::new(),
            answered: 0,
            next_ask: Instant::NEVER,
            opens: 0,
            most_for_one: LEAST_FOR_ONE,
            bytes: 0,
        }
    }
}

/// The work that is due after time has passed.
#[derive(Debug, PartialEq, Eq)]
pub struct Overdue<F> {
    /// Resend requests for these addresses.
    pub ask: Vec<Address>,
    /// Probe these neighbours.
    pub poll: Vec<(Address, Mac)>,
    /// Opens that failed because their next hop did not answer.
    pub failed: Vec<WaitingOpen>,
    /// Number of datagrams that waited for a neighbour that did not answer.
    pub dropped: u64,
    /// Their frames.
    pub unsent: Vec<F>,
    /// Neighbours that did not answer.
    pub silent: Vec<Address>,
}

impl<F> Default for Overdue<F> {
    fn default() -> Self {
        Overdue {
            ask: Vec::new(),
            poll: Vec::new(),
            failed: Vec::new(),
            dropped: 0,
            unsent: Vec::new(),
            silent: Vec::new(),
        }
    }
}

/// The consequences of learning an address.
#[derive(Debug, PartialEq, Eq)]
pub struct Learned<F> {
    /// Opens that waited for it.
    pub opens: Vec<WaitingOpen>,
    /// Frames that waited for it, oldest first.
    pub frames: VecDeque<F>,
    /// The previous link-layer address, if it changed.
    pub moved: Option<Mac>,
    /// The message claims another link-layer address, too soon after other changes.
    pub is_move_rejected: bool,
}

impl<F> Default for Learned<F> {
    fn default() -> Self {
        Learned {
            opens: Vec::new(),
            frames: VecDeque::new(),
            moved: None,
            is_move_rejected: false,
        }
    }
}

/// The outcome of queueing frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Whether a request has to be sent now.
    pub ask: bool,
    /// Datagrams for which there was no room, or that were dropped to make room.
    pub dropped: u64,
}

/// The effect of a neighbour's message.
enum Heard {
    /// Its link-layer address is unchanged.
    Same,
    /// It moved away from this link-layer address.
    Moved(Mac),
    /// It claims to have moved, too soon after other changes.
    Rejected,
}

impl Neighbor {
    /// Marks it silent; only its last link-layer address is kept.
    const fn silence(&mut self) {
        (self.is_silent, self.confirmed, self.poll) = (true, None, None);
    }

    /// It claims the link-layer address `mac`. The claim of a silent neighbour is accepted,
    /// like that of an unknown one.
    fn hear(&mut self, mac: Mac, now: Instant, moves: &mut TokenBucket) -> Heard {
        let was_silent = core::mem::take(&mut self.is_silent);
        self.last_seen = now;
        if self.mac == mac {
            return Heard::Same;
        }
        let is_late = self.moved.is_none_or(|at| at + MOVE_INTERVAL <= now);
        let may_move = was_silent || is_late && moves.admits(now);
        if !may_move {
            return Heard::Rejected;
        }
        self.moved = Some(now);
        Heard::Moved(core::mem::replace(&mut self.mac, mac))
    }
}

impl<F: Deref<Target = [u8]>> Neighbors<F> {
    /// Creates a cache for sockets with send rings of `send_buffer` bytes: the whole content of
    /// one ring may wait for a neighbour.
    pub fn new(send_buffer: usize) -> Self {
        let most = send_buffer.saturating_mul(FRAMES_PER_RECORD);
        Neighbors {
            most_for_one: most.clamp(LEAST_FOR_ONE, MOST_FOR_ALL),
            ..Neighbors::default()
        }
    }

    /// Gives all neighbours the same link-layer address, so that none is ever asked for.
    #[must_use]
    pub fn with_fixed_mac(mut self, mac: Option<Mac>) -> Self {
        self.fixed_mac = mac;
        self
    }

    /// Whether neighbours are asked for their link-layer addresses.
    pub fn asks(&self) -> bool {
        self.fixed_mac.is_none()
    }

    /// Returns the link-layer address of a neighbour, which is needed now.
    pub fn lookup(&mut self, address: Address, now: Instant) -> Option<Mac> {
        self.lookup_for(Cause::Ours, address, now)
    }

    /// [`lookup`](Self::lookup) for frames that leave for `cause`. Neighbours that only answers
    /// need are evicted first.
    pub fn lookup_for(&mut self, cause: Cause, address: Address, now: Instant) -> Option<Mac> {
        let Some(known) = self.table.get_mut(&address) else {
            return self.fixed_mac;
        };
        if known.is_silent {
            return None;
        }
        if cause == Cause::Ours {
            known.last_used = now;
        }
        let (reachable, wait) = match address.is_v4() {
            true => (REACHABLE, RETRY),
            false => (self.reachable_v6, DELAY_FIRST_PROBE),
        };
        if known.poll.is_none() && known.confirmed.is_none_or(|at| at + reachable <= now) {
            // A message may arrive from it before the probe.
            let at = now + wait;
            known.poll = Some((0, at));
            self.next_poll = Some(self.next_poll.map_or(at, |next| next.min(at)));
        }
        Some(known.mac)
    }

    /// Learns from an ARP message. `wanted`: it was sent to us, so a new entry is worth keeping.
    pub fn learn(&mut self, address: Address, mac: Mac, wanted: bool, now: Instant) -> Learned<F> {
        let heard = match self.table.get_mut(&address) {
            Some(known) => {
                let heard = known.hear(mac, now, &mut self.moves);
                if !matches!(heard, Heard::Rejected) {
                    (known.confirmed, known.poll) = (Some(now), None);
                }
                heard
            }
            None => {
                if wanted || self.is_resolving(address) {
                    self.insert(address, mac, Some(now), now);
                }
                Heard::Same
            }
        };
        self.resolved(address, heard, now)
    }

    fn insert(&mut self, address: Address, mac: Mac, confirmed: Option<Instant>, now: Instant) {
        if !self.asks() {
            return;
        }
        self.make_room();
        let known = Neighbor {
            mac,
            last_seen: now,
            confirmed,
            last_used: Instant::ZERO,
            moved: None,
            poll: None,
            is_silent: false,
        };
        self.table.insert(address, known);
    }

    /// Sets the reachable time of IPv6 neighbours, from routers (RFC 4861 section 6.3.4).
    pub fn set_reachable(&mut self, reachable: Duration) {
        let (least, most) = REACHABLE_V6_BOUNDS;
        self.reachable_v6 = reachable.clamp(least, most);
    }

    /// Sets the time between two solicitations of an IPv6 neighbour, from routers (RFC 4861 section
    /// 6.3.4).
    pub fn set_retransmit(&mut self, retransmit: Duration) {
        let (least, most) = RETRANS_BOUNDS;
        self.retransmit_v6 = retransmit.clamp(least, most);
    }

    /// Learns from an IPv6 neighbour that solicits us, or from a router: it exists, but may not
    /// receive our packets (RFC 4861 section 7.2.3).
    pub fn heard(&mut self, address: Address, mac: Mac, now: Instant) -> Learned<F> {
        let heard = match self.table.get_mut(&address) {
            Some(known) => {
                let heard = known.hear(mac, now, &mut self.moves);
                if matches!(heard, Heard::Moved(_)) {
                    (known.confirmed, known.poll) = (None, None);
                }
                heard
            }
            None => {
                self.insert(address, mac, None, now);
                Heard::Same
            }
        };
        self.resolved(address, heard, now)
    }

    /// Learns from a neighbour advertisement (RFC 4861 section 7.2.5), which may be solicited
    /// or not, and may override a cached address or not. `None`: it is ignored.
    pub fn advertised(
        &mut self,
        address: Address,
        mac: Option<Mac>,
        (solicited, overrides): (bool, bool),
        now: Instant,
    ) -> Option<Learned<F>> {
        let confirmed = solicited.then_some(now);
        let resolving = self.is_resolving(address);
        let Some(known) = self.table.get_mut(&address) else {
            // An unsolicited advertisement for which nothing waits creates no entry.
            let mac = mac.filter(|_| resolving)?;
            self.insert(address, mac, confirmed, now);
            return Some(self.resolved(address, Heard::Same, now));
        };
        let mac = match mac {
            Some(mac) => mac,
            None if known.is_silent => return None,
            None => known.mac,
        };
        if mac != known.mac && !overrides && !resolving {
            // The two addresses conflict: the cached one is probed when it is used.
            known.confirmed = None;
            return None;
        }
        let heard = known.hear(mac, now, &mut self.moves);
        let differs = matches!(heard, Heard::Moved(_));
        if differs || solicited && !matches!(heard, Heard::Rejected) {
            // Unsolicited, it makes the neighbour stale (RFC 4861 appendix C).
            (known.confirmed, known.poll) = (confirmed, None);
        }
        Some(self.resolved(address, heard, now))
    }

    /// Takes whatever waited for `address`, which is resolved now. Since the waiting packets need
    /// the neighbour, it is probed unless it is known to be reachable (RFC 4861 section 7.3.3).
    fn resolved(&mut self, address: Address, heard: Heard, now: Instant) -> Learned<F> {
        let mut learned = Learned::default();
        match heard {
            Heard::Moved(old) => {
                self.moved = Some(now);
                learned.moved = Some(old);
            }
            Heard::Rejected => {
                learned.is_move_rejected = true;
                return learned;
            }
            Heard::Same => {}
        }
        let Some(asking) = self.resolving.remove(&address) else {
            return learned;
        };
        self.opens -= asking.opens.len();
        self.bytes -= asking.bytes;
        self.answered -= usize::from(asking.cause == Cause::Answer);
        if self.resolving.is_empty() {
            self.next_ask = Instant::NEVER;
        }
        learned.opens = asking.opens;
        learned.frames = asking.datagrams.into_iter().flatten().collect();
        if !(learned.opens.is_empty() && learned.frames.is_empty()) {
            self.lookup_for(asking.cause, address, now);
        }
        learned
    }

    /// Whether the link-layer address of a neighbour changed at `since` or later.
    pub fn has_moved(&self, address: Address, since: Instant) -> bool {
        let lately = |moved: &Instant| *moved >= since;
        self.moved.is_some_and(|moved| lately(&moved))
            && self
                .table
                .get(&address)
                .is_some_and(|known| known.moved.as_ref().is_some_and(lately))
    }

    /// Whether a request for `address` is unanswered.
    pub fn is_resolving(&self, address: Address) -> bool {
        self.resolving.contains_key(&address)
    }

    /// Marks all neighbours silent; pending requests continue.
    pub fn forget(&mut self) {
        for known in self.table.values_mut() {
            known.silence();
        }
    }

    /// A connection uses `next_hop` from now on.
    pub fn need(&mut self, next_hop: Address) {
        *self.needed.entry(next_hop).or_insert(0) += 1;
    }

    /// A connection does not use `next_hop` any more.
    pub fn need_no_more(&mut self, next_hop: Address) {
        if let Entry::Occupied(mut needed) = self.needed.entry(next_hop) {
            *needed.get_mut() -= 1;
            if *needed.get() == 0 {
                needed.remove();
            }
        }
    }

    /// Replaces the next hops of all connections.
    pub fn set_needed(&mut self, next_hops: impl Iterator<Item = Address>) {
        self.needed.clear();
        next_hops.for_each(|hop| self.need(hop));
    }

    /// Whether the link-layer address of `address` is known.
    pub fn is_known(&self, address: Address) -> bool {
        let known = self.table.get(&address);
        known.map_or(!self.asks(), |known| !known.is_silent)
    }

    /// Evicts the least recently needed neighbours, if the table is full.
    fn make_room(&mut self) {
        if self.table.len() < MAX_NEIGHBORS + self.needed.len() {
            return;
        }
        let least =
            |(address, known): (&Address, &Neighbor)| (known.last_used, known.last_seen, *address);
        let all = self.table.iter().map(least);
        let mut all: Vec<_> = all
            .filter(|(.., at)| !self.needed.contains_key(at))
            .collect();
        let (forgotten, ..) = all.select_nth_unstable(EVICTED_AT_ONCE);
        for (.., address) in forgotten {
            self.table.remove(address);
        }
    }

    /// The resolution of `next_hop`, and whether a request has to be sent now.
    fn asking(
        &mut self,
        cause: Cause,
        next_hop: Address,
        now: Instant,
    ) -> (&mut Resolution<F>, bool) {
        let mut ask = false;
        let retry = retry(next_hop, self.retransmit_v6);
        let asking = self.resolving.entry(next_hop).or_insert_with(|| {
            ask = true;
            self.answered += usize::from(cause == Cause::Answer);
            Resolution {
                tries: 1,
                again_at: now + retry,
                cause,
                opens: Vec::new(),
                datagrams: VecDeque::new(),
                bytes: 0,
            }
        });
        if cause == Cause::Ours && asking.cause == Cause::Answer {
            asking.cause = cause;
            self.answered -= 1;
        }
        self.next_ask = self.next_ask.min(asking.again_at);
        (asking, ask)
    }

    /// Lets the frames of a datagram, which leave for `cause`, wait for `next_hop`. The oldest
    /// datagrams are dropped to make room for new ones (RFC 1122 section 2.3.2.2). Anyone can
    /// provoke answers: they may resolve fewer neighbours and hold fewer bytes, and nothing is
    /// dropped for an answer.
    pub fn queue_frames(
        &mut self,
        cause: Cause,
        next_hop: Address,
        frames: Vec<F>,
        now: Instant,
    ) -> Queued {
        let cost = cost(&frames);
        let is_new = !self.is_resolving(next_hop);
        let (may_ask, most_bytes) = match cause {
            Cause::Ours => (self.resolving.len() < MAX_NEIGHBORS, MOST_FOR_ALL),
            Cause::Answer => (self.answered < MAX_ANSWERED, MOST_WITH_ANSWERS),
        };
        let mut held = Queued::default();
        if is_new && !may_ask || self.bytes + cost > most_bytes || cost > self.most_for_one {
            held.dropped = u64::from(!frames.is_empty());
            return held;
        }
        let most = self.most_for_one;
        let (asking, ask) = self.asking(cause, next_hop, now);
        held.ask = ask;
        if cause == Cause::Answer && asking.bytes + cost > most {
            held.dropped = 1;
            return held;
        }
        let before = asking.bytes;
        while asking.bytes + cost > most
            && let Some(oldest) = asking.datagrams.pop_front()
        {
            asking.bytes -= self::cost(&oldest);
            held.dropped += 1;
        }
        if !frames.is_empty() {
            asking.datagrams.push_back(frames);
            asking.bytes += cost;
        }
        let after = asking.bytes;
        self.bytes = self.bytes + after - before;
        held
    }

    /// Lets an open wait for `next_hop`. Returns whether a request has to be sent now.
    pub fn wait_for(&mut self, next_hop: Address, open: WaitingOpen, now: Instant) -> bool {
        self.opens += 1;
        let (asking, ask) = self.asking(Cause::Ours, next_hop, now);
        asking.opens.push(open);
        ask
    }

    /// How many opens wait.
    pub fn waiting_opens(&self) -> usize {
        self.opens
    }

    /// Asks for `next_hop`. Returns whether a request has to be sent now.
    pub fn ask_for(&mut self, next_hop: Address, now: Instant) -> bool {
        self.queue_frames(Cause::Ours, next_hop, Vec::new(), now)
            .ask
    }

    /// [`ask_for`](Self::ask_for) for answers only.
    pub fn ask_to_answer(&mut self, next_hop: Address, now: Instant) -> bool {
        self.queue_frames(Cause::Answer, next_hop, Vec::new(), now)
            .ask
    }

    /// Takes the opens whose next hop, which `hop` returns, is not the one for which they wait.
    pub fn take_opens(
        &mut self,
        hop: impl Fn(&WaitingOpen) -> Option<Address>,
    ) -> Vec<WaitingOpen> {
        let mut taken = Vec::new();
        for (next_hop, asking) in &mut self.resolving {
            let opens = core::mem::take(&mut asking.opens);
            let (waiting, others): (Vec<_>, Vec<_>) = opens
                .into_iter()
                .partition(|open| hop(open) == Some(*next_hop));
            asking.opens = waiting;
            taken.extend(others);
        }
        self.opens -= taken.len();
        taken
    }

    /// When [`on_time`](Self::on_time) next has something to do.
    pub fn next_deadline(&self) -> Instant {
        self.next_ask.min(self.next_poll.unwrap_or(Instant::NEVER))
    }

    /// Repeats and gives up requests and probes that are due at `now`.
    pub fn on_time(&mut self, now: Instant) -> Overdue<F> {
        let mut overdue = Overdue::default();
        if self.next_ask <= now {
            self.ask_again(now, &mut overdue);
        }
        if self.next_poll.is_some_and(|at| at <= now) {
            self.poll(now, &mut overdue);
        }
        overdue
    }

    /// Repeats unanswered requests, and gives up after [`MAX_TRIES`].
    fn ask_again(&mut self, now: Instant, overdue: &mut Overdue<F>) {
        let retransmit = self.retransmit_v6;
        self.resolving.retain(|next_hop, asking| {
            if asking.again_at > now {
                return true;
            }
            if asking.tries == MAX_TRIES {
                overdue.silent.push(*next_hop);
                self.opens -= asking.opens.len();
                overdue.failed.append(&mut asking.opens);
                self.bytes -= asking.bytes;
                self.answered -= usize::from(asking.cause == Cause::Answer);
                overdue.dropped += asking.datagrams.len() as u64;
                overdue.unsent.extend(asking.datagrams.drain(..).flatten());
                return false;
            }
            asking.tries += 1;
            asking.again_at = now + retry(*next_hop, retransmit);
            overdue.ask.push(*next_hop);
            true
        });
        let next = self.resolving.values().map(|asking| asking.again_at).min();
        self.next_ask = next.unwrap_or(Instant::NEVER);
    }

    /// Sends probes that are due, and marks neighbours silent that did not answer.
    fn poll(&mut self, now: Instant, overdue: &mut Overdue<F>) {
        let mut next = Instant::NEVER;
        let retransmit = self.retransmit_v6;
        self.table.iter_mut().for_each(|(address, known)| {
            let Some((tries, at)) = &mut known.poll else {
                return;
            };
            if *at <= now {
                if *tries == MAX_TRIES {
                    overdue.silent.push(*address);
                    known.silence();
                    return;
                }
                *tries += 1;
                *at = now + retry(*address, retransmit);
                overdue.poll.push((*address, known.mac));
            }
            next = next.min(*at);
        });
        // The table has no order, but the output must have one.
        overdue.poll.sort_unstable();
        overdue.silent.sort_unstable();
        self.next_poll = (next != Instant::NEVER).then_some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Address = Address::ipv4(10, 0, 0, 2);
    const MAC: Mac = Mac([1; 6]);

    fn open(request_id: u64) -> WaitingOpen {
        WaitingOpen {
            request_id,
            local: Endpoint::default(),
            remote: Endpoint::new(PEER, 80),
        }
    }

    #[test]
    fn opens_wait_for_the_answer_and_are_asked_for_once() {
        let mut n: Neighbors = Neighbors::default();
        assert!(n.wait_for(PEER, open(1), Instant::ZERO));
        assert!(!n.wait_for(PEER, open(2), Instant::ZERO));
        let learned = n.learn(PEER, MAC, true, Instant::ZERO);
        assert_eq!(learned.opens, [open(1), open(2)]);
        assert_eq!(learned.moved, None);
        assert_eq!(n.lookup(PEER, Instant::ZERO), Some(MAC));
        assert_eq!(n.next_deadline(), Instant::NEVER);
    }

    #[test]
    fn silence_is_asked_three_times_and_then_fails() {
        let mut n: Neighbors = Neighbors::default();
        assert!(n.wait_for(PEER, open(1), Instant::ZERO));
        for _ in 0..2 {
            let overdue = n.on_time(n.next_deadline());
            assert_eq!(overdue.ask, [PEER]);
        }
        assert_eq!(n.on_time(n.next_deadline()).failed, [open(1)]);
    }

    #[test]
    fn whole_datagrams_wait_for_the_answer_and_the_oldest_make_room() {
        let mut n: Neighbors = Neighbors::new(0);
        // 64 KB in packets of 68 bytes: the limit holds neither three nor two such datagrams.
        let datagram = |i: u8| vec![vec![i; 82]; 1365];
        for i in 0..3 {
            let held = n.queue_frames(Cause::Ours, PEER, datagram(i), Instant::ZERO);
            assert_eq!((held.ask, held.dropped), (i == 0, u64::from(i > 0)));
        }
        let held = n.queue_frames(Cause::Ours, PEER, vec![vec![3]], Instant::ZERO);
        assert_eq!(held.dropped, 0, "there is room for a short one");
        let mut expected = datagram(2);
        expected.push(vec![3]);
        assert_eq!(n.learn(PEER, MAC, false, Instant::ZERO).frames, expected);
        assert_eq!(n.bytes, 0);
        let mut n: Neighbors = Neighbors::default();
        n.queue_frames(Cause::Ours, PEER, vec![vec![0]], Instant::ZERO);
        n.on_time(n.next_deadline());
        n.on_time(n.next_deadline());
        assert_eq!(n.on_time(n.next_deadline()).dropped, 1);
        assert_eq!((n.bytes, n.next_deadline()), (0, Instant::NEVER));
    }

    #[test]
    fn answers_wait_within_bounds_and_leave_room_for_others() {
        let mut n: Neighbors = Neighbors::default();
        let host = |i: usize| Address::v4(0x0a00_0000 + i as u32);
        let answer = |n: &mut Neighbors, i: usize, len: usize| {
            n.queue_frames(Cause::Answer, host(i), vec![vec![1; len]], Instant::ZERO)
        };
        let ours = |n: &mut Neighbors, i: usize, len: usize| {
            n.queue_frames(Cause::Ours, host(i), vec![vec![0; len]], Instant::ZERO)
        };
        let asked = (0..2 * MAX_NEIGHBORS)
            .filter(|i| answer(&mut n, *i, 100).ask)
            .count();
        assert_eq!(asked, MAX_ANSWERED);
        assert!((0..MAX_NEIGHBORS - MAX_ANSWERED).all(|i| ours(&mut n, 5_000 + i, 100).ask));
        // If a user also needs the neighbour, it no longer counts as one that only answers need.
        assert!(!ours(&mut n, 0, 100).ask);
        n.learn(host(5_000), MAC, false, Instant::ZERO);
        assert!(answer(&mut n, 4_000, 100).ask);
        // Frames of users stay, and the latest answers are dropped.
        n = Neighbors::default();
        ours(&mut n, 1, 100);
        let dropped = [0; 4].map(|_| answer(&mut n, 1, 100_000).dropped);
        assert_eq!(dropped, [0, 0, 1, 1]);
        let frames = n.learn(host(1), MAC, false, Instant::ZERO).frames;
        let lens: Vec<_> = frames.iter().map(Vec::len).collect();
        assert_eq!(lens, [100, 100_000, 100_000]);
        let fits = (0..100)
            .filter(|i| answer(&mut n, *i, 100_000).dropped == 0)
            .count();
        assert_eq!(fits, MOST_WITH_ANSWERS / (100_000 + FRAME_OVERHEAD));
        assert_eq!(ours(&mut n, 1, 100_000).dropped, 0);
        (0..3).for_each(|_| drop(n.on_time(n.next_deadline())));
        assert_eq!((n.answered, n.bytes), (0, 0));
    }

    #[test]
    fn what_is_learned_without_a_question_is_stale_and_what_waited_needs_it() {
        let address = Address::of_words([0xfe80 << 48, 9]);
        let learn: [fn(&mut Neighbors, Address); 2] = [
            |n, address| drop(n.advertised(address, Some(MAC), (false, true), Instant::ZERO)),
            |n, address| drop(n.heard(address, MAC, Instant::ZERO)),
        ];
        for learn in learn {
            let mut n = Neighbors::default();
            assert!(
                n.queue_frames(Cause::Ours, address, vec![vec![0]], Instant::ZERO)
                    .ask
            );
            learn(&mut n, address);
            let delayed = Instant::ZERO + DELAY_FIRST_PROBE;
            assert_eq!(n.next_deadline(), delayed);
            assert_eq!(n.on_time(delayed).poll, [(address, MAC)]);
            // Another address halfway makes it stale, and nothing needs it now.
            n.advertised(address, Some(Mac([7; 6])), (false, true), delayed);
            assert!(n.on_time(n.next_deadline()).poll.is_empty());
            assert_eq!(n.next_deadline(), Instant::NEVER);
        }
    }

    #[test]
    fn hosts_that_did_not_address_us_are_not_kept_but_moves_are_noticed() {
        let mut n: Neighbors = Neighbors::default();
        n.learn(PEER, MAC, false, Instant::ZERO);
        assert_eq!(n.lookup(PEER, Instant::ZERO), None);
        n.learn(PEER, MAC, true, Instant::ZERO);
        let moved = n.learn(PEER, Mac([2; 6]), false, Instant::ZERO).moved;
        assert_eq!(moved, Some(MAC));
    }

    #[test]
    fn one_host_that_claims_every_address_costs_few_searches_for_connections() {
        let mut n: Neighbors = Neighbors::default();
        let mac = |i: u32| Mac([2, 0, 0, 0, (i >> 8) as u8, i as u8]);
        let host = |i: u32| Address::v4(0x0a00_0000 + i);
        (0..100).for_each(|i| drop(n.learn(host(i), MAC, true, Instant::ZERO)));
        // A thousand messages a second for ten seconds, first about one host, then about a hundred.
        let mut moves = |hosts: u32, from: u64| {
            (0..10_000u32)
                .filter(|i| {
                    let at = Instant::from_millis(from + u64::from(*i));
                    let learned = n.learn(host(i % hosts), mac(*i), false, at);
                    assert_ne!(learned.moved.is_some(), learned.is_move_rejected);
                    learned.moved.is_some()
                })
                .count() as u64
        };
        assert_eq!(moves(1, 1_000), 10);
        let most = MOVES.0 + 100;
        assert!((100..=most).contains(&moves(100, 20_000)));
        // After the flood, the rightful owner's claim is accepted.
        let at = Instant::from_millis(40_000);
        assert!(n.learn(host(7), MAC, false, at).moved.is_some());
    }

    #[test]
    fn a_silent_neighbour_that_comes_back_elsewhere_has_moved() {
        let mut n: Neighbors = Neighbors::default();
        n.learn(PEER, MAC, true, Instant::ZERO);
        let stale = Instant::ZERO + REACHABLE;
        n.lookup(PEER, stale);
        while n.next_deadline() != Instant::NEVER {
            n.on_time(n.next_deadline());
        }
        let later = stale + REACHABLE;
        assert_eq!(n.lookup(PEER, later), None);
        let other = Mac([2; 6]);
        assert_eq!(n.learn(PEER, other, true, later).moved, Some(MAC));
        assert_eq!(n.lookup(PEER, later), Some(other));
        assert!(n.has_moved(PEER, later) && !n.has_moved(PEER, later + RETRY));
        // So has a neighbour that is heard after the link was down: at once, regardless of others.
        n.forget();
        assert_eq!(n.lookup(PEER, later), None);
        assert_eq!(n.learn(PEER, MAC, true, later).moved, Some(other));
        while n.moves.admits(later) {}
        n.forget();
        assert_eq!(n.learn(PEER, other, true, later).moved, Some(MAC));
        assert_eq!(n.lookup(PEER, later), Some(other));
    }

    #[test]
    fn a_stale_neighbour_is_used_and_polled_and_forgotten_if_it_does_not_answer() {
        let mut n: Neighbors = Neighbors::default();
        n.learn(PEER, MAC, true, Instant::ZERO);
        let fresh = Instant::from_millis(59_999);
        assert_eq!(n.lookup(PEER, fresh), Some(MAC));
        assert_eq!(n.next_deadline(), Instant::NEVER);

        let stale = Instant::ZERO + REACHABLE;
        assert_eq!(n.lookup(PEER, stale), Some(MAC));
        assert_eq!(n.next_deadline(), stale + RETRY);
        assert_eq!(n.on_time(stale + RETRY).poll, [(PEER, MAC)]);
        assert_eq!(n.next_deadline(), stale + RETRY + RETRY);
        n.learn(PEER, MAC, false, stale);
        n.on_time(stale + RETRY + RETRY);
        assert_eq!(n.next_deadline(), Instant::NEVER, "it answered");

        let silent = stale + REACHABLE;
        assert_eq!(n.lookup(PEER, silent), Some(MAC));
        for _ in 0..MAX_TRIES {
            assert_eq!(n.on_time(n.next_deadline()).poll, [(PEER, MAC)]);
            assert_eq!(n.lookup(PEER, silent), Some(MAC), "still used");
        }
        assert_eq!(n.on_time(n.next_deadline()).poll, []);
        assert_eq!(n.lookup(PEER, silent), None);
    }

    #[test]
    fn a_flood_of_unknown_hosts_does_not_evict_neighbors_in_use() {
        let mut n: Neighbors = Neighbors::default();
        n.learn(PEER, MAC, true, Instant::ZERO);
        n.lookup(PEER, Instant::from_millis(1));
        for i in 0..5_000 {
            n.learn(
                Address::v4(0x0b00_0000 + i),
                MAC,
                true,
                Instant::from_millis(2),
            );
            assert!(n.table.len() <= MAX_NEIGHBORS);
        }
        assert_eq!(n.lookup(PEER, Instant::from_millis(3)), Some(MAC));
    }

    #[test]
    fn the_next_hops_of_connections_are_not_forgotten_and_others_leave_room() {
        let mut n: Neighbors = Neighbors::default();
        let host = |i: u32| Address::v4(0x0a00_0000 + i);
        for i in 0..3_000 {
            n.learn(host(i), MAC, true, Instant::ZERO);
            n.need(host(i));
            n.need(host(i));
        }
        let unknown = |i: u32| Address::v4(0x0b00_0000 + i);
        for i in 0..5_000 {
            n.learn(unknown(i), MAC, true, Instant::from_millis(1));
            assert!(n.table.len() <= 3_000 + MAX_NEIGHBORS);
        }
        assert!((0..3_000).all(|i| n.is_known(host(i))));
        // First one of two connections ends, then the other.
        for (ended, left) in [(1, 3_000), (2, 0)] {
            (0..3_000).for_each(|i| n.need_no_more(host(i)));
            assert_eq!(n.needed.len(), left, "{ended}");
        }
        n.need_no_more(host(1));
        (0..5_000).for_each(|i| drop(n.learn(unknown(i), MAC, true, Instant::from_millis(2))));
        assert!(!n.is_known(host(1)));
    }

    #[test]
    fn one_unknown_host_in_sixty_four_costs_a_scan_of_the_table() {
        let mut n: Neighbors = Neighbors::default();
        let unknown = |n: &mut Neighbors, i: u32| {
            let at = Instant::from_millis(u64::from(i));
            n.learn(Address::v4(0x0b00_0000 + i), MAC, true, at);
        };
        let mut looks = 0;
        for i in 0..10 * MAX_NEIGHBORS as u32 {
            let before = n.table.len();
            unknown(&mut n, i);
            // An eviction needs a scan of the table.
            looks += usize::from(n.table.len() <= before);
        }
        let most = 9 * MAX_NEIGHBORS / EVICTED_AT_ONCE;
        assert!((1..=most).contains(&looks), "{looks} looks");
        // The most recently heard neighbours are known, and there is room for more.
        let newest = 10 * MAX_NEIGHBORS as u32 - 1;
        let known = |i: u32| n.table.contains_key(&Address::v4(0x0b00_0000 + i));
        assert!((0..500).all(|i| known(newest - i)));
    }

    #[test]
    fn resolutions_and_waiting_frames_are_bounded() {
        let mut n: Neighbors = Neighbors::default();
        let host = |i: usize| Address::v4(0x0a00_0000 + i as u32);
        for i in 0..MAX_NEIGHBORS + 10 {
            let held = n.queue_frames(Cause::Ours, host(i), vec![vec![0]], Instant::ZERO);
            let fits = i < MAX_NEIGHBORS;
            assert_eq!((held.ask, held.dropped), (fits, u64::from(!fits)), "{i}");
        }
        let mut n: Neighbors = Neighbors::new(usize::MAX);
        let kept = (0..MAX_NEIGHBORS).filter(|i| {
            let large = vec![vec![0; 64 << 10]];
            n.queue_frames(Cause::Ours, host(*i), large, Instant::ZERO)
                .dropped
                == 0
        });
        assert_eq!(kept.count(), 63, "of 64 KB each, in 4 MB");
        // The caller bounds the number of opens.
        let mut n: Neighbors = Neighbors::default();
        for i in 0..10_000 {
            let ask = n.wait_for(host(i / 2), open(i as u64), Instant::ZERO);
            assert_eq!(ask, i % 2 == 0, "{i}");
        }
        assert_eq!(n.waiting_opens(), 10_000);
        let failed = (0..3).flat_map(|_| n.on_time(n.next_deadline()).failed);
        assert_eq!((failed.count(), n.waiting_opens()), (10_000, 0));
    }

    #[test]
    fn an_address_moves_again_a_second_later_and_not_before() {
        let mut n: Neighbors = Neighbors::default();
        let (one, other) = (Mac([2; 6]), Mac([4; 6]));
        let at = Instant::from_millis;
        n.learn(PEER, MAC, true, at(10_000));
        assert_eq!(n.learn(PEER, one, false, at(10_000)).moved, Some(MAC));
        assert!(n.learn(PEER, other, false, at(10_999)).is_move_rejected);
        assert_eq!(n.learn(PEER, other, false, at(11_000)).moved, Some(one));
    }

    const PEER_V6: Address = Address::of_words([0xfe80 << 48, 2]);
    const OTHER: Mac = Mac([4; 6]);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn an_answer_makes_a_neighbour_of_ipv6_reachable_and_a_question_only_known() {
        let mut n: Neighbors = Neighbors::default();
        assert!(n.wait_for(PEER_V6, open(1), at(0)));
        let learned = n.advertised(PEER_V6, Some(MAC), (true, true), at(10));
        assert_eq!(learned.map(|said| said.opens), Some(vec![open(1)]));
        assert_eq!(n.lookup(PEER_V6, at(20)), Some(MAC));
        assert_eq!(n.next_deadline(), Instant::NEVER, "it is reachable");

        let mut n: Neighbors = Neighbors::default();
        n.heard(PEER_V6, MAC, at(10));
        assert_eq!(n.lookup(PEER_V6, at(20)), Some(MAC));
        assert_eq!(n.next_deadline(), at(5020), "it is stale, and needed");
        for _ in 0..MAX_TRIES {
            assert_eq!(n.on_time(n.next_deadline()).poll, [(PEER_V6, MAC)]);
        }
        assert_eq!(n.on_time(n.next_deadline()).silent, [PEER_V6]);
        assert_eq!(n.lookup(PEER_V6, at(9000)), None);
    }

    #[test]
    fn only_an_answer_ends_the_questions_to_a_neighbour_of_ipv6() {
        let mut n: Neighbors = Neighbors::default();
        n.heard(PEER_V6, MAC, at(0));
        n.lookup(PEER_V6, at(0));
        n.heard(PEER_V6, MAC, at(10));
        n.advertised(PEER_V6, Some(MAC), (false, true), at(20));
        assert_eq!(n.next_deadline(), at(5000));
        n.advertised(PEER_V6, None, (true, false), at(30));
        n.on_time(at(5000));
        assert_eq!(n.next_deadline(), Instant::NEVER);
    }

    #[test]
    fn an_advertisement_nobody_waits_for_is_ignored_and_one_without_override_believed_by_nobody() {
        let mut n: Neighbors = Neighbors::default();
        assert_eq!(n.advertised(PEER_V6, Some(MAC), (true, true), at(0)), None);
        assert_eq!(n.lookup(PEER_V6, at(0)), None);
        n.wait_for(PEER_V6, open(1), at(0));
        n.advertised(PEER_V6, Some(MAC), (true, true), at(0));
        let said = n.advertised(PEER_V6, Some(OTHER), (false, false), at(10));
        assert_eq!(said, None);
        assert_eq!(n.lookup(PEER_V6, at(20)), Some(MAC));
        assert_eq!(n.next_deadline(), at(5020), "but it is asked");
        let said = n.advertised(PEER_V6, Some(OTHER), (false, true), at(30));
        assert_eq!(said.and_then(|said| said.moved), Some(MAC));
        assert_eq!(n.lookup(PEER_V6, at(40)), Some(OTHER));
    }
}
