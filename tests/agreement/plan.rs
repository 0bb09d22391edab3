//! The parameters of a case.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use dominoes_netstack::CongestionControl;
use dominoes_netstack::group::Primaries;
use dominoes_testkit::packet::Family;
use dominoes_testkit::{Rng, mix};

use super::membership::MembershipFaults;

/// One case. Every field shrinks towards its simplest value; `seed` decides everything else.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) replicas: usize,
    pub(crate) log: usize,
    pub(crate) frame_chunk: usize,
    pub(crate) primaries: Primaries,
    pub(crate) late: Late,
    pub(crate) ahead_bytes: usize,
    pub(crate) fingerprint_every: u64,
    pub(crate) limits: Bounds,
    /// Log positions before the faults end.
    pub(crate) positions: u64,
    pub(crate) link_faults: LinkFaults,
    pub(crate) peers: Peers,
    pub(crate) app: App,
    /// Per mille of the steps that are a whole turn of a worker instead of a single step.
    pub(crate) turns: u32,
    pub(crate) device: Device,
    /// Workers that join, leave and fail.
    pub(crate) membership: MembershipFaults,
    /// Whether a worker that is alone keeps its log.
    pub(crate) always_log: bool,
}

/// The IP version of the plan with this seed: IPv6 in a quarter of them.
pub(crate) fn family(seed: u64) -> Family {
    match mix(seed) % 4 {
        0 => Family::V6,
        _ => Family::V4,
    }
}

impl Plan {
    /// Queues of the device: one in half of the plans, else two or three.
    pub(crate) fn queues(&self) -> usize {
        [1, 1, 2, 3][mix(self.seed ^ 2) as usize % 4]
    }

    /// The IP version of its packets.
    pub(crate) fn family(&self) -> Family {
        family(self.seed)
    }

    /// The congestion control of the stack.
    pub(crate) fn congestion(&self) -> CongestionControl {
        let all = CongestionControl::ALL;
        all[mix(self.seed ^ 1) as usize % all.len()]
    }

    /// This plan without changes of membership and without solo mode.
    pub(crate) fn without_membership_changes(mut self) -> Plan {
        self.membership = MembershipFaults::default();
        self.always_log = true;
        self
    }
}

/// Workers that are held up, and when the others steal their work.
#[derive(Clone, Debug)]
pub(crate) struct Late {
    /// Stretches of steps in which one worker is held up, per mille.
    pub(crate) stalls: u32,
    /// Positions or frames after which its work is stolen.
    pub(crate) steal_after: usize,
    /// Microseconds after which a worker without other work steals it.
    pub(crate) steal_after_us: u64,
    /// Frames that must be ready after a hole before they are sent past it.
    pub(crate) past_hole: usize,
    /// Turns that find the hole before that.
    pub(crate) hole_turns: u32,
}

/// Limits of the stack, all of them small.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) connections: u32,
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    pub(crate) tx_slots: u32,
    pub(crate) mtu: u16,
    pub(crate) quantum: u32,
}

/// Faults of the wire in both directions, per mille of the frames.
#[derive(Clone, Debug)]
pub(crate) struct LinkFaults {
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    pub(crate) reordering: u32,
    pub(crate) corruption: u32,
    /// Data sent again with other segment boundaries, per mille of the peer's segments.
    pub(crate) overlap: u32,
    /// Times that a peer delays an acknowledgment that the stack would not ask for again.
    pub(crate) delayed_acks: u32,
    /// Frames of no connection.
    pub(crate) strays: u32,
    /// UDP datagrams, some of them to a port without a socket.
    pub(crate) datagrams: u32,
    /// Segments that correct peers rarely send: data on a SYN, options of illegal length,
    /// keepalives.
    pub(crate) oddities: u32,
}

/// How the far side behaves.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    /// Concurrent connections.
    pub(crate) count: usize,
    /// Connections that the stack opens, per mille.
    pub(crate) opened_by_stack: u32,
    /// Bytes of a peer's receive buffer.
    pub(crate) buffer: u64,
    /// How often a peer reads, per mille of its steps.
    pub(crate) reads: u32,
    /// Whether most segments have the maximum length, with many in a row.
    pub(crate) bulk: bool,
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) scale: Option<u8>,
    pub(crate) rto_ms: u64,
    /// Streams that end early, per mille.
    pub(crate) short: u32,
    /// Connections that the peer resets, per mille.
    pub(crate) resets: u32,
}

/// How our application behaves.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// How often it reads, per mille of its steps.
    pub(crate) reads: u32,
    /// The most bytes of one read.
    pub(crate) read_size: usize,
    pub(crate) write_size: usize,
    /// Connections that it aborts or drops early, per mille.
    pub(crate) gives_up: u32,
    /// Whether both sides finish their streams in the end.
    pub(crate) finishes: bool,
}

/// The features of the stack's device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// Frames that the device reports as verified, per mille.
    pub(crate) vouches: u32,
    /// The longest frame that it segments; 0: it does not segment.
    pub(crate) cuts: usize,
    /// How often it has no room, per mille.
    pub(crate) busy: u32,
}

