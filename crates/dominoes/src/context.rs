//! Contexts: pinned threads that run domains.

use crate::domain::{Domain, Turn};
use std::{
    fmt, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Idle rounds with pauses, then idle rounds with yields, before a context sleeps.
const SPIN_ROUNDS: u32 = 256;
const YIELD_ROUNDS: u32 = 2;
/// A context with several domains has no single thing to sleep on; it looks again after this.
const DOZE: Duration = Duration::from_micros(200);

/// A pinned thread with its domains. It polls them in turn, and when all are idle it spins, then
/// yields, then sleeps.
///
/// Like an operating system process that owns a core: the domains on it share nothing with other
/// contexts but channels.
#[derive(Debug)]
pub struct Context;

/// State shared by a context's thread and its handle.
#[derive(Default)]
struct Control {
    stop: AtomicBool,
    /// Something is in `inbox`, or it is closed.
    mail: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    domains: Vec<Box<dyn Domain>>,
    closed: bool,
}

impl Context {
    /// Starts a thread with these domains, on this core if one is named.
    ///
    /// The thread ends when it is told to stop, when every domain is finished (a context that
    /// starts without any waits for the first), or when a domain panics.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        name: &str,
        core: Option<usize>,
        domains: Vec<Box<dyn Domain>>,
    ) -> io::Result<ContextHandle> {
        let control = Arc::new(Control::default());
        let (tell, told) = mpsc::channel();
        let thread = {
            let control = control.clone();
            thread::Builder::new()
                .name(name.to_string())
                .spawn(move || {
                    let pinned = core.is_some_and(|id| {
                        core_affinity::set_for_current(core_affinity::CoreId { id })
                    });
                    // The other end waits for this, or is gone because starting failed.
                    let _ = tell.send(pinned);
                    run(&control, domains)
                })?
        };
        let pinned = told.recv().unwrap_or(false);
        Ok(ContextHandle {
            control,
            thread,
            pinned,
        })
    }
}

/// Takes new domains in; false if nothing came.
fn take_mail(control: &Control, domains: &mut Vec<Box<dyn Domain>>) {
    // ORDERING: Acquire, pairs with the Release in `ContextHandle::add`; the lock orders the rest.
    if control.mail.swap(false, Ordering::Acquire) {
        domains.append(&mut lock(&control.inbox).domains);
    }
}

fn lock(inbox: &Mutex<Inbox>) -> std::sync::MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn run(control: &Control, mut domains: Vec<Box<dyn Domain>>) -> Vec<Box<dyn Domain>> {
    /// However the thread ends, nobody adds a domain afterwards.
    struct Close<'a>(&'a Control);
    impl Drop for Close<'_> {
        fn drop(&mut self) {
            lock(&self.0.inbox).closed = true;
        }
    }
    let close = Close(control);
    let mut finished = Vec::new();
    let mut idle = 0;
    loop {
        // ORDERING: Acquire, pairs with the Release in `ContextHandle::stop`.
        if control.stop.load(Ordering::Acquire) {
            break;
        }
        if control.mail.load(Ordering::Relaxed) {
            take_mail(control, &mut domains);
            idle = 0;
        }
        let mut worked = false;
        let mut next = 0;
        while next < domains.len() {
            match domains[next].run() {
                Turn::Worked => worked = true,
                Turn::Idle => {}
                Turn::Finished => {
                    finished.push(domains.remove(next));
                    worked = true;
                    continue;
                }
            }
            next += 1;
        }
        if domains.is_empty() && !finished.is_empty() {
            let mut inbox = lock(&control.inbox);
            if inbox.domains.is_empty() {
                inbox.closed = true;
                break;
            }
            continue;
        }
        if worked {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < SPIN_ROUNDS {
            std::hint::spin_loop();
        } else if idle < SPIN_ROUNDS + YIELD_ROUNDS {
            thread::yield_now();
        } else {
            match &mut domains[..] {
                [] => thread::park(),
                [only] => only.park(),
                _ => thread::park_timeout(DOZE),
            }
        }
    }
    drop(close);
    finished.append(&mut domains);
    finished.append(&mut lock(&control.inbox).domains);
    finished
}

/// The owner's view of a [`Context`]. Dropping it lets the context run on by itself.
pub struct ContextHandle {
    control: Arc<Control>,
    thread: thread::JoinHandle<Vec<Box<dyn Domain>>>,
    pinned: bool,
}

