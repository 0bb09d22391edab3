//! One connection receives as fast as it can.

use super::lineup::{Panel, Wanted};
use super::sweep::sweep;
use super::{Ask, Experiment};
use crate::drivers::Direction;
use crate::paper;
use crate::ratio::{Target, row};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-rx",
    about: "one connection receives: checksum and copy, application in place",
    ask: Ask::Compare(panels),
    published: paper::TCP_RECEIVE,
};

fn panels(wanted: &Wanted) -> Vec<Panel> {
    sweep(wanted, Direction::Receive, targets())
}

fn targets() -> Vec<Target> {
    let (ours, single) = (|| row("replicated", 2), || row("single", 1));
    let limit = |cores| row("limit", cores);
    let speed_up = [limit(2), limit(1)];
    vec![
        Target::of_ratios(
            "receive on 2 cores, speed-up over single / that of limit",
            [ours(), single()],
            speed_up.clone(),
            0.9,
        ),
        Target::of_ratios(
            "receive on 2 cores, speed-up over one replica / that of limit",
            [ours(), row("replicated", 1)],
            speed_up,
            0.9,
        ),
        Target::of("receive on 2 cores / limit", ours(), limit(2), 0.8),
        Target::of("receive on 2 cores / single", ours(), single(), 1.3),
        Target::of(
            "receive on 2 cores / the better locked",
            ours(),
            row("locked*", 2),
            1.3,
        ),
        Target::of(
            "receive on 2 cores / smoltcp",
            ours(),
            row("smoltcp", 1),
            3.0,
        ),
        Target::of(
            "receive, single / smoltcp",
            single(),
            row("smoltcp", 1),
            1.4,
        ),
        Target::of(
            "receive, single / smoltcp that acknowledges once for 8",
            single(),
            row("smoltcp-8", 1),
            None,
        ),
        // What 2 cores could be at best against smoltcp.
        Target::of(
            "limit on 2 cores / smoltcp",
            limit(2),
            row("smoltcp", 1),
            None,
        ),
        Target::of(
            "receive, one replica / single",
            row("replicated", 1),
            single(),
            None,
        ),
        Target::of("limit, 2 cores / 1 core", limit(2), limit(1), None),
    ]
}
