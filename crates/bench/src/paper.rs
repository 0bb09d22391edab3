//! Published figures as data, each with where it stands.
//!
//! Sizemore: Charles Donour Sizemore, *Parallel network protocol stacks using replication*,
//! University of New Mexico, 2011. Nahum: Erich M. Nahum, David J. Yates, James F. Kurose and Don
//! Towsley, *Performance issues in parallelized network protocols*, University of Massachusetts,
//! 1994. Curves that the text describes without numbers are described here without numbers.

use core::fmt;

use serde::Serialize;

/// One published figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Author and year.
    pub source: &'static str,
    /// Figure or table.
    pub place: &'static str,
    /// What was measured, and on what.
    pub what: &'static str,
    /// Cores or replicas, where the text gives a number for them.
    pub cores: Option<usize>,
    /// Throughput, where the text gives a number.
    pub mbit_per_s: Option<f64>,
    /// How the number is meant.
    pub note: &'static str,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {}", self.source, self.place, self.what)?;
        if let Some(cores) = self.cores {
            write!(f, ", {cores} core{}", if cores == 1 { "" } else { "s" })?;
        }
        if let Some(mbit) = self.mbit_per_s {
            write!(f, ": {mbit} Mbit/s")?;
        }
        if !self.note.is_empty() {
            write!(f, " ({})", self.note)?;
        }
        Ok(())
    }
}

const SIZEMORE: &str = "Sizemore 2011";
const NAHUM: &str = "Nahum et al. 1994";

/// A figure whose text gives no throughput.
const fn curve(
    source: &'static str,
    place: &'static str,
    what: &'static str,
    note: &'static str,
) -> Figure {
    Figure {
        source,
        place,
        what,
        cores: None,
        mbit_per_s: None,
        note,
    }
}

/// Receiving over one TCP connection.
pub const TCP_RECEIVE: &[Figure] = &[
    Figure {
        source: SIZEMORE,
        place: "figure 5.5",
        what: "TCP receive by message size, 1 to 6 replicas, checksums by the card",
        cores: None,
        mbit_per_s: None,
        note: "a curve without numbers: rises with every replica up to 5, less for small messages",
    },
    Figure {
        source: SIZEMORE,
        place: "figure 5.6",
        what: "TCP receive, 1500-byte packets, against Linux 2.6.32",
        cores: None,
        mbit_per_s: None,
        note: "curves without numbers: Linux is faster on one core and falls with cores, replication rises",
    },
    Figure {
        source: SIZEMORE,
        place: "text to figure 5.7",
        what: "TCP receive",
        cores: Some(1),
        mbit_per_s: Some(900.0),
        note: "about: send on one core is called in line with receive",
    },
    Figure {
        source: NAHUM,
        place: "figure 8",
        what: "TCP receive, one lock (TCP-1), 100 MHz R4400, 1 to 8 processors",
        cores: None,
        mbit_per_s: Some(350.0),
        note: "levels off above this and then falls: segments pass each other at the lock",
    },
    curve(
        NAHUM,
        "section 3.1",
        "time that waits for the lock on the connection, receive, 8 processors",
        "90 %",
    ),
];

/// Sending over one TCP connection.
pub const TCP_SEND: &[Figure] = &[
    Figure {
        source: SIZEMORE,
        place: "figure 5.7",
        what: "TCP send",
        cores: Some(1),
        mbit_per_s: Some(900.0),
        note: "about",
    },
    Figure {
        source: SIZEMORE,
        place: "figure 5.7",
        what: "TCP send",
        cores: Some(2),
        mbit_per_s: Some(200.0),
        note: "below this, that is 0.2 of one core, and less with more",
    },
    Figure {
        source: NAHUM,
        place: "figure 6",
        what: "TCP send, one lock (TCP-1), 100 MHz R4400, 1 to 8 processors",
        cores: None,
        mbit_per_s: Some(215.0),
        note: "levels off at about this",
    },
    curve(
        NAHUM,
        "section 3.1",
        "time that waits for the lock on the connection, send, 8 processors",
        "85 %",
    ),
];

