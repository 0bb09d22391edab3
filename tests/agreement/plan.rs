//! The parameters of a case.

use core::fmt::Debug;
use core::ops::RangeInclusive;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use dominoes_netstack::CongestionControl;
use dominoes_netstack::group::Primaries;
use dominoes_testkit::packet::Family;
use dominoes_testkit::{Rng, mix};

use super::membership::MembershipFaults;

/// 0 in a third of the cases, otherwise 1 to `most` per mille.
fn rate(most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(0), 2 => 1..=most]
}

/// A power of two.
fn power<T: TryFrom<u32, Error: Debug> + Debug>(from: u32, to: u32) -> impl Strategy<Value = T> {
    (from..=to).prop_map(|bits| T::try_from(1 << bits).expect("it is small"))
}

/// A structure, and the strategy that draws its fields one after the other.
macro_rules! drawn {
    (
        $(#[$about:meta])*
        struct $name:ident($($given:ident: $given_type:ty)?) {
            $($(#[$what:meta])* $field:ident: $type:ty = $from:expr,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name {
            $($(#[$what])* pub(crate) $field: $type,)*
        }

        impl $name {
            fn drawn($($given: $given_type)?) -> impl Strategy<Value = $name> {
                let all = drawn!(@from $($from,)*);
                all.prop_map(|drawn!(@into $($field,)*)| $name { $($field,)* })
            }
        }
    };
    (@from) => { Just(()) };
    (@from $first:expr, $($rest:expr,)*) => { ($first, drawn!(@from $($rest,)*)) };
    (@into) => { () };
    (@into $first:ident, $($rest:ident,)*) => { ($first, drawn!(@into $($rest,)*)) };
}

drawn! {
    /// One case. Every field shrinks towards its simplest value; `seed` decides everything else.
    struct Plan(replica_range: RangeInclusive<usize>) {
        seed: u64 = any::<u64>().no_shrink(),
        replicas: usize = replica_range,
        log: usize = power(4, 6),
        frame_chunk: usize = power(2, 4),
        ahead_bytes: usize = power(6, 18),
        fingerprint_every: u64 = 1..=64_u64,
        late: Late = Late::drawn(),
        primaries: Primaries = prop::sample::select(&Primaries::ALL[..]),
        limits: Bounds = Bounds::drawn(),
        /// Log positions before the faults end.
        positions: u64 = 200..=320_u64,
        /// Per mille of the steps that are a whole turn of a worker instead of a single step.
        turns: u32 = prop_oneof![1 => Just(0), 1 => 0..=300_u32],
        link_faults: LinkFaults = LinkFaults::drawn(),
        peers: Peers = Peers::drawn(),
        app: App = App::drawn(),
        device: Device = Device::drawn(),
        /// Workers that join, leave and fail. Follows from the seed.
        membership: MembershipFaults = Just(MembershipFaults::default()),
        /// Whether a worker that is alone keeps its log. Follows from the seed.
        always_log: bool = Just(false),
    }
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

drawn! {
    /// Workers that are held up, and when the others steal their work.
    struct Late() {
        /// Stretches of steps in which one worker is held up, per mille.
        stalls: u32 = prop_oneof![1 => Just(0), 2 => 0..=600_u32],
        /// Positions or frames after which its work is stolen.
        steal_after: usize = 0..=40_usize,
        /// Microseconds after which a worker without other work steals it.
        steal_after_us: u64 = 0..=2000_u64,
        /// Frames that must be ready after a hole before they are sent past it.
        past_hole: usize = 1..=8_usize,
        /// Turns that find the hole before that.
        hole_turns: u32 = 1..=20_u32,
    }
}

drawn! {
    /// Limits of the stack, all of them small.
    struct Bounds() {
        connections: u32 = 2..=4_u32,
        receive_buffer: u32 = power(10, 14),
        send_buffer: u32 = power(10, 14),
        tx_slots: u32 = power(3, 6),
        mtu: u16 = 200..=600_u16,
        quantum: u32 = 1..=16_u32,
    }
}

/// The value of `delayed_acks` in every plan.
const DELAYED_ACKS: u32 = 200;

drawn! {
    /// Faults of the wire in both directions, per mille of the frames.
    struct LinkFaults() {
        loss: u32 = rate(200),
        duplication: u32 = rate(150),
        reordering: u32 = rate(300),
        corruption: u32 = rate(120),
        /// Data sent again with other segment boundaries, per mille of the peer's segments.
        overlap: u32 = rate(250),
        /// Times that a peer delays an acknowledgment that the stack would not ask for again.
        delayed_acks: u32 = Just(DELAYED_ACKS),
        /// Frames of no connection.
        strays: u32 = rate(20),
        /// UDP datagrams, some of them to a port without a socket.
        datagrams: u32 = rate(400),
        /// Segments that correct peers rarely send: data on a SYN, options of illegal length,
        /// keepalives.
        oddities: u32 = rate(300),
    }
}

drawn! {
    /// How the far side behaves.
    struct Peers() {
        /// Concurrent connections.
        count: usize = 1..=3_usize,
        /// Connections that the stack opens, per mille.
        opened_by_stack: u32 = 0..=1000_u32,
        /// Bytes of a peer's receive buffer.
        buffer: u64 = 300..=12_000_u64,
        /// How often a peer reads, per mille of its steps.
        reads: u32 = prop_oneof![1 => 2..=40_u32, 2 => 40..=900_u32],
        timestamps: bool = any::<bool>(),
        sack: bool = any::<bool>(),
        scale: Option<u8> = prop::option::of(0..=3_u8),
        /// Whether most segments have the maximum length, with many in a row.
        bulk: bool = any::<bool>(),
        rto_ms: u64 = 60..=400_u64,
        /// Streams that end early, per mille.
        short: u32 = rate(500),
        /// Connections that the peer resets, per mille.
        resets: u32 = rate(300),
    }
}

drawn! {
    /// How our application behaves.
    struct App() {
        /// How often it reads, per mille of its steps.
        reads: u32 = prop_oneof![1 => 5..=50_u32, 2 => 50..=900_u32],
        /// The most bytes of one read.
        read_size: usize = 1..=5000_usize,
        write_size: usize = 1..=4000_usize,
        /// Connections that it aborts or drops early, per mille.
        gives_up: u32 = rate(150),
        /// Whether both sides finish their streams in the end.
        finishes: bool = any::<bool>(),
    }
}

drawn! {
    /// The features of the stack's device.
    struct Device() {
        /// Frames that the device reports as verified, per mille.
        vouches: u32 = rate(1000),
        /// The longest frame that it segments; 0: it does not segment.
        cuts: usize = prop_oneof![3 => Just(0), 1 => 1000..=4000_usize],
        /// How often it has no room, per mille.
        busy: u32 = 0..=600_u32,
    }
}

fn plans(replicas: RangeInclusive<usize>) -> impl Strategy<Value = Plan> {
    Plan::drawn(replicas).prop_map(|plan| Plan {
        membership: MembershipFaults::of(plan.seed),
        always_log: plan.seed.is_multiple_of(2),
        ..plan
    })
}

/// The plan of `seed`, with the tree that proptest needs to simplify it.
pub(crate) fn tree(seed: u64, replicas: RangeInclusive<usize>) -> impl ValueTree<Value = Plan> {
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
