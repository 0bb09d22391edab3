//! Contexts: pinned threads that run domains.

use crate::{
    JoinError, Meter,
    domains::domain::{Domain, Turn},
    stats::DomainStats,
    wait_set::{WaitSet, WakeSource},
};
use std::{
    fmt, io,
    marker::PhantomData,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

/// Number of cores to which a thread can be pinned (`CPU_SETSIZE` of Linux).
const MOST_CORES: usize = 1024;
/// Idle rounds with pauses before the first yield. The number adapts within these limits.
const SPIN_LEAST: u32 = 16;
const SPIN_MOST: u32 = 1024;
/// Turns without work after which a thread yields once while it spins. A thread that waits for its
/// core may otherwise have to wait until the time slice is over.
const SPIN_ROUND: u32 = 64;
/// Idle rounds with yields before a context sleeps.
const YIELD_ROUNDS: u32 = 2;

/// A pinned thread and its domains, which it runs in turn. When all are idle, it spins, then
/// yields, then sleeps until a source of one of them notifies it: an entry is published, a timer
/// is due, permits are released. It does not poll while it sleeps, however many domains and
/// sources it has; see [`Domain::wake_sources`]. While a domain waits for a source that does not
/// notify, such as a channel whose wait strategy is not [`Park`](crate::Park), the context does
/// not sleep, but yields between turns.
///
/// The length of spinning adapts: it grows when spinning found work, and shrinks when the context
/// slept after all, or when only yielding brought work, as on a shared core.
///
/// A context resembles an operating system process that owns a core: its domains share nothing
/// with other contexts except channels. Domains can be added, removed and moved while it runs; see
/// [`ContextHandle`] and [`ContextControl`].
#[derive(Debug)]
pub struct Context;

/// State shared by a context's thread and its handles.
#[derive(Default)]
struct Control {
    stop: AtomicBool,
    /// The source on which the context sleeps. Notified after `stop` or `mail` is set.
    wake: WakeSource,
    /// `inbox` has messages, or is closed.
    mail: AtomicBool,
    inbox: Mutex<Inbox>,
    /// All domains of this context, with their counts.
    roster: Mutex<Vec<Listed>>,
}

struct Listed {
    id: u64,
    name: String,
    meter: Arc<Meter>,
}

#[derive(Default)]
struct Inbox {
    messages: Vec<ContextMessage>,
    closed: bool,
}

/// A message of the control channel.
enum ContextMessage {
    Add(Box<dyn Domain>),
    Remove(u64, mpsc::Sender<Box<dyn Domain>>),
    Move(u64, ContextControl, mpsc::Sender<bool>),
    Order(Vec<u64>, mpsc::Sender<()>),
}

impl Context {
    /// Starts a thread with these domains, pinned to `core` if given.
    ///
    /// The thread ends when it is stopped, when every domain is finished (a context that starts
    /// without domains waits for the first), or when a domain panics.
    ///
    /// # Errors
    /// The thread cannot be started.
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
                    // The system's mask has no bit for cores with higher numbers.
                    let core = core.filter(|id| *id < MOST_CORES);
                    let pinned = core.is_some_and(|id| {
                        core_affinity::set_for_current(core_affinity::CoreId { id })
                    });
                    let mut own = Domains::new(&control);
                    domains.into_iter().for_each(|domain| own.add(domain));
                    // The receiver waits for this, or is gone because starting failed.
                    let _ = tell.send(pinned);
                    run(&control, own)
                })?
        };
        let pinned = told.recv().unwrap_or(false);
        Ok(ContextHandle {
            control: ContextControl {
                control,
                thread: thread.thread().clone(),
            },
            thread,
            pinned,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// The domains of a context.
struct Domains<'a> {
    control: &'a Control,
    domains: Vec<(Box<dyn Domain>, Arc<Meter>)>,
}

impl<'a> Domains<'a> {
    fn new(control: &'a Control) -> Self {
        Domains {
            control,
            domains: Vec::new(),
        }
    }

    fn add(&mut self, domain: Box<dyn Domain>) {
        // For a domain that keeps no counts, the context counts as far as it can.
        let meter = domain.meter().unwrap_or_default();
        lock(&self.control.roster).push(Listed {
            id: domain.id(),
            name: domain.name().to_owned(),
            meter: meter.clone(),
        });
        self.domains.push((domain, meter));
    }

    fn remove(&mut self, at: usize) -> Box<dyn Domain> {
        let (domain, meter) = self.domains.remove(at);
        lock(&self.control.roster).retain(|listed| !Arc::ptr_eq(&listed.meter, &meter));
        domain
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.domains
            .iter()
            .position(|(domain, _)| domain.id() == id)
    }

    /// Fills `set` with the wake sources of the domains.
    fn wake_sources(&mut self, set: &mut WaitSet) {
        set.clear();
        for (domain, _) in &mut self.domains {
            domain.wake_sources(set);
        }
    }

    fn count_sleep(&self) {
        self.domains.iter().for_each(|(_, meter)| meter.parked());
    }

    /// Carries out the messages.
    fn handle(&mut self, messages: Vec<ContextMessage>) {
        for message in messages {
            match message {
                ContextMessage::Add(domain) => self.add(domain),
                ContextMessage::Remove(id, reply) => {
                    let Some(at) = self.find(id) else { continue };
                    if let Err(mpsc::SendError(domain)) = reply.send(self.remove(at)) {
                        self.add(domain); // the caller no longer waits for it
                    }
                }
                ContextMessage::Move(id, to, reply) => {
                    let Some(at) = self.find(id) else { continue };
                    let moved = match to.add(self.remove(at)) {
                        Ok(()) => true,
                        Err(domain) => {
                            self.add(domain);
                            false
                        }
                    };
                    // The caller may have dropped the reply.
                    let _ = reply.send(moved);
                }
                ContextMessage::Order(ids, reply) => {
                    let place = |id| ids.iter().position(|named| *named == id);
                    let place = |id| place(id).unwrap_or(ids.len());
                    self.domains.sort_by_key(|(domain, _)| place(domain.id()));
                    lock(&self.control.roster).sort_by_key(|listed| place(listed.id));
                    let _ = reply.send(());
                }
            }
        }
    }
}

fn run(control: &Control, mut own: Domains<'_>) -> Vec<Box<dyn Domain>> {
    /// However the thread ends, no domain can be added afterwards, and no caller waits for a reply.
    struct Close<'a>(&'a Control);
    impl Drop for Close<'_> {
        fn drop(&mut self) {
            let mut inbox = lock(&self.0.inbox);
            inbox.closed = true;
            inbox
                .messages
                .retain(|message| matches!(message, ContextMessage::Add(_)));
            lock(&self.0.roster).clear();
        }
    }
    let close = Close(control);
    let mut finished = Vec::new();
    let (mut idle, mut spins, mut yielded) = (0, SPIN_MOST / 4, false);
    let (mut set, mut latest) = (WaitSet::on(&control.wake), WaitSet::new());
    loop {
        // After it has registered with all its wake sources, a context looks for work once more,
        // and sleeps if there is still none.
        let last_look = idle >= spins + YIELD_ROUNDS;
        if last_look {
            own.wake_sources(&mut set);
            if set.is_complete() {
                set.prepare();
            }
        }
        // ORDERING: Acquire, pairs with the Release in `ContextControl::stop`.
        if control.stop.load(Ordering::Acquire) {
            break;
        }
        // ORDERING: Acquire, pairs with the Release in `ContextControl::send`; the lock orders the
        // rest.
        let mut worked =
            control.mail.load(Ordering::Relaxed) && control.mail.swap(false, Ordering::Acquire);
        if worked {
            let messages = std::mem::take(&mut lock(&control.inbox).messages);
            own.handle(messages);
        }
        let mut waiting = false;
        let mut next = 0;
        while next < own.domains.len() {
            match own.domains[next].0.run() {
                Turn::Worked => worked = true,
                Turn::Idle => {}
                Turn::Waiting => waiting = true,
                Turn::Finished => {
                    finished.push(own.remove(next));
                    worked = true;
                    continue;
                }
            }
            next += 1;
        }
        if own.domains.is_empty() && !finished.is_empty() {
            let mut inbox = lock(&control.inbox);
            if inbox.messages.is_empty() {
                inbox.closed = true;
                break;
            }
            continue;
        }
        if worked {
            if yielded {
                // The thread that ran during the yield produced work for us, or ran for long:
                // spinning only delayed it.
                spins = (spins / 2).max(SPIN_LEAST);
            } else if idle > 0 && idle < spins {
                spins = (spins * 2).min(SPIN_MOST);
            }
            (idle, yielded) = (0, false);
            set.clear();
        } else if !last_look {
            idle += 1;
            if idle < spins {
                if idle.is_multiple_of(SPIN_ROUND) {
                    thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            } else {
                thread::yield_now();
                yielded = true;
            }
        } else {
            spins = (spins / 2).max(SPIN_LEAST);
            idle = spins; // after sleeping, look once, then sleep again
            yielded = sleep(&mut own, &mut set, &mut latest, waiting);
        }
    }
    drop(set);
    drop(close);
    finished.extend(own.domains.into_iter().map(|(domain, _)| domain));
    let rest = std::mem::take(&mut lock(&control.inbox).messages);
    finished.extend(rest.into_iter().filter_map(|message| match message {
        ContextMessage::Add(domain) => Some(domain),
        _ => None,
    }));
    finished
}

