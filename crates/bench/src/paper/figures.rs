//! The published figures, one list for each experiment.

use super::{Check, Figure, KIM_PAI, KIM_SUNG, MACKERRAS, NAHUM, PERCENT, SIZEMORE};

/// Most machines here have only two cores; the papers end at eight or sixteen.
const TWO_CORES: &str = "measured on two cores, so nothing is said of more of them";
/// What a comparison of absolute rates, or of what eight processors do, needs.
const ANOTHER_MACHINE: &str = "a machine of that time";
const EIGHT_CORES: &str = "eight cores that contend for one lock";

/// Receiving over one TCP connection.
pub const TCP_RECEIVE: &[Figure] = &[
    Figure::new(
        SIZEMORE,
        "figure 5.5",
        "TCP receive by message size, 1 to 6 replicas, checksums by the card",
        "a curve without numbers: rises with every replica up to 5, less for small messages",
    )
    .checks(&[
        Check::ratio("two replicas over one core, 1448 bytes", "receive on 2 cores / single")
            .more_than(1.0),
        Check::ratio("512 bytes", "512-byte segments, 2 replicas / single").more_than(1.0),
        Check::ratio("64 bytes", "64-byte segments, 2 replicas / single").more_than(1.0),
    ])
    .differs(
        "single has no log, so the first replica's log is part of the ratio; runs of small segments \
         are merged before they reach the state, and what is left of each is the header",
    ),
    Figure::new(
        SIZEMORE,
        "figure 5.6",
        "TCP receive, 1500-byte packets, against Linux 2.6.32 with a lock on the connection",
        "curves without numbers: Linux is faster on one core and falls with cores, replication rises",
    )
    .checks(&[
        Check::ratio("two replicas over one", "1448: speed-up of replicated/2").more_than(1.0),
        Check::ratio("two cores over one behind a mutex", "1448: speed-up of locked-mutex/2")
            .less_than(1.0),
        Check::ratio("two replicas over the better lock", "receive on 2 cores / the better locked")
            .more_than(1.0),
    ])
    .differs(
        "the lock is around the same protocol code for a batch of frames, and checksums and copies \
         are outside of it, so two cores hardly ever meet; Linux of 2009 took it for every packet",
    ),
    Figure::new(SIZEMORE, "text to figure 5.7", "TCP receive", "about: send on one core is in line with it")
        .cores(1)
        .mbit_per_s(900.0)
        .checks(&[Check::new("one replica", "1448: Gbit/s of replicated/1", "Gbit/s").number(0.9)])
        .lacks("a machine of 2010 and its network"),
    Figure::new(
        NAHUM,
        "figures 8, 9",
        "TCP receive, one lock (TCP-1), 100 MHz R4400, 1 to 8 processors",
        "levels off above this and then falls: segments pass each other at the lock",
    )
    .mbit_per_s(350.0)
    .checks(&[
        Check::new("behind a mutex", "1448: Gbit/s of locked-mutex/1", "Gbit/s").number(0.35),
        Check::ratio("two cores over one", "1448: speed-up of locked-mutex/2"),
    ])
    .lacks(ANOTHER_MACHINE),
    Figure::new(
        NAHUM,
        "section 3.1, receive",
        "time that waits for the lock on the connection, receive, 8 processors",
        "90 %",
    )
    .checks(&[
        Check::new("waits behind a mutex, 2 cores", "1448: waits of locked-mutex/2", PERCENT)
            .number(90.0),
        Check::new("behind an MCS lock", "1448: waits of locked-mcs/2", PERCENT),
    ])
    .lacks(EIGHT_CORES),
];

/// Sending over one TCP connection.
pub const TCP_SEND: &[Figure] = &[
    Figure::new(
        SIZEMORE,
        "figure 5.7",
        "TCP send, 1 to 7 replicas",
        "900 Mbit/s on one core, below 200 on two, less with more",
    )
    .cores(2)
    .mbit_per_s(200.0)
    .checks(&[Check::ratio("two replicas over one core", "send on 2 cores / single").number(0.22)])
    .differs_on_purpose(
        "it scales here on purpose: apply numbers every frame, so its builder knows its place in \
             the order, and the send ring is written once and shared without a lock",
    ),
    Figure::new(
        NAHUM,
        "figures 6, 7",
        "TCP send, one lock (TCP-1), 100 MHz R4400, 1 to 8 processors",
        "levels off at about this",
    )
    .mbit_per_s(215.0)
    .checks(&[
        Check::new("behind a mutex", "1448: Gbit/s of locked-mutex/1", "Gbit/s").number(0.215),
        Check::ratio("two cores over one", "1448: speed-up of locked-mutex/2"),
    ])
    .lacks(ANOTHER_MACHINE),
    Figure::new(
        NAHUM,
        "section 3.1, send",
        "time that waits for the lock on the connection, send, 8 processors",
        "85 %",
    )
    .checks(&[Check::new(
        "waits behind a mutex, 2 cores",
        "1448: waits of locked-mutex/2",
        PERCENT,
    )
    .number(85.0)])
    .lacks(EIGHT_CORES),
];

