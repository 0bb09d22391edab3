//! Two hosts that consist of replicated state only: the test applies every request, frames are
//! values, and time is a number.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use dominoes_netstack::ReplicaState;
use dominoes_netstack::config::{Limits, Settings};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_proto::log::effect::{ConnectionEvent, Effect, EffectSink, Transmit};
use dominoes_proto::log::request::{
    Binding, Body, ConnId, Digest, Flags, Flow, GroupIndex, Mac, Options, Request, RequestKind,
};
use dominoes_proto::seqnum::SeqNum;
use dominoes_testkit::Rng;

const PORT: u16 = 7;
const DELAY: Duration = Duration::from_millis(3);
/// Bytes of Ethernet, IPv4 and TCP headers.
const HEADERS: u16 = 54;

/// A segment on the wire.
#[derive(Clone, Copy)]
struct Segment {
    flow: Flow,
    mac: Mac,
    seq: SeqNum,
    ack: SeqNum,
    wnd: u16,
    len: u32,
    flags: Flags,
    timestamps: Option<(u32, u32)>,
    options: Options,
}

impl Segment {
    /// Frame `i` of `transmit`, as the other end receives it.
    fn of(transmit: &Transmit, i: u32) -> Segment {
        let (offset, len) = if transmit.payload_len == 0 {
            (transmit.payload_offset, 0)
        } else {
            transmit.payload_of(i)
        };
        let last = i + 1 == transmit.count;
        let flags = if last {
            transmit.flags
        } else {
            transmit.flags.without(Flags::FIN.with(Flags::PSH))
        };
        let options = match (transmit.syn, transmit.sack) {
            (Some(syn), _) => Options::Syn(syn),
            (_, Some(sack)) => Options::Sack(sack),
            _ => Options::None,
        };
        Segment {
            flow: Flow {
                local: transmit.common.flow.remote,
                remote: transmit.common.flow.local,
            },
            mac: Mac([2; 6]),
            seq: transmit.seq + (offset - transmit.payload_offset) as u32,
            ack: transmit.ack,
            wnd: transmit.wnd,
            len,
            flags,
            timestamps: transmit.timestamps,
            options,
        }
    }
}

/// The progress of an application on its connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct App {
    read: u64,
    readable: u64,
    written: u64,
    released: u64,
    /// Bytes that it will write in total.
    total: u64,
    shut: bool,
    /// How the connection ended, unless it ended well.
    pub(super) failed: Option<ConnectionEvent>,
}

/// Keeps effects.
#[derive(Default)]
pub(super) struct Sink {
    pub(super) effects: Vec<Effect>,
    /// Panics instead of taking the effect after this many others.
    pub(super) fuse: Option<usize>,
}

impl EffectSink for Sink {
    fn push(&mut self, effect: Effect) {
        match &mut self.fuse {
            Some(0) => {
                self.fuse = None;
                panic!("planted");
            }
            Some(left) => *left -= 1,
            None => {}
        }
        self.effects.push(effect);
    }

    fn mark(&self) -> usize {
        self.effects.len()
    }

    fn take_back(&mut self, mark: usize) {
        self.effects.truncate(mark);
    }
}

/// Replicas of one state, with the applications and the device of the host. The host acts on the
/// effects of the first replica.
pub(super) struct Host {
    pub(super) replicas: Vec<ReplicaState>,
    pub(super) sinks: Vec<Sink>,
    pub(super) apps: BTreeMap<u32, App>,
    /// Connections that have ended: bytes read from the peer, and the error, if any.
    pub(super) over: Vec<(ConnId, App)>,
    /// Resets that the host sent.
    pub(super) resets: u64,
    address: Ipv4Addr,
    limits: Limits,
    conns: HashMap<Flow, ConnId>,
    accepted: u64,
    taken: u64,
    unsent: VecDeque<(u64, Segment)>,
    /// Requests caused by effects, not yet applied.
    due: VecDeque<Body>,
}

impl Host {
    fn new(address: Ipv4Addr, replicas: usize, limits: Limits) -> Host {
        Host {
            replicas: (0..replicas).map(|_| ReplicaState::new(limits)).collect(),
            sinks: (0..replicas).map(|_| Sink::default()).collect(),
            apps: BTreeMap::new(),
            over: Vec::new(),
            resets: 0,
            address,
            limits,
            conns: HashMap::new(),
            accepted: 0,
            taken: 0,
            unsent: VecDeque::new(),
            due: VecDeque::new(),
        }
    }

    /// The connection at a place, as the first replica names it.
    pub(super) fn conn_at(&self, index: u32) -> Option<ConnId> {
        let mut connections = self.replicas[0].connections();
        connections.find_map(|(conn, _)| (conn.index == index).then_some(conn))
    }

