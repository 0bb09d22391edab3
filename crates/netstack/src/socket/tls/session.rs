//! What the halves of a TLS connection and the workers that process its records share.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dominoes::{Exclusive, Watch};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error};

use super::super::half::Half;
use super::receiving::{OpenUnit, Receiver};
use super::record::{Keys, Version};
use super::sending::{SealUnit, Sender};
use crate::io::stream::Handle;
use crate::io::units::{Owner, Serial, TextBuffer, UnitRing, UnitWork};

/// Records of one direction that may be under way between writer or reader and the stack: half a
/// send buffer of the default length.
pub(super) const UNITS: usize = 32;
/// Units that a worker processes before it goes on with other work.
const UNITS_PER_TURN: usize = 4;

/// Makes keys and keeps tickets after the handshake.
pub(super) enum Kernel {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Kernel {
    pub(super) fn is_client(&self) -> bool {
        matches!(self, Kernel::Client(_))
    }

    /// The next key to open with, or to seal with.
    pub(super) fn next_keys(&mut self, receives: bool) -> Option<Keys> {
        let next: Result<(u64, ConnectionTrafficSecrets), Error> = match (self, receives) {
            (Kernel::Client(kernel), true) => kernel.update_rx_secret(),
            (Kernel::Client(kernel), false) => kernel.update_tx_secret(),
            (Kernel::Server(kernel), true) => kernel.update_rx_secret(),
            (Kernel::Server(kernel), false) => kernel.update_tx_secret(),
        };
        // Only TLS 1.3 has such, and they begin with record 0.
        let (_, secrets) = next.ok()?;
        Keys::new(Version::Tls13, &secrets)
    }

    /// The server sent a ticket.
    pub(super) fn keep_ticket(&mut self, ticket: &[u8]) -> Result<(), AlertDescription> {
        match self {
            Kernel::Client(kernel) => {
                let kept = kernel.handle_new_session_ticket(ticket);
                kept.map_err(|_| AlertDescription::DecodeError)
            }
            Kernel::Server(_) => Err(AlertDescription::UnexpectedMessage),
        }
    }
}

/// One TLS connection after its handshake.
///
/// *Sending.* A writer copies text into units of `sealing` and fixes for each record its key, its
/// number and its place in the send stream. Any thread seals it from the unit into the send ring.
/// The cursor that the pump reads moves over the sealed prefix only (`publish`), so the ring's
/// bytes become visible to the stack as ciphertext or not at all.
///
/// *Receiving.* Whichever thread has the `receiver` finds records in the receive ring and makes
/// them units of `opening`. Any thread opens one from the ring into its unit. The reader takes the
/// opened prefix, and gives the ring's bytes up when it takes a unit.
///
/// Neither changes what it reads, so a unit whose thread unwinds is begun anew.
pub(super) struct Session {
    pub(super) half: Arc<Half>,
    /// Of its text.
    owner: Owner,
    pub(super) version: Version,
    kernel: Mutex<Kernel>,

    sender: Mutex<Sender>,
    pub(super) sealing: UnitRing<SealUnit>,
    pub(super) publishing: Serial,
    /// The stream ends behind the last unit.
    pub(super) is_ending: AtomicBool,
    /// The stack was told so.
    pub(super) has_ended: AtomicBool,
    /// The peer asks for a KeyUpdate.
    pub(super) owes_update: AtomicBool,
    /// The KeyUpdates that we asked for and the peer has not answered.
    pub(super) asked_updates: AtomicU64,