/// Receiving by one UDP socket.
pub const UDP_RECEIVE: &[Figure] = &[
    Figure::new(
        SIZEMORE,
        "figure 5.4, plain",
        "UDP receive, 1 to 6 replicas, checksums by the card",
        "the driver's ceiling; near-linear below it",
    )
    .mbit_per_s(3_000.0)
    .checks(&[Check::ratio("two replicas over one core", "on 2 cores / single").more_than(1.0)])
    .differs("checksums in software; every request is applied by both replicas"),
    Figure::new(
        NAHUM,
        "figures 4, 5",
        "UDP receive with locks for the demultiplexer only, 1 to 8 processors",
        "curves without numbers: drops at 2 processors, rises beyond",
    )
    .checks(&[Check::ratio(
        "two replicas over one core",
        "on 2 cores / single",
    )])
    .lacks("a row with locks around datagrams"),
];

/// Sending by one UDP socket.
pub const UDP_SEND: &[Figure] = &[Figure::new(
    NAHUM,
    "figures 2, 3",
    "UDP send, 1 to 8 processors",
    "curves without numbers: scales well",
)
.checks(&[Check::ratio("two replicas over one core", "on 2 cores / single").more_than(1.0)])
.differs("one socket whose datagrams keep their order; the paper's processors send without order")];

/// Both directions at once.
pub const TCP_BOTH: &[Figure] = &[Figure::new(
    SIZEMORE,
    "section 6.3.4, figure 6.4",
    "receiving and sending by different replicas",
    "not possible: every header carries a sequence and an acknowledgment number; no throughput",
)
.checks(&[Check::ratio(
    "both ways by two whole replicas over one core",
    "both ways, 1448-byte segments, 2 replicas / single",
)])
.differs("every replica applies both directions here; only the payload's work is divided")];

/// With and without checksums in software.
pub const CHECKSUM: &[Figure] = &[
    Figure::new(
        SIZEMORE,
        "figure 6.2",
        "TCP receive with and without checksums by the card, Xeon E5410",
        "curves without numbers: in software every replica reads every byte; throughput drops when a second socket is needed",
    )
    .checks(&[
        Check::ratio("two replicas over one core, in software", "receive, checksums by software, replicated on 2 / single")
            .less_than(1.0),
        Check::ratio("by the device", "receive, checksums by device, replicated on 2 / single")
            .more_than(1.0),
    ])
    .differs_on_purpose("checksums are verified by one replica here, whose verdict all of them read"),
    Figure::new(
        SIZEMORE,
        "figure 6.3",
        "TCP receive with checksums in software, shared cache (Intel) and caches of their own (AMD)",
        "curves without numbers: slower on one replica, the AMD is faster once caches matter",
    )
    .lacks("a second machine"),
    Figure::new(
        NAHUM,
        "section 3.2",
        "TCP with and without checksums, packets of 1 to 4 KB (figures 6 to 9)",
        "larger packets and checksums give the better speed-ups; differences smaller than expected; a processor sums 256 Mbit/s",
    )
    .checks(&[
        Check::ratio("two replicas over one core, in software", "receive, checksums by software, replicated on 2 / single"),
        Check::ratio("by the device", "receive, checksums by device, replicated on 2 / single"),
    ])
    .differs("segments of at most 1448 bytes"),
];

/// How often each replica is primary.
pub const LOAD_SHARE: &[Figure] = &[Figure::new(
    SIZEMORE,
    "figure 6.1",
    "share of five processing domains, first come first served, sampled every 27,400 requests (100 to 200 ms)",
    "a curve without numbers: not even, one domain is slow and gets less; nobody starves",
)
.checks(&[
    Check::new("least share of a replica, by claims", "replicated: least share", PERCENT).more_than(10.0),
    Check::new("first come first served", "replicated-greedy: least share", PERCENT).more_than(10.0),
])
.differs("two replicas, of which half is the even share")];