/// Sleeps until a source notifies the context. The caller has prepared `set` before it looked for
/// work in vain. Only yields, and returns true, if a domain waits for a source that does not
/// notify.
fn sleep(own: &mut Domains<'_>, set: &mut WaitSet, latest: &mut WaitSet, waiting: bool) -> bool {
    own.wake_sources(latest);
    if set.covers(latest) {
        own.count_sleep();
        set.wait();
        return false;
    }
    set.clear();
    if let [(only, meter)] = &mut own.domains[..]
        && latest.is_by_itself()
        && !waiting
    {
        meter.parked();
        only.park();
        return false;
    }
    if !latest.is_complete() {
        thread::yield_now();
    }
    true
}

/// The control channel of a [`Context`], which adds, removes and moves domains. Cheap to clone;
/// usable from any thread.
#[derive(Clone)]
pub struct ContextControl {
    control: Arc<Control>,
    thread: thread::Thread,
}

impl ContextControl {
    /// Returns the message if the context has ended.
    fn send(&self, message: ContextMessage) -> Result<(), ContextMessage> {
        {
            let mut inbox = lock(&self.control.inbox);
            if inbox.closed {
                return Err(message);
            }
            inbox.messages.push(message);
            // ORDERING: Release, pairs with the Acquire in `run`.
            self.control.mail.store(true, Ordering::Release);
        }
        self.wake();
        Ok(())
    }