impl ContextHandle {
    /// Whether the thread was pinned to the core that was asked for. False if none was.
    pub fn pinned(&self) -> bool {
        self.pinned
    }

    /// Tells the context to stop after its current turn. Does not wait.
    pub fn stop(&self) {
        // ORDERING: Release, pairs with the Acquire in `run`.
        self.control.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    /// Waits for the thread to end; call [`stop`](Self::stop) first unless its domains finish by
    /// themselves.
    ///
    /// Gives the domains back, those that finished first.
    ///
    /// # Errors
    /// The payload of the panic, if a domain panicked. Then the context's domains are gone: they
    /// were dropped while unwinding, and their subscriptions left.
    pub fn join(self) -> thread::Result<Vec<Box<dyn Domain>>> {
        self.thread.join()
    }

    /// Hands the context another domain.
    ///
    /// # Errors
    /// Gives the domain back if the context has ended.
    pub fn add(&self, domain: Box<dyn Domain>) -> Result<(), Box<dyn Domain>> {
        {
            let mut inbox = lock(&self.control.inbox);
            if inbox.closed {
                return Err(domain);
            }
            inbox.domains.push(domain);
            // ORDERING: Release, pairs with the Acquire in `take_mail`.
            self.control.mail.store(true, Ordering::Release);
        }
        self.thread.thread().unpark();
        Ok(())
    }

    /// The thread, for waking it up.
    pub fn thread(&self) -> &thread::Thread {
        self.thread.thread()
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

impl fmt::Debug for ContextHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextHandle")
            .field("name", &self.thread.thread().name())
            .field("pinned", &self.pinned)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{NoBatch, Replica, SpinYield, channel};
    use std::any::Any;

    struct Counter {
        left: u32,
    }

    impl Domain for Counter {
        fn run(&mut self) -> Turn {
            if self.left == 0 {
                return Turn::Finished;
            }
            self.left -= 1;
            Turn::Worked
        }
    }

    #[test]
    fn a_context_ends_with_its_last_domain_and_gives_them_back() {
        let context = Context::spawn(
            "t",
            Some(0),
            vec![
                Box::new(Counter { left: 10 }),
                Box::new(Counter { left: 3 }),
            ],
        );
        let domains = context.unwrap().join().unwrap();
        assert_eq!(domains.len(), 2);
        let first: Box<dyn Any> = domains.into_iter().next().unwrap();
        assert_eq!(first.downcast::<Counter>().unwrap().left, 0);
    }

    #[test]
    fn a_stopped_context_gives_unfinished_domains_back() {
        struct Forever;
        impl Domain for Forever {
            fn run(&mut self) -> Turn {
                Turn::Idle
            }
            fn park(&mut self) {
                thread::park();
            }
        }
        let context = Context::spawn("t", None, vec![Box::new(Forever)]).unwrap();
        thread::sleep(Duration::from_millis(5));
        context.stop();
        assert_eq!(context.join().unwrap().len(), 1);
    }

    #[test]
    fn a_domain_can_be_added_to_a_sleeping_context() {
        let context = Context::spawn("t", None, Vec::new()).unwrap();
        thread::sleep(Duration::from_millis(5));
        context.add(Box::new(Counter { left: 5 })).unwrap();
        assert_eq!(context.join().unwrap().len(), 1);
    }

    #[test]
    fn a_panic_in_a_handler_is_reported_and_its_subscription_leaves() {
        let (mut publisher, log) = channel::<u32, SpinYield>(2);
        let replica = Replica::new(
            "bad",
            (),
            log.subscribe().unwrap(),
            |_: &mut (), _, _: &u32| panic!("no good"),
        );
        let mut healthy = log.subscribe().unwrap();
        let context = Context::spawn("t", None, vec![Box::new(replica)]).unwrap();
        publisher.publish(1).unwrap();
        let payload = context.join().err().unwrap();
        assert_eq!(*payload.downcast::<&str>().unwrap(), "no good");
        assert_eq!(log.subscribers(), 1);
        for n in 0..100 {
            publisher.publish(n).unwrap();
            assert_eq!(healthy.try_next_batch().unwrap().len(), 1);
        }
        assert_eq!(healthy.try_next_batch().unwrap().len(), 1);
        assert_eq!(healthy.try_next_batch().unwrap_err(), NoBatch::Empty);
    }
}