/// Several connections.
pub const CONNECTIONS: &[Figure] = &[Figure::new(
    NAHUM,
    "figure 12",
    "TCP-1 with MCS locks, 4 KB packets, a connection for each of 1 to 8 processors",
    "a curve without numbers: rises steadily with connections and processors",
)
.checks(&[
    Check::ratio(
        "a group for each core, 8 connections, two cores over one",
        "receive: speed-up of partitioned/2, 8 conn. by 8",
    )
    .more_than(1.0),
    Check::ratio(
        "one MCS lock for all of them",
        "receive: speed-up of locked-mcs/2, 8 conn. by 8",
    ),
])
.differs("one lock of ours is around all connections; a lock for each is what partitioned has")];

/// Payload separate from acknowledgments.
pub const SPECIALIZED: &[Figure] = &[Figure::new(
    SIZEMORE,
    "figure 5.9",
    "TCP receive, one domain delivers payload, another makes acknowledgments, against one domain",
    "about +15 % with 1500-byte packets, much more with smaller ones; less than double",
)
.checks(&[
    Check::ratio(
        "by kind over one core, 1448 bytes",
        "1448-byte segments, by kind of work / single on 1",
    )
    .number(1.15),
    Check::ratio(
        "64 bytes",
        "64-byte segments, by kind of work / single on 1",
    )
    .more_than(1.0),
])
.differs(
    "acknowledgments are one frame for a run of up to 60 segments, so there is little to divide",
)];

/// Payload that is processed inline.
pub const INLINE: &[Figure] = &[
    Figure::new(
        SIZEMORE,
        "figure 5.4, search",
        "UDP receive with four memory operations per byte (a string search)",
        "the driver's ceiling of 3 Gbit/s, approached on six processors",
    )
    .cores(6)
    .mbit_per_s(3_000.0)
    .checks(&[Check::ratio(
        "two replicas over one core",
        "receive with search, 2 replicas / single",
    )
    .more_than(1.0)])
    .differs("the search is over a TCP stream: datagrams have no processor in line"),
    Figure::new(
        SIZEMORE,
        "figure 5.8, one core",
        "TCP receive with AES-256 decryption, one processor",
        "about 60 % less than without",
    )
    .checks(&[Check::ratio(
        "AES-256-CTR over plain on one core",
        "receive, single with AES-256-CTR / plain",
    )
    .number(0.4)])
    .differs("instructions for AES, which processors of 2010 had not"),
    Figure::new(
        SIZEMORE,
        "figure 5.8",
        "TCP receive with AES-256 decryption",
        "easily attained with five or more replicas",
    )
    .cores(5)
    .mbit_per_s(1_000.0)
    .checks(&[
        Check::ratio(
            "two replicas over one core, AES-256-CTR",
            "receive with AES-256-CTR, 2 replicas / single",
        )
        .more_than(1.0),
        Check::ratio(
            "AES-256-GCM",
            "receive with AES-256-GCM, 2 replicas / single",
        )
        .more_than(1.0),
    ])
    .differs(TWO_CORES),
];