/// 0 in a third of the cases, otherwise 1 to `most` per mille.
fn rate(most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(0), 2 => 1..=most]
}

fn power(from: u32, to: u32) -> impl Strategy<Value = u64> {
    (from..=to).prop_map(|bits| 1 << bits)
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let sizes = (power(10, 14), power(10, 14), power(3, 6));
    (2u32..=4, sizes, 200u16..=600, 1u32..=16).prop_map(
        |(connections, (receive, send, slots), mtu, quantum)| Bounds {
            connections,
            receive_buffer: receive as u32,
            send_buffer: send as u32,
            tx_slots: slots as u32,
            mtu,
            quantum,
        },
    )
}

/// The value of `delayed_acks` in every plan.
const DELAYED_ACKS: u32 = 200;

fn bad() -> impl Strategy<Value = LinkFaults> {
    (
        rate(200),
        rate(150),
        rate(300),
        rate(120),
        rate(250),
        (rate(20), rate(400), rate(300)),
    )
        .prop_map(
            |(
                loss,
                duplication,
                reordering,
                corruption,
                overlap,
                (strays, datagrams, oddities),
            )| {
                LinkFaults {
                    loss,
                    duplication,
                    reordering,
                    corruption,
                    overlap,
                    delayed_acks: DELAYED_ACKS,
                    strays,
                    datagrams,
                    oddities,
                }
            },
        )
}

fn late() -> impl Strategy<Value = Late> {
    let stalls = prop_oneof![1 => Just(0u32), 2 => 0u32..=600];
    (stalls, 0usize..=40, 0u64..=2000, 1usize..=8, 1u32..=20).prop_map(
        |(stalls, steal_after, steal_after_us, past_hole, hole_turns)| Late {
            stalls,
            steal_after,
            steal_after_us,
            past_hole,
            hole_turns,
        },
    )
}

fn peers() -> impl Strategy<Value = Peers> {
    let reads = prop_oneof![1 => 2u32..=40, 2 => 40u32..=900];
    let shape = (1usize..=3, 0u32..=1000, 300u64..=12_000, reads);
    let options = (any::<bool>(), any::<bool>(), prop::option::of(0u8..=3));
    let life = (any::<bool>(), 60u64..=400, rate(500), rate(300));
    (shape, options, life).prop_map(
        |(
            (count, opened_by_stack, buffer, reads),
            (timestamps, sack, scale),
            (bulk, rto_ms, short, resets),
        )| {
            Peers {
                count,
                opened_by_stack,
                buffer,
                reads,
                bulk,
                timestamps,
                sack,
                scale,
                rto_ms,
                short,
                resets,
            }
        },
    )
}

fn app() -> impl Strategy<Value = App> {
    let reads = prop_oneof![1 => 5u32..=50, 2 => 50u32..=900];
    (
        reads,
        1usize..=5000,
        1usize..=4000,
        rate(150),
        any::<bool>(),
    )
        .prop_map(|(reads, read_size, write_size, gives_up, finishes)| App {
            reads,
            read_size,
            write_size,
            gives_up,
            finishes,
        })
}

fn device() -> impl Strategy<Value = Device> {
    let cuts = prop_oneof![3 => Just(0usize), 1 => 1000usize..=4000];
    (rate(1000), cuts, 0u32..=600).prop_map(|(vouches, cuts, busy)| Device {
        vouches,
        cuts,
        busy,
    })
}

fn plans(replicas: core::ops::RangeInclusive<usize>) -> impl Strategy<Value = Plan> {
    let layout = (replicas, power(4, 6), power(2, 4));
    let primaries = prop::sample::select(&Primaries::ALL[..]);
    let memory = (power(6, 18), 1u64..=64, late(), primaries);
    let load = (200u64..=320, prop_oneof![1 => Just(0u32), 1 => 0u32..=300]);
    let sides = (bad(), peers(), app(), device());
    (
        any::<u64>().no_shrink(),
        layout,
        memory,
        bounds(),
        load,
        sides,
    )
        .prop_map(
            |(
                seed,
                (replicas, log, frame_chunk),
                (ahead_bytes, fingerprint_every, late, primaries),
                limits,
                (positions, turns),
                (link_faults, peers, app, device),
            )| Plan {
                seed,
                replicas,
                log: log as usize,
                frame_chunk: frame_chunk as usize,
                primaries,
                late,
                ahead_bytes: ahead_bytes as usize,
                fingerprint_every,
                limits,
                positions,
                link_faults,
                peers,
                app,
                turns,
                device,
                membership: MembershipFaults::of(seed),
                always_log: seed.is_multiple_of(2),
            },
        )
}

/// The plan of `seed`, with the tree that proptest needs to simplify it.
pub(crate) fn tree(
    seed: u64,
    replicas: core::ops::RangeInclusive<usize>,
) -> impl ValueTree<Value = Plan> {
    let mut rng = Rng::new(seed);
    let mut bytes = [0; 32];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next().to_le_bytes());
    }
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    plans(replicas)
        .new_tree(&mut runner)
        .expect("these strategies reject nothing")
}
