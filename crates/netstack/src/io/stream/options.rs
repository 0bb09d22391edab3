//! Socket options that the application sets and the pump publishes.

use crossbeam_utils::atomic::AtomicCell;

use super::StreamRef;
use crate::config::{Settings, Tuning};

/// The options of a connection. Threads may change them at the same time; each change is one step.
/// They are longer than a word: who reads one, as the receive pump does after a request, waits
/// while another thread stores it, which takes a few instructions.
#[derive(Default)]
pub(super) struct SharedOptions {
    settings: AtomicCell<Settings>,
    tuning: AtomicCell<Tuning>,
}

impl SharedOptions {
    /// They are the defaults again.
    pub(super) fn reset(&self) {
        self.settings.store(Settings::default());
        self.tuning.store(Tuning::default());
    }
}

impl StreamRef<'_> {
    /// What the application has set.
    pub(crate) fn settings(&self) -> Settings {
        self.stream.app.options.settings.load()
    }

    /// Changes settings. Returns whether the new ones are valid; others change nothing. To be
    /// followed by an [`StreamRef::request`].
    pub(crate) fn change_settings(&self, change: impl Fn(Settings) -> Settings) -> bool {
        let settings = &self.stream.app.options.settings;
        settings
            .fetch_update(|before| change(before).checked())
            .is_ok()
    }

    /// How the application has tuned it.
    pub(crate) fn tuning(&self) -> Tuning {
        self.stream.app.options.tuning.load()
    }

    /// As [`StreamRef::change_settings`], of its tuning.
    pub(crate) fn change_tuning(&self, change: impl Fn(Tuning) -> Tuning) -> bool {
        let tuning = &self.stream.app.options.tuning;
        tuning
            .fetch_update(|before| change(before).checked())
            .is_ok()
    }
}