    /// Makes the context stop after its current turn. Does not wait.
    pub fn stop(&self) {
        // ORDERING: Release, pairs with the Acquire in `run`.
        self.control.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the context, whether the context itself or one of its domains sleeps.
    fn wake(&self) {
        self.control.wake.notify_all();
        self.thread.unpark();
    }

    /// Adds a domain to the context.
    ///
    /// # Errors
    /// Returns the domain if the context has ended.
    pub fn add(&self, domain: Box<dyn Domain>) -> Result<(), Box<dyn Domain>> {
        self.send(ContextMessage::Add(domain))
            .map_err(|message| match message {
                ContextMessage::Add(domain) => domain,
                _ => unreachable!("the message that was refused is the one that was sent"),
            })
    }

    /// Removes the first domain with this id, between two of its turns.
    pub fn remove(&self, id: u64) -> Reply<Box<dyn Domain>> {
        let (tell, told) = mpsc::channel();
        // If the context has ended, `tell` is dropped, which ends the reply.
        let _ = self.send(ContextMessage::Remove(id, tell));
        Reply(told)
    }

    /// Moves the first domain with this id to another context, between two of its turns. The reply
    /// is false if that context has ended; the domain then stays.
    pub fn move_to(&self, id: u64, to: &ContextControl) -> Reply<bool> {
        let (tell, told) = mpsc::channel();
        let _ = self.send(ContextMessage::Move(id, to.clone(), tell));
        Reply(told)
    }

    /// Sets the order in which each round runs the domains: as their ids are listed here, and the
    /// others after them, in the order of now. At first it is the order in which they were added.
    pub fn order(&self, ids: &[u64]) -> Reply<()> {
        let (tell, told) = mpsc::channel();
        let _ = self.send(ContextMessage::Order(ids.to_vec(), tell));
        Reply(told)
    }

    /// The counts of the context's domains, in the order in which they run.
    pub fn stats(&self) -> Vec<DomainStats> {
        lock(&self.control.roster)
            .iter()
            .map(|listed| listed.meter.stats(listed.id, &*listed.name))
            .collect()
    }

    /// The thread, to wake it up.
    pub fn thread(&self) -> &thread::Thread {
        &self.thread
    }
}

impl fmt::Debug for ContextControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextControl")
            .field("name", &self.thread.name())
            .finish()
    }
}

