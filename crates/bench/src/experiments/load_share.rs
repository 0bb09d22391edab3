//! Whose work it was, over time.

use super::{Ask, Experiment};
use crate::paper;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "load-share",
    about: "share of each replica in the payload, every 27,400 requests",
    ask: Ask::Shares,
    published: paper::LOAD_SHARE,
};

/// Requests between two samples, as in Sizemore's figure 6.1.
pub(super) const EVERY: u64 = 27_400;
