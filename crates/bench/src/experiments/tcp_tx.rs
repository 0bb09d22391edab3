//! One connection sends as fast as it can.

use super::lineup::{Panel, Wanted};
use super::sweep::sweep;
use super::{Ask, Experiment};
use crate::drivers::Direction;
use crate::paper;
use crate::ratio::{Target, row};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-tx",
    about: "one connection sends: copy and checksum, bytes lie in the send ring",
    ask: Ask::Compare(panels),
    published: paper::TCP_SEND,
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    sweep(wanted, Direction::Send, targets())
}

fn targets() -> Vec<Target> {
    let (ours, single) = (|| row("replicated", 2), || row("single", 1));
    let limit = |cores| row("limit", cores);
    let speed_up = [limit(2), limit(1)];
    vec![
        Target::of_ratios(
            "send on 2 cores, speed-up over single / that of limit",
            [ours(), single()],
            speed_up.clone(),
            0.9,
        ),
        Target::of_ratios(
            "send on 2 cores, speed-up over one replica / that of limit",
            [ours(), row("replicated", 1)],
            speed_up,
            0.9,
        ),
        Target::of("send on 2 cores / limit", ours(), limit(2), 0.8),
        Target::of("send on 2 cores / single", ours(), single(), 1.0),
        Target::of(
            "send on 2 cores / the better locked",
            ours(),
            row("locked*", 2),
            None,
        ),
        Target::of("send on 2 cores / smoltcp", ours(), row("smoltcp", 1), None),
        Target::of("send, single / smoltcp", single(), row("smoltcp", 1), 1.4),
        Target::of(
            "send, one replica / single",
            row("replicated", 1),
            single(),
            None,
        ),
        Target::of("limit, 2 cores / 1 core", limit(2), limit(1), None),
    ]
}