/// A future reply of a [`Context`].
#[derive(Debug)]
pub struct Reply<T>(mpsc::Receiver<T>);

impl<T> Reply<T> {
    /// Waits for the reply. `None` if the context has no such domain, or has ended. A domain must
    /// not call this, since it would wait for itself.
    pub fn wait(self) -> Option<T> {
        self.0.recv().ok()
    }

    /// The reply, if it has arrived. Does not wait.
    pub fn poll(&self) -> Option<T> {
        self.0.try_recv().ok()
    }
}

/// The owner's handle to a [`Context`]. If it is dropped, the context continues to run.
pub struct ContextHandle {
    control: ContextControl,
    thread: thread::JoinHandle<Vec<Box<dyn Domain>>>,
    pinned: bool,
}

impl ContextHandle {
    /// Whether the thread is pinned to the requested core. False if none was requested.
    pub fn pinned(&self) -> bool {
        self.pinned
    }

    /// The control channel.
    pub fn control(&self) -> ContextControl {
        self.control.clone()
    }

    /// Makes the context stop after its current turn. Does not wait.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Waits for the thread to end. Call [`stop`](Self::stop) first unless its domains finish
    /// without that.
    ///
    /// Returns the domains, finished ones first.
    ///
    /// # Errors
    /// The payload of the panic, if a domain panicked. All domains of the context were then
    /// dropped while unwinding, and their subscriptions have left.
    pub fn join(self) -> thread::Result<Vec<Box<dyn Domain>>> {
        self.thread.join()
    }

    /// Adds a domain to the context.
    ///
    /// # Errors
    /// Returns the domain if the context has ended.
    pub fn add(&self, domain: Box<dyn Domain>) -> Result<(), Box<dyn Domain>> {
        self.control.add(domain)
    }

    /// Removes the first domain with this id, between two of its turns.
    pub fn remove(&self, id: u64) -> Reply<Box<dyn Domain>> {
        self.control.remove(id)
    }

    /// Moves the first domain with this id to another context; see [`ContextControl::move_to`].
    pub fn move_to(&self, id: u64, to: &ContextControl) -> Reply<bool> {
        self.control.move_to(id, to)
    }

    /// The counts of the context's domains.
    pub fn stats(&self) -> Vec<DomainStats> {
        self.control.stats()
    }

    /// The thread, to wake it up.
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

/// The owner's handle to a domain with state `S` and to the context that
/// [`Replica::spawn`](crate::Replica::spawn) or [`Service::spawn`](crate::Service::spawn) started
/// for it. If it is dropped, the context continues to run.
pub struct DomainHandle<S> {
    context: ContextHandle,
    /// The domain's meter, which identifies the domain.
    meter: Arc<Meter>,
    state: PhantomData<fn() -> S>,
}

impl<S: 'static> DomainHandle<S> {
    pub(crate) fn spawn(
        domain: Box<dyn Domain>,
        meter: Arc<Meter>,
        core: Option<usize>,
    ) -> io::Result<Self> {
        let name = domain.name().to_owned();
        Ok(DomainHandle {
            context: Context::spawn(&name, core, vec![domain])?,
            meter,
            state: PhantomData,
        })
    }

    /// The context in which the domain runs.
    pub fn context(&self) -> &ContextHandle {
        &self.context
    }

    /// Makes the context stop after its current turn. Does not wait.
    pub fn stop(&self) {
        self.context.stop();
    }

    /// Waits for the context to end, and returns the domain's final state. Call
    /// [`stop`](Self::stop) first unless the domain finishes without that.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] if a domain of the context panicked, [`JoinError::Elsewhere`] if
    /// this domain was removed from the context or moved to another.
    pub fn join(self) -> Result<S, JoinError> {
        let domains = self.context.join().map_err(JoinError::Panicked)?;
        let domain = domains.into_iter().find(|domain| {
            let meter = domain.meter();
            meter.is_some_and(|meter| Arc::ptr_eq(&meter, &self.meter))
        });
        let state = domain.and_then(Domain::into_state);
        let state = state.and_then(|state| state.downcast().ok());
        state.map(|state| *state).ok_or(JoinError::Elsewhere)
    }
}

