//! Published figures as data, each with where it stands.
//!
//! Sizemore: Charles Donour Sizemore, *Parallel network protocol stacks using replication*, University of New
//! Mexico, 2011. Curves that the text describes without numbers are described here without numbers.

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
];