    fn apply(&mut self, request: &Request) {
        let verdict = request.digest.all_good();
        for (replica, sink) in self.replicas.iter_mut().zip(&mut self.sinks) {
            sink.effects.clear();
            replica.apply(request, verdict, sink);
        }
        let effects = core::mem::take(&mut self.sinks[0].effects);
        for effect in &effects {
            self.perform(effect);
        }
        self.sinks[0].effects = effects;
    }

    fn perform(&mut self, effect: &Effect) {
        match *effect {
            Effect::Transmit(transmit) => {
                for i in 0..transmit.count {
                    let frame = transmit.first_frame + u64::from(i);
                    self.resets += u64::from(transmit.flags.has(Flags::RST));
                    self.unsent.push_back((frame, Segment::of(&transmit, i)));
                }
            }
            Effect::Deliver(deliver) if deliver.last => {
                if let Some(app) = self.apps.get_mut(&deliver.conn.index) {
                    app.readable = deliver.end;
                }
            }
            Effect::Release { conn, upto } => {
                if let Some(app) = self.apps.get_mut(&conn.index) {
                    app.released = upto;
                }
            }
            Effect::Event { conn, event, .. } => {
                let well = matches!(
                    event,
                    ConnectionEvent::Established
                        | ConnectionEvent::AllAcknowledged
                        | ConnectionEvent::PeerFinished { .. }
                );
                if let (false, Some(app)) = (well, self.apps.get_mut(&conn.index)) {
                    app.failed = Some(event);
                }
            }
            Effect::Opened { conn, .. } => {
                self.apps.insert(conn.index, App::default());
            }
            Effect::Accept { conn, flow, .. } => {
                let port = flow.local.port;
                self.apps.insert(conn.index, App::default());
                self.accepted += 1;
                let accepted = self.accepted;
                self.due.push_back(Body::Accepted {
                    port,
                    binding: Binding::default(),
                    accepted,
                });
            }
            Effect::Hint { conn, flow, open } => {
                if open {
                    self.conns.insert(flow, conn);
                } else {
                    self.conns.remove(&flow);
                }
            }
            Effect::Retire { conn, .. } => {
                let app = self.apps.remove(&conn.index).unwrap_or_default();
                self.over.push((conn, app));
                self.due.push_back(Body::Free { conn });
            }
            _ => {}
        }
    }
}

/// Both hosts, and the wire between them.
pub(super) struct World {
    pub(super) hosts: [Host; 2],
    pub(super) rng: Rng,
    pub(super) now: Instant,
    wire: Vec<(Instant, usize, Segment)>,
    loss_per_mille: u32,
    /// Requests that the first host has applied.
    pub(super) requests: u64,
}

impl World {
    /// A server of `replicas` replicas, and a client.
    pub(super) fn new(seed: u64, replicas: usize) -> World {
        let mut rng = Rng::new(seed);
        let mut limits = Limits::default();
        limits.connections = 64;
        limits.receive_buffer = 1 << rng.between(12, 16);
        limits.send_buffer = 1 << rng.between(12, 16);
        limits.tx_slots = 16 << rng.below(4);
        limits.frame_payload = 0;
        let loss_per_mille = [0, 0, 20, 100][rng.index(4)];
        let host = |i: u8, replicas| Host::new(Ipv4Addr::new(10, 0, 0, i), replicas, limits);
        let mut world = World {
            hosts: [host(1, replicas), host(2, 1)],
            rng,
            now: Instant::from_millis(5_000),
            wire: Vec::new(),
            loss_per_mille,
            requests: 0,
        };
        for i in 0..2 {
            let secret = [i as u64 + 1, seed];
            let group = GroupIndex::ONLY;
            world.command(i, Body::Configure { group, secret });
        }
        let backlog = 32;
        world.command(
            0,
            Body::Listen {
                port: PORT,
                backlog,
                binding: Binding::default(),
            },
        );
        world
    }

    /// The client opens another connection.
    pub(super) fn open(&mut self) {
        let [remote, local] = [(0, PORT), (1, 0)].map(|(host, port): (usize, u16)| {
            SocketAddr::new(self.hosts[host].address.into(), port).into()
        });
        let (request_id, mac) = (0, Mac([1; 6]));
        self.command(
            1,
            Body::Open {
                request_id,
                local,
                remote,
                mac,
                settings: Settings::default(),
            },
        );
    }

    /// Lets the application at a place of `host` write `bytes` more.
    pub(super) fn write(&mut self, host: usize, index: u32, bytes: u64) {
        if let Some(app) = self.hosts[host].apps.get_mut(&index) {
            app.total += bytes;
        }
    }

    /// Ends the writing side of the application at a place of `host`.
    pub(super) fn shut(&mut self, host: usize, index: u32) {
        if let Some(app) = self.hosts[host].apps.get_mut(&index) {
            app.shut = true;
            app.total = app.written;
            self.progress(host, index);
        }
    }