/// A programmable network card with two processors.
pub const NIC: &[Figure] = &[
    Figure::new(
        KIM_PAI,
        "figure 5",
        "share of each handler, 64-byte frames both ways",
        "send data ready and receive complete about 30 % each, DMA read complete 14 %, update send consumer 0.6 %",
    )
    .checks(&[
        Check::new("receive complete", "share of receive complete", PERCENT)
            .number(30.0),
        Check::new("send data ready", "share of send data ready", PERCENT)
            .number(30.0),
        Check::new("DMA read complete", "share of DMA read complete", PERCENT)
            .number(14.0),
    ])
    .differs("receive complete enqueues two transfers for a frame here, send data ready one"),
    Figure::new(
        KIM_PAI,
        "table 1, section 4.2",
        "shares of processors A and B in what one processor does, 64-byte frames both ways",
        "53:47",
    )
    .checks(&[Check::new("processor A", "share of processor A", PERCENT)
        .number(53.0)])
    .differs("follows from the shares of the handlers"),
    Figure::new(
        KIM_PAI,
        "figures 10, 11",
        "UDP both ways, 18 and 1472 bytes, parallel over released firmware",
        "+157 %, of which parallel execution at most +95 %; +65 % (938 to 1553 Mbit/s)",
    )
    .checks(&[
        Check::ratio("18 bytes", "partitioned over one, both ways, 18 bytes")
            .number(1.95),
        Check::ratio("1472 bytes", "partitioned over one, both ways, 1472 bytes")
            .number(1.65),
    ])
    .differs("processor time, without what processors wait for each other's memory"),
    Figure::new(
        KIM_PAI,
        "figures 6 to 9",
        "UDP one way, parallel execution alone, without the part of on-chip memory",
        "send at most +13 %, receive about +18 %",
    )
    .checks(&[
        Check::ratio("send", "partitioned over one, send, 18 bytes").between(1.0, 1.13),
        Check::ratio("receive", "partitioned over one, receive, 18 bytes").number(1.18),
    ])
    .differs("processor time, without what processors wait for each other's memory"),
    Figure::new(
        KIM_PAI,
        "figures 12, 13",
        "latency of a UDP ping, parallel against released firmware",
        "-6 to -10 %",
    )
    .checks(&[Check::ratio("handlers of a ping", "partitioned over one, ping").between(0.9, 0.94)])
    .differs("the handlers' part of the round trip alone"),
    Figure::new(
        KIM_PAI,
        "table 3",
        "HTTP server and IP router over the card, parallel against released firmware",
        "+20 to +73 %, +12 to +107 %",
    )
    .checks(&[
        Check::ratio("server", "partitioned over one, server").between(1.2, 1.73),
        Check::ratio("router", "partitioned over one, router").between(1.12, 2.07),
    ])
    .differs("on threads, where host, far end and both processors share the cores there are"),
];

/// Percent of one processor's time that each handler takes, as a range by event (figure 5): 64-byte
/// frames both ways.
pub const NIC_EVENTS: [(f64, f64); 9] = [
    (4.0, 6.0),
    (14.0, 14.0),
    (4.0, 6.0),
    (30.0, 30.0),
    (4.0, 6.0),
    (30.0, 30.0),
    (0.6, 0.6),
    (4.0, 6.0),
    (4.0, 6.0),
];

/// Stages for whole frames, payload and headers.
pub const PIPELINE: &[Figure] = &[
    Figure::new(
        MACKERRAS,
        "section 4",
        "10 MB over one cell, 4.0 s",
        "3.2 s are copies and checksums, at most 0.8 s are headers",
    )
    .checks(&[Check::new("share of the data stages, receive", "receive: share of data", PERCENT)
        .between(80.0, 100.0)])
    .differs("a stage for frames is counted besides"),
    Figure::new(
        MACKERRAS,
        "figure 2",
        "TCP receive by data cells, 1 to 3 connections",
        "3.1 MB/s on one cell; 2 to 3 times that with 5 data cells or more; faster from 2 data cells on; bound by the protocol cell",
    )
    .checks(&[
        Check::ratio("6 data stages over single", "receive: 6 stages / single").between(2.0, 3.0),
        Check::new("data stages from which it pays", "receive: pays from", "stages")
            .number(2.0),
    ])
    .differs("a core for each stage is projected from busy times, without lines from core to core"),
    Figure::new(
        MACKERRAS,
        "figure 3",
        "TCP send by data cells, 1 to 3 connections",
        "3.5 MB/s on one cell, 7.5 MB/s at most, bound by the interface cell",
    )
    .checks(&[
        Check::ratio("6 data stages over single", "send: 6 stages / single").number(2.1),
    ])
    .differs("a core for each stage is projected from busy times, without lines from core to core"),
    Figure::new(
        MACKERRAS,
        "figures 4, 5",
        "idle time of the protocol cell, by data cells",
        "curves without numbers: none in receive, some in send",
    )
    .checks(&[
        Check::new("idle in receive, 8 stages", "receive: protocol idle", PERCENT).less_than(20.0),
        Check::new("in send", "send: protocol idle", PERCENT).more_than(20.0),
    ])
    .differs("runs of segments make the protocol stage's part small"),
    Figure::new(
        MACKERRAS,
        "figure 6",
        "throughput of one connection by window",
        "a curve without numbers: flat from 48 KB on",
    )
    .checks(&[Check::new("within 10 % of the most from", "receive: flat from", "KB")
        .number(48.0)])
    .differs("follows from the frames of a message, 16"),
];