impl<S> fmt::Debug for DomainHandle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainHandle")
            .field("context", &self.context)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{NoBatch, Park, Replica, SpinYield, Wait, channel};
    use std::{any::Any, time::Duration};

    struct ContextCounter {
        left: u32,
    }

    impl Domain for ContextCounter {
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
                Box::new(ContextCounter { left: 10 }),
                Box::new(ContextCounter { left: 3 }),
            ],
        );
        let domains = context.unwrap().join().unwrap();
        assert_eq!(domains.len(), 2);
        let first: Box<dyn Any> = domains.into_iter().next().unwrap();
        assert_eq!(first.downcast::<ContextCounter>().unwrap().left, 0);
    }

    /// A replica that adds up entries, whose type cannot be named.
    fn summing<W: Wait>(log: &crate::Log<u32, W>) -> DomainHandle<u64> {
        let add = |sum: &mut u64, _, n: &u32| *sum += u64::from(*n);
        let replica = Replica::new("sum", 0, log.subscribe().unwrap(), add);
        replica.spawn(None).unwrap()
    }

    #[test]
    fn a_replica_with_a_closure_gives_its_state_back() {
        let (mut publisher, log) = channel::<u32, Park>(4);
        let handles = [summing(&log), summing(&log)];
        assert_eq!(handles[0].context().thread().name(), Some("sum"));
        publisher.publish_all([1, 2, 3]).unwrap();
        drop(publisher);
        for handle in handles {
            assert_eq!(handle.join().unwrap(), 6);
        }
    }

    #[test]
    fn a_handle_finds_its_own_domain_among_others_of_its_type() {
        let (mut publisher, log) = channel::<u32, Park>(4);
        let (mut other, other_log) = channel::<u32, Park>(4);
        let mut service = crate::Service::new(0, "service", 0u64);
        let add = |sum: &mut u64, _, n: &u32| *sum += u64::from(*n);
        service.subscribe(0, log.subscribe().unwrap(), add);
        let handle = service.spawn(None).unwrap();
        handle.context().add(adder(0, &other_log)).unwrap();
        let domains = |n| {
            while handle.context().stats().len() != n {
                thread::yield_now();
            }
        };
        domains(2);
        other.publish(40).unwrap();
        drop(other); // the other domain finishes first
        domains(1);
        publisher.publish(2).unwrap();
        drop(publisher);
        assert_eq!(handle.join().unwrap(), 2);
    }

    #[test]
    fn a_handle_says_why_there_is_no_state() {
        let (mut publisher, log) = channel::<u32, Park>(4);
        let moved = summing(&log);
        assert!(moved.context().remove(0).wait().is_some());
        moved.stop();
        assert!(matches!(moved.join(), Err(JoinError::Elsewhere)));
        let bad = |_: &mut u64, _, _: &u32| panic!("no good");
        let bad = Replica::new("bad", 0u64, log.subscribe().unwrap(), bad);
        let handle = bad.spawn(None).unwrap();
        publisher.publish(1).unwrap();
        let error = handle.join().unwrap_err();
        assert_eq!(
            error.to_string(),
            "a domain of the context panicked: no good"
        );
    }

    #[test]
    fn a_replica_that_is_stopped_gives_the_state_back_that_it_has() {
        let (mut publisher, log) = channel::<u32, Park>(4);
        let handle = summing(&log);
        publisher.publish(5).unwrap();
        while handle.context().stats()[0].handled == 0 {
            thread::yield_now();
        }
        handle.stop();
        assert_eq!(handle.join().unwrap(), 5);
        assert!(!publisher.is_closed());
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
        context.add(Box::new(ContextCounter { left: 5 })).unwrap();
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

    /// A domain with an id that adds up entries.
    fn adder<W: Wait>(id: u64, log: &crate::Log<u32, W>) -> Box<dyn Domain> {
        let add = |sum: &mut u64, _, n: &u32| *sum += u64::from(*n);
        Box::new(Replica::new("adder", 0u64, log.subscribe().unwrap(), add).with_id(id))
    }

    fn handled(control: &ContextControl, id: u64) -> Option<u64> {
        let all = control.stats();
        all.iter()
            .find(|domain| domain.id == id)
            .map(|domain| domain.handled)
    }

    #[test]
    fn a_domain_moves_between_running_contexts_and_misses_nothing() {
        let (mut publisher, log) = channel::<u32, SpinYield>(8);
        let (one, two) = (
            Context::spawn("one", None, vec![adder(1, &log), adder(2, &log)]).unwrap(),
            Context::spawn("two", None, Vec::new()).unwrap(),
        );
        for round in 0..20u32 {
            for n in 0..10 {
                publisher.publish(n).unwrap();
            }
            let (from, to) = if round % 2 == 0 {
                (&one, &two)
            } else {
                (&two, &one)
            };
            assert_eq!(from.move_to(1, &to.control()).wait(), Some(true));
        }
        assert_eq!(
            two.move_to(1, &one.control()).wait(),
            None,
            "it is back at the first"
        );
        drop(publisher);
        while handled(&one.control(), 1).is_some_and(|n| n < 200) {
            thread::yield_now();
        }
        two.stop();
        assert_eq!(two.join().unwrap().len(), 0);
        let domains = one.join().unwrap();
        assert_eq!(domains.len(), 2);
        for domain in domains {
            assert_eq!(domain.meter().unwrap().stats(0, "").handled, 200);
        }
    }

    #[test]
    fn domains_run_in_the_order_that_is_asked_for() {
        struct Noting(u64, std::sync::mpsc::Sender<u64>);
        impl Domain for Noting {
            fn run(&mut self) -> Turn {
                let _ = self.1.send(self.0);
                Turn::Idle
            }
            fn id(&self) -> u64 {
                self.0
            }
        }
        let (tell, told) = std::sync::mpsc::channel();
        let noting = |id| -> Box<dyn Domain> { Box::new(Noting(id, tell.clone())) };
        let context = Context::spawn("ordered", None, [1, 2, 3].map(noting).into()).unwrap();
        let control = context.control();
        let ids = || -> Vec<u64> { control.stats().iter().map(|domain| domain.id).collect() };
        assert_eq!(control.order(&[3, 9, 1]).wait(), Some(()));
        assert_eq!(ids(), [3, 1, 2]);
        context.stop();
        context.join().unwrap();
        assert_eq!(control.order(&[]).wait(), None, "it has ended");
        drop(tell);
        let ran: Vec<u64> = told.iter().collect();
        let rounds = ran.chunks(3);
        assert!(
            rounds
                .clone()
                .all(|round| round == [1, 2, 3] || round == [3, 1, 2])
        );
        assert!(rounds.last() != Some(&[1, 2, 3]), "{ran:?}");
    }

    #[test]
    fn a_removed_domain_is_given_back_and_can_run_elsewhere() {
        let (mut publisher, log) = channel::<u32, SpinYield>(64);
        let context = Context::spawn("t", None, vec![adder(7, &log)]).unwrap();
        publisher.publish_all(0..10).unwrap();
        while handled(&context.control(), 7) != Some(10) {
            thread::yield_now();
        }
        let mut domain = context.remove(7).wait().unwrap();
        assert!(context.stats().is_empty());
        assert!(context.remove(7).wait().is_none());
        publisher.publish_all(0..5).unwrap();
        assert_eq!(domain.run(), Turn::Worked);
        assert_eq!(domain.meter().unwrap().stats(7, "").handled, 15);
        context.stop();
        assert_eq!(context.join().unwrap().len(), 0);
    }

    #[test]
    fn moving_to_a_context_that_has_ended_leaves_the_domain_where_it_is() {
        let (_publisher, log) = channel::<u32, SpinYield>(8);
        let gone = Context::spawn("gone", None, Vec::new()).unwrap();
        let control = gone.control();
        gone.stop();
        gone.join().unwrap();
        let context = Context::spawn("t", None, vec![adder(7, &log)]).unwrap();
        assert_eq!(context.move_to(7, &control).wait(), Some(false));
        assert_eq!(handled(&context.control(), 7), Some(0));
        context.stop();
        assert_eq!(context.join().unwrap().len(), 1);
        assert!(control.remove(7).wait().is_none());
    }

    #[test]
    fn a_context_that_sleeps_on_two_channels_takes_domains_in_and_stops() {
        let (_publisher, log) = channel::<u32, Park>(8);
        let (_other, other) = channel::<u32, Park>(8);
        let context = Context::spawn("t", None, vec![adder(1, &log)]).unwrap();
        let all_sleep = |domains| {
            while context.stats().len() < domains
                || context.stats().iter().any(|domain| domain.parks == 0)
            {
                thread::yield_now();
            }
        };
        all_sleep(1);
        context.add(adder(2, &other)).unwrap();
        all_sleep(2);
        context.stop();
        assert_eq!(context.join().unwrap().len(), 2);
    }
}