    /// Whether the application at a place of `host` has written all of its bytes, and could write
    /// more.
    pub(super) fn is_idle(&self, host: usize, index: u32) -> bool {
        let app = self.hosts[host].apps.get(&index);
        app.is_some_and(|app| app.written == app.total && !app.shut)
    }

    fn command(&mut self, host: usize, body: Body) {
        let sent = self.hosts[host].taken;
        self.apply(host, &Request::command(self.now, sent, body));
    }

    fn apply(&mut self, host: usize, request: &Request) {
        self.requests += u64::from(host == 0);
        self.hosts[host].apply(request);
    }

    fn progress(&mut self, host: usize, index: u32) {
        let (Some(conn), Some(app)) = (
            self.hosts[host].conn_at(index),
            self.hosts[host].apps.get(&index),
        ) else {
            return;
        };
        let body = Body::Progress {
            conn,
            app_read: app.read,
            app_written: app.written,
            shutdown: app.shut,
            orphan: false,
        };
        self.command(host, body);
    }

    /// The applications of `host` read and write.
    fn work(&mut self, host: usize) {
        let indices: Vec<u32> = self.hosts[host].apps.keys().copied().collect();
        for index in indices {
            let room = u64::from(self.hosts[host].limits.send_buffer);
            let Some(app) = self.hosts[host].apps.get_mut(&index) else {
                continue;
            };
            let more = (app.total - app.written).min(app.released + room - app.written);
            let more = more.min(self.rng.below(6_000));
            let read = (app.readable - app.read).min(self.rng.below(8_000));
            app.written += more;
            app.read += read;
            if more + read > 0 {
                self.progress(host, index);
            }
        }
    }

    fn transmit(&mut self, host: usize) {
        while let Some((frame, segment)) = self.hosts[host].unsent.pop_front() {
            self.hosts[host].taken = frame + 1;
            if self.rng.per_mille(self.loss_per_mille) {
                continue;
            }
            let late = if self.rng.per_mille(self.loss_per_mille) {
                2_500
            } else {
                0
            };
            let at = self.now + DELAY + Duration::from_micros(late);
            self.wire.push((at, 1 - host, segment));
        }
    }

    fn arrive(&mut self, host: usize, segment: Segment) {
        let mut digest = Digest::bare(RequestKind::Segments, self.now, self.hosts[host].taken);
        let known = self.hosts[host].conns.get(&segment.flow).copied();
        digest.hint = known.unwrap_or(ConnId::NONE);
        digest.seg_seq = segment.seq;
        digest.seg_ack = segment.ack;
        digest.len = segment.len;
        digest.seg_len = segment.len as u16;
        digest.seg_wnd = segment.wnd;
        digest.flags = segment.flags;
        digest.count = 1;
        if let Some((value, echo)) = segment.timestamps {
            (digest.ts_val, digest.ts_ecr) = (value, echo);
            digest.bits |= Digest::TIMESTAMPS;
        }
        if segment.options != Options::None {
            digest.bits |= Digest::OPTIONS;
        }
        let body = Body::Segments {
            flow: segment.flow,
            mac: segment.mac,
            payload_offset: HEADERS,
            options: segment.options,
        };
        self.apply(host, &Request::new(digest, body));
    }

    /// Advances time a little and applies a tick to the first host.
    pub(super) fn tick(&mut self) {
        self.now += Duration::from_millis(1);
        let request = Request::tick(self.now, self.hosts[0].taken);
        self.apply(0, &request);
    }

    /// Handles the next event: a frame that arrives, or a timer. Returns false if no event is left.
    pub(super) fn step(&mut self) -> bool {
        for host in 0..2 {
            while let Some(body) = self.hosts[host].due.pop_front() {
                self.command(host, body);
            }
            self.work(host);
            let sent = self.hosts[host].unsent.len();
            self.transmit(host);
            if sent > 0 {
                // Reports the transmit credit, as the next request of a pump does.
                let request = Request::tick(self.now, self.hosts[host].taken);
                self.apply(host, &request);
            }
        }
        let first = (0..self.wire.len()).min_by_key(|&i| self.wire[i].0);
        let arrives = first.map_or(Instant::NEVER, |i| self.wire[i].0);
        let deadline = |host: &Host| host.replicas[0].next_deadline();
        let (due, late) = (0..2)
            .map(|i| (deadline(&self.hosts[i]), i))
            .min()
            .expect("there are two");
        if arrives == Instant::NEVER && due == Instant::NEVER {
            return self.hosts.iter().any(|host| !host.due.is_empty());
        }
        if let Some(i) = first.filter(|_| arrives <= due) {
            let (at, host, segment) = self.wire.remove(i);
            self.now = self.now.max(at);
            self.arrive(host, segment);
        } else {
            self.now = self.now.max(due);
            let request = Request::tick(self.now, self.hosts[late].taken);
            self.apply(late, &request);
        }
        true
    }
}