/// Percent of segments out of order at TCP, receiving 4 KB packets with checksums, on 1 to 8
/// processors, with mutexes and with MCS locks: table 1 of Nahum et al.
pub const MISORDERED: [(u32, u32); 8] = [
    (0, 0),
    (2, 2),
    (4, 4),
    (5, 6),
    (11, 9),
    (25, 11),
    (42, 14),
    (54, 18),
];

/// Locks around the state, and work outside them.
pub const LOCKS: &[Figure] = &[
    Figure::new(
        NAHUM,
        "table 1",
        "percent of segments out of order at TCP, 1 to 8 processors",
        "mutex 0, 2, 4, 5, 11, 25, 42, 54; MCS 0, 2, 4, 6, 9, 11, 14, 18",
    )
    .checks(&[Check::ratio("MCS over mutex, summed", "misordering, MCS / mutex")
        .number(64.0 / 143.0)])
    .lacks("a core for each of up to eight workers: more workers than cores misorder as the scheduler does"),
    Figure::new(
        NAHUM,
        "figure 10",
        "TCP receive with MCS locks and with mutexes, against each segment taken for the one expected",
        "curves without numbers: MCS locks make up most of the difference",
    )
    .checks(&[
        Check::ratio("MCS over mutex", "receive, MCS locks beat mutexes").more_than(1.0),
        Check::ratio("in order over MCS", "receive, order that is taken for granted gains").more_than(1.0),
    ])
    .differs(TWO_CORES),
    Figure::new(
        NAHUM,
        "figure 11",
        "TCP receive with and without tickets for the order above TCP",
        "curves without numbers: order costs throughput",
    )
    .checks(&[Check::ratio("without over with tickets", "receive, tickets cost").more_than(1.0)])
    .differs(TWO_CORES),
    Figure::new(
        NAHUM,
        "figures 13, 14",
        "TCP-1, TCP-2 and TCP-6 with MCS locks, 4 KB packets, 1 to 8 processors",
        "curves without numbers: TCP-1 is the fastest throughout, TCP-6 the slowest, more so with checksums",
    )
    .checks(&[
        Check::ratio("receive, TCP-1 over TCP-2", "receive, TCP-1 beats TCP-2").more_than(1.0),
        Check::ratio("over TCP-6", "receive, TCP-1 beats TCP-6").more_than(1.0),
        Check::ratio("send, TCP-1 over TCP-2", "send, TCP-1 beats TCP-2").more_than(1.0),
        Check::ratio("over TCP-6", "send, TCP-1 beats TCP-6").more_than(1.0),
    ])
    .differs(TWO_CORES),
    Figure::new(
        NAHUM,
        "figure 15",
        "atomic increments for reference counts instead of locks",
        "about +20 % in receive, +5 to +10 % in send",
    )
    .checks(&[
        Check::ratio("receive", "receive, atomic reference counts gain over locks")
            .number(1.2),
        Check::ratio("send", "send, atomic reference counts gain over locks")
            .between(1.05, 1.1),
    ])
    .differs("a lock that nobody waits for takes two atomic instructions here, no kernel"),
    Figure::new(
        NAHUM,
        "figure 16",
        "messages from a stack of each thread instead of malloc",
        "curves without numbers: a significant gain",
    )
    .checks(&[
        Check::ratio("pools over malloc", "receive, pools gain over malloc").more_than(1.0),
        Check::ratio("over a list behind a lock", "receive, pools gain over a list behind a lock")
            .more_than(1.0),
    ])
    .differs("malloc of today keeps a cache for each thread itself"),
    Figure::new(
        NAHUM,
        "figures 17, 18",
        "the same on three generations of machines",
        "trends alike on all; the newer the machine, the smaller the speed-up",
    )
    .lacks("machines of three generations"),
];