/// Receiving by one UDP socket.
pub const UDP_RECEIVE: &[Figure] = &[
    Figure {
        source: SIZEMORE,
        place: "figure 5.4",
        what: "UDP receive, 1 to 6 replicas, checksums by the card",
        cores: None,
        mbit_per_s: Some(3_000.0),
        note: "the driver's ceiling; near-linear below it",
    },
    Figure {
        source: SIZEMORE,
        place: "figure 5.4",
        what: "UDP receive with four memory operations per byte (a string search)",
        cores: Some(6),
        mbit_per_s: Some(3_000.0),
        note: "the same ceiling, approached on six processors",
    },
];

/// Sending by one UDP socket.
pub const UDP_SEND: &[Figure] = &[curve(
    SIZEMORE,
    "chapter 5",
    "UDP send",
    "not measured; receive is figure 5.4",
)];

/// Both directions at once.
pub const TCP_BOTH: &[Figure] = &[curve(
    SIZEMORE,
    "section 6.3.4",
    "receiving and sending by different replicas",
    "not possible: every header carries a sequence and an acknowledgment number; no figure",
)];

/// With and without checksums in software.
pub const CHECKSUM: &[Figure] = &[
    curve(
        SIZEMORE,
        "figure 6.2",
        "TCP receive with and without checksums by the card, Xeon E5410",
        "curves without numbers: in software every replica reads every byte; throughput drops when a second socket is needed",
    ),
    curve(
        SIZEMORE,
        "figure 6.3",
        "TCP receive with checksums in software, shared cache (Intel) and caches of their own (AMD)",
        "curves without numbers: slower on one replica, the AMD is faster once caches matter",
    ),
    curve(
        NAHUM,
        "figures 6 to 9, section 3.2",
        "TCP with and without checksums, packets of 1 to 4 KB",
        "larger packets and checksums give the better speed-ups; differences smaller than expected",
    ),
    Figure {
        source: NAHUM,
        place: "section 3.2",
        what: "checksumming alone, each processor",
        cores: Some(1),
        mbit_per_s: Some(256.0),
        note: "up to 8 processors alike",
    },
];

/// Who is primary how often.
pub const LOAD_SHARE: &[Figure] = &[curve(
    SIZEMORE,
    "figure 6.1",
    "share of five processing domains, first come first served, sampled every 27,400 requests (100 to 200 ms)",
    "a curve without numbers: not even, one domain is slow and gets less; nobody starves",
)];

/// Several connections.
pub const CONNECTIONS: &[Figure] = &[curve(
    NAHUM,
    "figure 12",
    "TCP-1 with MCS locks, 4 KB packets, a connection for each of 1 to 8 processors",
    "a curve without numbers: rises steadily with connections and processors",
)];

/// Payload apart from acknowledgments.
pub const SPECIALIZED: &[Figure] = &[curve(
    SIZEMORE,
    "figure 5.9",
    "TCP receive, one domain delivers payload, another makes acknowledgments, against one domain",
    "about +15 % with 1500-byte packets, much more with smaller ones; less than double",
)];

/// Payload that is worked on in line.
pub const INLINE: &[Figure] = &[
    Figure {
        source: SIZEMORE,
        place: "figure 5.4",
        what: "UDP receive, with and without four memory operations per byte (a string search)",
        cores: Some(6),
        mbit_per_s: Some(3_000.0),
        note: "the driver's ceiling, approached with the search on six processors",
    },
    curve(
        SIZEMORE,
        "figure 5.8",
        "TCP receive with AES-256 decryption, one processor",
        "about 60 % less than without",
    ),
    Figure {
        source: SIZEMORE,
        place: "figure 5.8",
        what: "TCP receive with AES-256 decryption",
        cores: Some(5),
        mbit_per_s: Some(1_000.0),
        note: "easily attained with five or more replicas",
    },
];
