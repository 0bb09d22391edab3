//! Descriptors of the kernel that a poller watches beside sockets.
//!
//! They are in an `epoll`, which the thread that waits asks once for each call. A thread that
//! drives the stack sleeps in the device and waits for the `epoll` beside it; another thread sleeps
//! on the `epoll`, and the poller's own descriptor, which notifications signal.

use core::sync::atomic::{Ordering, fence};
use std::io;
use std::os::fd::AsFd;

use dominoes_drivers::{Beside, DescriptorState, Descriptors, Wanted};

use super::{Event, Interest, Poller, PollerShared, Token, Trigger};
use crate::socket::WaitUntil;

fn wanted(interest: Interest, trigger: Trigger) -> Wanted {
    Wanted {
        readable: interest.is_readable(),
        writable: interest.is_writable(),
        edge: trigger == Trigger::Edge,
    }
}

impl Poller {
    /// Registers a descriptor of the kernel, such as a socket, pipe or `eventfd`. So one thread
    /// waits for sockets of the stack and of the kernel.
    ///
    /// The registration ends when the descriptor is closed. If it has duplicates (`dup`, `fork`),
    /// call [`Poller::deregister_descriptor`] before you close it: the kernel reports it as long as
    /// one of them is open.
    ///
    /// ```
    /// use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
    /// use std::io::Write;
    /// use std::os::unix::net::UnixStream;
    ///
    /// let (reader, mut writer) = UnixStream::pair()?;
    /// let poller = Poller::new()?;
    /// poller.register_descriptor(&reader, Token(1), Interest::READABLE, Trigger::Level)?;
    /// writer.write_all(b"news")?;
    /// let mut events = Vec::with_capacity(8);
    /// assert_eq!(poller.wait(&mut events, None), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if it is registered;
    /// [`io::ErrorKind::PermissionDenied`] if the kernel cannot wait for it, as for a file; or the
    /// process has no descriptor left.
    pub fn register_descriptor(
        &self,
        descriptor: &impl AsFd,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let place = &self.shared.descriptors;
        let descriptors = match place.get() {
            Some(descriptors) => descriptors,
            None => {
                let new = Descriptors::new()?;
                place.get_or_init(|| new)
            }
        };
        let wanted = wanted(interest, trigger);
        descriptors.add(descriptor.as_fd(), token.0 as u64, wanted)?;
        // Threads that wait without descriptors look again.
        self.shared.notify();
        Ok(())
    }

    /// Changes the interest, trigger and token of a registered descriptor. If it is ready, the next
    /// call reports it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if it is not registered with this poller.
    pub fn modify_descriptor(
        &self,
        descriptor: &impl AsFd,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let wanted = wanted(interest, trigger);
        let descriptors = self.shared.descriptors.get();
        descriptors.ok_or(io::ErrorKind::NotFound)?.change(
            descriptor.as_fd(),
            token.0 as u64,
            wanted,
        )
    }

    /// Ends the registration of a descriptor.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if it is not registered with this poller.
    pub fn deregister_descriptor(&self, descriptor: &impl AsFd) -> io::Result<()> {
        let descriptors = self.shared.descriptors.get();
        descriptors
            .ok_or(io::ErrorKind::NotFound)?
            .remove(descriptor.as_fd())
    }
}

impl PollerShared {
    /// The descriptor that is readable when one of the registered ones is ready.
    pub(super) fn beside(&self) -> Option<Beside<'_>> {
        self.descriptors.get().map(AsFd::as_fd)
    }

    /// Adds up to `most` events of descriptors.
    pub(super) fn collect_descriptors(&self, most: usize, list: &mut Vec<Event>) {
        let Some(descriptors) = self.descriptors.get() else {
            return;
        };
        descriptors.ready(most, |state| {
            let DescriptorState {
                number,
                readable,
                writable,
                read_closed,
                write_closed,
                error,
            } = state;
            list.push(Event {
                token: Token(number as usize),
                readable,
                writable,
                read_closed,
                write_closed,
                error,
            });
        });
    }

    /// Sleeps until a descriptor is ready, there is news, or the time is over. Returns false, at
    /// once, without descriptors.
    pub(super) fn sleep_on_descriptors(&self, until: WaitUntil) -> bool {
        let Some(descriptors) = self.descriptors.get() else {
            return false;
        };
        let signal = &self.descriptor;
        signal.sleepers.fetch_add(1, Ordering::Relaxed);
        // ORDERING: SeqCst fence, pairs with the one in `EventCount::notify_all`, which every
        // notification calls before it signals: either it finds this sleeper, or this check finds
        // the news.
        fence(Ordering::SeqCst);
        if !self.has_news()
            && let Ok(left) = until.left()
            && descriptors.wait(&signal.event, left)
        {
            signal.reset();
        }
        signal.sleepers.fetch_sub(1, Ordering::Relaxed);
        true
    }
}