    pub(super) receiver: Exclusive<Receiver>,
    pub(super) opening: UnitRing<OpenUnit>,
    /// What the connection's news calls.
    arrivals: Arc<dyn Watch>,
    /// Whether it is called.
    is_armed: AtomicBool,
    /// Whether the session is in the queue of its stack.
    is_queued: AtomicBool,
}

impl Session {
    pub(super) fn new(
        half: Arc<Half>,
        version: Version,
        kernel: Kernel,
        sender: Sender,
        receiver: Receiver,
    ) -> Arc<Session> {
        let owner = half.world.units.owner();
        let session = Arc::new_cyclic(|session: &Weak<Session>| Session {
            half,
            owner,
            version,
            kernel: Mutex::new(kernel),
            sender: Mutex::new(sender),
            sealing: UnitRing::new(UNITS),
            publishing: Serial::default(),
            is_ending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            owes_update: AtomicBool::new(false),
            asked_updates: AtomicU64::new(0),
            receiver: Exclusive::new(receiver),
            opening: UnitRing::new(UNITS),
            arrivals: Arc::new(Arrivals(Weak::clone(session))),
            is_armed: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&session);
        session.half.world.register_units(weak);
        session.watch();
        session
    }

    /// Applications take it, workers do not.
    pub(super) fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves units that are ready to the workers of the stack. Returns whether there are any.
    pub(super) fn share(self: &Arc<Self>) -> bool {
        let has_ready = self.sealing.has_ready() || self.opening.has_ready();
        if has_ready {
            self.enqueue();
        }
        has_ready
    }

    /// A buffer for text of this connection.
    pub(super) fn buffer(&self) -> TextBuffer {
        self.half.world.units.buffer(self.owner)
    }

    fn enqueue(self: &Arc<Self>) {
        // ORDERING: AcqRel: Release, pairs with the Acquire in `serve`, which then finds the units.
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.half
                .world
                .push_units(Arc::clone(self) as Arc<dyn UnitWork>);
        }
    }

    /// Lets news of the connection put it into the queue, and looks for records that came before.
    fn watch(self: &Arc<Self>) {
        let Ok(stream) = self.half.stream() else {
            return;
        };
        // ORDERING: AcqRel, pairs with the one in `fire`: the look comes after what that was for.
        while !self.is_armed.swap(true, Ordering::AcqRel) {
            stream.waiting().watch(&self.arrivals);
            self.scan();
        }
    }

    /// Takes back what `watch` did.
    pub(super) fn unwatch(&self) {
        if let Ok(stream) = self.half.stream() {
            stream.waiting().unwatch(&self.arrivals);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.half.world.units.forget(self.owner);
    }
}

/// Puts a session that has more to do back into the queue, also when its worker unwinds.
struct Requeue<'a>(&'a Arc<Session>);

impl Drop for Requeue<'_> {
    fn drop(&mut self) {
        self.0.share();
    }
}

impl UnitWork for Session {
    fn serve(self: Arc<Self>, more: &dyn Fn()) -> usize {
        // ORDERING: AcqRel: Acquire, pairs with the Release in `enqueue`.
        self.is_queued.swap(false, Ordering::AcqRel);
        let requeue = Requeue(&self);
        self.scan();
        self.watch();
        let mut done = 0;
        while done < UNITS_PER_TURN {
            let opening = self.opening.claim();
            let sealing = match opening {
                None => self.sealing.claim(),
                Some(_) => None,
            };
            if (opening.is_some() || sealing.is_some()) && self.share() {
                more();
            }
            match (opening, sealing) {
                (Some(unit), _) => self.open(unit, true),
                (None, Some(unit)) => self.seal(unit, true),
                (None, None) => break,
            }
            done += 1;
        }
        drop(requeue);
        done
    }

    fn finish(self: Arc<Self>) -> Option<Handle> {
        self.end(None);
        Some(self.half.stream().ok()?.handle())
    }
}

/// Called when a connection has news.
struct Arrivals(Weak<Session>);

impl Watch for Arrivals {
    fn is_due(&self) -> bool {
        self.0.upgrade().is_none_or(|session| session.has_record())
    }

    fn fire(self: Arc<Self>) {
        if let Some(session) = self.0.upgrade() {
            // ORDERING: AcqRel, pairs with the one in `watch`.
            session.is_armed.swap(false, Ordering::AcqRel);
            session.enqueue();
        }
    }
}

impl core::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Session")
            .field("version", &self.version)
            .field("sealing", &self.sealing.len())
            .field("opening", &self.opening.len())
            .finish_non_exhaustive()
    }
}
