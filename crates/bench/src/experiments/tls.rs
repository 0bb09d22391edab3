//! One TLS stream: records sealed and opened by all workers.

use super::{DIRECTIONS, Experiment};
use crate::drivers::tls;
use crate::lineup::{Panel, Wanted};
use crate::ratio::{Target, ratios};
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
    for (direction, what) in DIRECTIONS {
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
    let name = |compared: &str| format!("{what}, {cipher}: {compared}");
    ratios! {
        name;
        "2 workers / 1": "replicated" 2 / "replicated" 1, 1.75;
        "2 workers / rustls over smoltcp": "replicated" 2 / "smoltcp" 1, 3.0;
        "2 workers / cipher and copies on 2 cores": "replicated" 2 / "limit" 2, 0.85;
        // At most 5 % more time.
        "1 worker / rustls on single": "replicated" 1 / "rustls" 1, 1.0 / 1.05;
        "single / rustls on single": "single" 1 / "rustls" 1, None;
        "2 workers / rustls on single": "replicated" 2 / "rustls" 1, None;
        "limit, 2 cores / 1 core": "limit" 2 / "limit" 1, None;
        "cipher alone, 2 cores / 1 core": "cipher" 2 / "cipher" 1, None;
        "2 workers / cipher alone on 2 cores": "replicated" 2 / "cipher" 2, None;
    }
}
