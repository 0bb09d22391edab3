//! One TLS stream: records sealed and opened by all workers.

use super::Experiment;
use crate::drivers::{Direction, tls};
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, row};
use crate::workload::{Processing, Workload};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tls",
    about: "one TLS 1.3 stream: records by all replicas, by rustls in the application's thread",
    panels,
    ..Experiment::NONE
};

/// The most important first.
const CIPHERS: [Processing; 3] = [
    Processing::TlsAes256Gcm,
    Processing::TlsAes128Gcm,
    Processing::TlsChaCha20Poly1305,
];

fn panels(wanted: &Wanted) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (direction, what) in [(Direction::Receive, "receive"), (Direction::Send, "send")] {
        for (i, processing) in CIPHERS.into_iter().enumerate() {
            let workload = Workload {
                processing,
                ..wanted.base
            };
            let cipher = processing.name();
            let mut panel = wanted.panel(format!("{what} {cipher}"), direction, workload);
            panel.entries = wanted.entries_of(tls::VARIANTS, direction, &["*"], "", workload);
            if i == 0 {
                panel = panel.targets(wanted, targets(what, cipher));
            } else {
                panel.targets = targets(what, cipher);
                for target in &mut panel.targets {
                    target.at_least = None;
                }
            }
            panels.push(panel);
        }
    }
    panels
}

fn targets(what: &str, cipher: &str) -> Vec<Target> {
    let (ours, one) = (|| row("replicated", 2), || row("replicated", 1));
    let limit = |cores| row("limit", cores);
    let name = |compared: &str| format!("{what}, {cipher}: {compared}");
    vec![
        Target::of(name("2 workers / 1"), ours(), one(), 1.75),
        Target::of(
            name("2 workers / rustls over smoltcp"),
            ours(),
            row("smoltcp", 1),
            3.0,
        ),
        Target::of(
            name("2 workers / cipher and copies on 2 cores"),
            ours(),
            limit(2),
            0.85,
        ),
        // At most 5 % more time.
        Target::of(
            name("1 worker / rustls on single"),
            one(),
            row("rustls", 1),
            1.0 / 1.05,
        ),
        Target::of(
            name("single / rustls on single"),
            row("single", 1),
            row("rustls", 1),
            None,
        ),
        Target::of(
            name("2 workers / rustls on single"),
            ours(),
            row("rustls", 1),
            None,
        ),
        Target::of(name("limit, 2 cores / 1 core"), limit(2), limit(1), None),
        Target::of(
            name("cipher alone, 2 cores / 1 core"),
            row("cipher", 2),
            row("cipher", 1),
            None,
        ),
        Target::of(
            name("2 workers / cipher alone on 2 cores"),
            ours(),
            row("cipher", 2),
            None,
        ),
    ]
}