/// Requests with a sequential and a parallelizable part, without a network.
pub const SYNTHETIC: &[Figure] = &[
    Figure::new(
        SIZEMORE,
        "figure 5.1",
        "a lock, atomics and replication, 100:1 and 10:1 parallelizable to sequential, 1 to 16 threads on 8 cores",
        "at 10:1 replication reaches 4 to 5 times one thread, the lock hardly more than one",
    )
    .checks(&[
        Check::ratio("replication at 10:1, 2 threads over 1", "10:1 replication on 2").more_than(1.0),
        Check::ratio("a lock", "10:1 coarse lock on 2"),
        Check::ratio("replication at 100:1", "100:1 replication on 2").more_than(1.0),
    ])
    .differs(TWO_CORES),
    Figure::new(
        SIZEMORE,
        "figure 5.2",
        "the same at 2:1 and 1:2",
        "at 2:1 slightly better than the model (1.5 for two), at 1:2 no speed-up that means anything",
    )
    .checks(&[
        Check::ratio("replication at 2:1, 2 threads over 1", "2:1 replication on 2")
            .number(1.5),
        Check::ratio("at 1:2", "1:2 replication on 2").less_than(1.5),
    ])
    .differs(TWO_CORES),
];

/// Messages through the log.
pub const CHANNEL: &[Figure] = &[
    Figure::new(
        SIZEMORE,
        "figure 5.3",
        "one publisher, 1 to 7 subscribers, rate of each and of all",
        "curves without numbers: all above 833,000 a second, which is 10 Gbit/s of 1500-byte frames",
    )
    .checks(&[Check::new("1 publisher, 4 subscribers", "1x4", "million/s").more_than(0.833)])
    .lacks("a machine of 2010, and a core for each subscriber"),
    Figure::new(
        SIZEMORE,
        "table 5.2",
        "requests per second, 1 to 7 publishers, 1, 2 and 4 subscribers",
        "1x1 1,693,834; 2x2 1,376,557; 4x4 645,374; 7x1 660,352",
    )
    .checks(&[
        Check::new("1x1", "1x1", "million/s").number(1.694),
        Check::new("2x2", "2x2", "million/s").number(1.377),
        Check::new("4x4", "4x4", "million/s").number(0.645),
        Check::new("7x1", "7x1", "million/s").number(0.660),
    ])
    .lacks("a machine of 2010, and a core for each publisher and subscriber"),
];

/// What each function of the protocol costs.
pub const FUNCTIONS: &[Figure] = &[
    Figure::new(
        KIM_SUNG,
        "figure 6",
        "IPSend: routing, address translation, fragmentation, header, checksum",
        "estimated speed-up of its parallel structure 1.06: routing and checksum dominate, one after the other",
    )
    .checks(&[
        Check::ratio("critical path", "IPSend").number(1.06),
        Check::ratio("by time", "IPSend, by time").number(1.06),
    ])
    .differs("routes, neighbours and fragments are found once a connection and cost a segment nothing"),
    Figure::new(
        KIM_SUNG,
        "figure 7",
        "IPReceive: header checks, checksum, options, reassembly",
        "2.55: the checksum alone determines it",
    )
    .checks(&[
        Check::ratio("critical path", "IPReceive").number(2.55),
        Check::ratio("by time", "IPReceive, by time").number(2.55),
    ])
    .differs("IP and TCP headers are compared with those of the last segment at once"),
    Figure::new(
        KIM_SUNG,
        "figure 8",
        "TCPSend: segmenting, header, checksum, 1412-byte segments",
        "1.14",
    )
    .checks(&[
        Check::ratio("critical path", "TCPSend").number(1.14),
        Check::ratio("by time", "TCPSend, by time").number(1.14),
    ])
    .differs("counted instructions and sampled time instead of cycles of a Pentium"),
    Figure::new(
        KIM_SUNG,
        "figure 9",
        "TCPReceive: connection lookup, header checks, checksum, ordering, 1412-byte segments",
        "1.02: the checksum is nearly all of it",
    )
    .checks(&[
        Check::ratio("critical path", "TCPReceive").number(1.02),
        Check::ratio("by time", "TCPReceive, by time").number(1.02),
    ])
    .differs("checksums of 32 bytes at a time leave less to the checksum"),
    Figure::new(
        KIM_SUNG,
        "section 3.2",
        "speed-up of the send and the receive path by functional parallelism",
        "1.13 and 1.05; pipelining is proposed, not measured",
    )
    .checks(&[
        Check::ratio("send path", "send path").number(1.13),
        Check::ratio("send path by time", "send path, by time").number(1.13),
        Check::ratio("receive path", "receive path").number(1.05),
        Check::ratio("receive path by time", "receive path, by time").number(1.05),
        Check::ratio("receive path as a pipeline", "receive path, pipelined"),
    ])
    .differs("the pipeline as it runs is the experiment pipeline"),
];
