//! Socket options that the application sets and the pump publishes.

use core::num::NonZero;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

use super::StreamRef;
use crate::config::{CongestionControl, Keepalive, Settings, Tuning};
use crate::io::sync::{AtomicU32, AtomicU64};
use crate::time::Duration;

/// [`Settings`] in atomics, which threads may change independently. Times are in nanoseconds.
pub(super) struct SharedSettings {
    nodelay: AtomicBool,
    /// Keepalive probes before the connection fails; 0 disables keepalive.
    probes: AtomicU32,
    idle: AtomicU64,
    interval: AtomicU64,
    /// 0: none.
    user_timeout: AtomicU64,
    ttl: AtomicU8,
    tos: AtomicU8,
}

impl SharedSettings {
    /// The defaults.
    pub(super) fn new() -> Self {
        let settings = SharedSettings {
            nodelay: AtomicBool::new(false),
            probes: AtomicU32::new(0),
            idle: AtomicU64::new(0),
            interval: AtomicU64::new(0),
            user_timeout: AtomicU64::new(0),
            ttl: AtomicU8::new(0),
            tos: AtomicU8::new(0),
        };
        settings.store(&Settings::default());
        settings
    }

    pub(super) fn store(&self, settings: &Settings) {
        self.nodelay.store(settings.nodelay, Ordering::Relaxed);
        self.keepalive(settings.keepalive);
        self.user_timeout(settings.user_timeout);
        self.ttl.store(settings.ttl, Ordering::Relaxed);
        self.tos.store(settings.tos, Ordering::Relaxed);
    }

    fn keepalive(&self, keepalive: Option<Keepalive>) {
        if let Some(Keepalive { idle, interval, .. }) = keepalive {
            self.idle.store(idle.as_nanos(), Ordering::Relaxed);
            self.interval.store(interval.as_nanos(), Ordering::Relaxed);
        }
        let probes = keepalive.map_or(0, |keepalive| u32::from(keepalive.probes.get()));
        self.probes.store(probes, Ordering::Relaxed);
    }

    fn user_timeout(&self, user_timeout: Option<Duration>) {
        let nanos = user_timeout.map_or(0, Duration::as_nanos);
        self.user_timeout.store(nanos, Ordering::Relaxed);
    }

    fn load(&self) -> Settings {
        let nanos = |word: &AtomicU64| Duration::from_nanos(word.load(Ordering::Relaxed));
        let probes = self.probes.load(Ordering::Relaxed) as u8;
        let user_timeout = nanos(&self.user_timeout);
        Settings {
            nodelay: self.nodelay.load(Ordering::Relaxed),
            keepalive: NonZero::new(probes).map(|probes| Keepalive {
                idle: nanos(&self.idle),
                interval: nanos(&self.interval),
                probes,
            }),
            user_timeout: (user_timeout > Duration::ZERO).then_some(user_timeout),
            ttl: self.ttl.load(Ordering::Relaxed),
            tos: self.tos.load(Ordering::Relaxed),
        }
    }
}

/// [`Tuning`] in atomics.
pub(super) struct SharedTuning {
    cork: AtomicBool,
    /// 0: that of the policy; else one more than its place among all.
    congestion: AtomicU8,
    max_segment: AtomicU16,
    receive_buffer: AtomicU32,
    /// In nanoseconds; [`u64::MAX`]: none.
    linger: AtomicU64,
}

impl SharedTuning {
    /// The defaults.
    pub(super) fn new() -> Self {
        SharedTuning {
            cork: AtomicBool::new(false),
            congestion: AtomicU8::new(0),
            max_segment: AtomicU16::new(0),
            receive_buffer: AtomicU32::new(0),
            linger: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn store(&self, tuning: &Tuning) {
        let Tuning {
            cork,
            congestion,
            max_segment,
            receive_buffer,
            linger,
        } = *tuning;
        let control = congestion.map_or(0, |control| 1 + control as u8);
        self.cork.store(cork, Ordering::Relaxed);
        self.congestion.store(control, Ordering::Relaxed);
        self.max_segment.store(max_segment, Ordering::Relaxed);
        self.receive_buffer.store(receive_buffer, Ordering::Relaxed);
        let nanos = linger.map_or(u64::MAX, |linger| linger.as_nanos().min(u64::MAX - 1));
        self.linger.store(nanos, Ordering::Relaxed);
    }

    fn load(&self) -> Tuning {
        let control = usize::from(self.congestion.load(Ordering::Relaxed));
        let linger = self.linger.load(Ordering::Relaxed);
        Tuning {
            cork: self.cork.load(Ordering::Relaxed),
            congestion: control
                .checked_sub(1)
                .and_then(|control| CongestionControl::ALL.get(control).copied()),
            max_segment: self.max_segment.load(Ordering::Relaxed),
            receive_buffer: self.receive_buffer.load(Ordering::Relaxed),
            linger: (linger != u64::MAX).then(|| Duration::from_nanos(linger)),
        }
    }
}

impl StreamRef<'_> {
    /// How the application has tuned it.
    pub(crate) fn tuning(&self) -> Tuning {
        self.stream.app.tuning.load()
    }

    /// To be followed by an [`StreamRef::request`].
    pub(crate) fn set_tuning(&self, tuning: &Tuning) {
        self.stream.app.tuning.store(tuning);
    }

    /// As [`StreamRef::set_tuning`], for all settings.
    pub(crate) fn set_settings(&self, settings: &Settings) {
        self.stream.app.settings.store(settings);
    }

    /// What the application has set.
    pub(crate) fn settings(&self) -> Settings {
        self.stream.app.settings.load()
    }

    /// Nagle's algorithm off or on. To be followed by an [`StreamRef::request`], as all below.
    pub(crate) fn set_nodelay(&self, nodelay: bool) {
        // ORDERING: Relaxed, as all wishes: the Release in `request` stands behind them.
        let wish = &self.stream.app.settings.nodelay;
        wish.store(nodelay, Ordering::Relaxed);
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) {
        self.stream.app.settings.keepalive(keepalive);
    }

    pub(crate) fn set_user_timeout(&self, user_timeout: Option<Duration>) {
        self.stream.app.settings.user_timeout(user_timeout);
    }

    pub(crate) fn set_ttl(&self, ttl: u8) {
        self.stream.app.settings.ttl.store(ttl, Ordering::Relaxed);
    }

    pub(crate) fn set_tos(&self, tos: u8) {
        self.stream.app.settings.tos.store(tos, Ordering::Relaxed);
    }
}
