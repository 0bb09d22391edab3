//! What applications, pumps and primaries share, in every variant: streams, transmit slots, queues.
//!
//! Nothing here is protocol state. The queues are the few places where several threads meet; none of them is
//! on the path of a data frame.

use core::net::SocketAddrV4;
#[cfg(feature = "testkit")]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_queue::{ArrayQueue, SegQueue};
use dominoes_drivers::{DeviceError, Frame, Waker};

use crate::config::Limits;
use crate::digest::{ConnId, Flow, Shard};
use crate::effect::Effect;
use crate::engine::balance::Load;
use crate::engine::demux::Moved;
use crate::engine::pump::moves::{Note, Told};
use crate::engine::queues::{Bindings, Queues};
#[cfg(feature = "testkit")]
use crate::engine::replica::Replica;
use crate::engine::stream::{Asked, Handle, StreamRef, StreamTable, Streams};
use crate::engine::tx::TxRing;
use crate::engine::view::View;
use crate::ip::route::Site;
use crate::keys::{Domain, Keys};
use crate::stats::StackStats;

/// What an application wants from the protocol, besides moving its cursors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Open {
        ticket: u64,
        remote: SocketAddrV4,
    },
    Listen {
        port: u16,
        backlog: u16,
    },
    Accepted {
        port: u16,
        accepted: u64,
    },
    Unlisten {
        port: u16,
    },
    Bind {
        socket: ConnId,
        port: u16,
    },
    Connect {
        socket: ConnId,
        remote: Option<SocketAddrV4>,
    },
    Unbind {
        socket: ConnId,
    },
}

/// News for the pump about which connection a flow is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HintNews {
    pub(crate) conn: ConnId,
    pub(crate) flow: Flow,
    pub(crate) open: bool,
}

/// How an open ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Opened { stream: Handle, flow: Flow },
    NoRoom,
    Unreachable,
}

/// The queue of a listening port.
#[derive(Debug, Default)]
pub(crate) struct AcceptQueue {
    pub(crate) ready: VecDeque<Ready>,
    /// How many of each group were accepted.
    pub(crate) accepted: Vec<u64>,
}

/// A connection that waits to be accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The group that it came to.
    pub(crate) group: u16,
    pub(crate) stream: Handle,
    pub(crate) remote: SocketAddrV4,
}

#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) answers: HashMap<u64, Option<Answer>>,
    pub(crate) listeners: HashMap<u16, AcceptQueue>,
    /// Who has which UDP port.
    pub(crate) bindings: Bindings,
    /// What the device last complained of.
    pub(crate) device_error: Option<DeviceError>,
    next_ticket: u64,
}

/// What all groups of a stack have in common.
#[derive(Default)]
pub(crate) struct Front {
    desk: Mutex<Desk>,
    /// Where those wait who want something at the desk.
    pub(crate) bell: Condvar,
    /// Where each group is told that one of its connections has news; empty if there is only one.
    doors: Box<[OnceLock<Arc<Door>>]>,
    /// How busy each group is.
    pub(crate) loads: Box<[Load]>,
    /// Connections that do not live where the hash of their flow says.
    pub(crate) moved: Moved,
    /// The streams of all groups, and what all groups must have alike.
    row: OnceLock<(Alike, StreamTable)>,
}

/// What a stream must find in whichever group it comes to: connections, octets of both rings, delivery slots.
type Alike = [usize; 4];

/// Where a group's receive pump learns of news.
pub(crate) struct Door {
    /// Connections whose flag is raised; each at most once.
    pub(crate) dirty: ArrayQueue<ConnId>,
    /// What other groups have to say.
    pub(crate) notes: SegQueue<Note>,
    /// The same, if there is no room: connections that have moved may have left an entry behind.
    pub(crate) late: SegQueue<ConnId>,
    waker: Waker,
    /// Whether somebody sleeps in the device and must be woken for news.
    asleep: AtomicBool,
}

impl Door {
    /// The application of `conn` has news.
    fn tell(&self, conn: ConnId) {
        if self.dirty.push(conn).is_err() {
            self.late.push(conn);
        }
        self.ring();
    }

    /// Tells the pump that there is something in a queue.
    pub(crate) fn ring(&self) {
        // ORDERING: the fence pairs with the one in `before_sleep`: either the sleeper sees the queue's new
        // entry, or we see that it sleeps.
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.waker.wake();
        }
    }
}

fn alike(limits: &Limits, slots: usize) -> Alike {
    let rings = [limits.receive_buffer, limits.send_buffer].map(|len| len as usize);
    [limits.connections as usize, rings[0], rings[1], slots]
}

impl core::fmt::Debug for Front {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

impl Front {
    /// For so many groups.
    pub(crate) fn of(groups: u16) -> Self {
        Front {
            doors: (0..groups).map(|_| OnceLock::new()).collect(),
            loads: (0..groups).map(|_| Load::default()).collect(),
            ..Front::default()
        }
    }

    /// The streams of `groups` groups, and what all of them have alike.
    fn row_for(&self, limits: &Limits, groups: u16, slots: usize) -> &(Alike, StreamTable) {
        self.row
            .get_or_init(|| (alike(limits, slots), StreamTable::new(limits, groups)))
    }

    /// Whether a group with these bounds and so many delivery slots is like those that there are.
    pub(crate) fn fits(&self, limits: &Limits, groups: u16, slots: usize) -> bool {
        self.row_for(limits, groups, slots).0 == alike(limits, slots)
    }

    /// The door of a group, once it is there.
    pub(crate) fn door(&self, group: u16) -> Option<&Arc<Door>> {
        self.doors.get(usize::from(group))?.get()
    }

    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    /// Another number each time.
    pub(crate) fn ticket_number(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    pub(crate) fn ticket(&mut self) -> u64 {
        let ticket = self.ticket_number();
        self.answers.insert(ticket, None);
        ticket
    }
}

/// Shared by everything that belongs to one stack.
pub(crate) struct World {
    pub(crate) limits: Limits,
    pub(crate) mac: [u8; 6],
    pub(crate) address: Ipv4Addr,
    pub(crate) site: Site,
    /// What ports are chosen by, and a random number of this start of the stack for that.
    pub(crate) keys: Keys,
    pub(crate) salt: u64,
    /// Whether the device finishes partial checksums.
    pub(crate) tx_checksum: bool,
    pub(crate) streams: Streams,
    /// The rings of UDP sockets.
    pub(crate) queues: Queues,
    pub(crate) tx: Arc<TxRing>,
    /// What applications asked for; drained by the pump.
    pub(crate) commands: SegQueue<Command>,
    /// Where it is told that an application has news.
    pub(crate) door: Arc<Door>,
    /// Drained by the pump.
    pub(crate) hints: SegQueue<HintNews>,
    /// Closed connections whose work may not all be done; drained by the pump.
    pub(crate) retired: SegQueue<ConnId>,
    /// What became of connections that leave and come; drained by the pump.
    pub(crate) told: SegQueue<Told>,
    /// Frames that are done with, of workers that sleep; drained by the pump.
    pub(crate) returned: SegQueue<Frame>,
    /// Whole frames outside the log: ARP and echo replies.
    pub(crate) control: ArrayQueue<Vec<u8>>,
    /// Opening, listening and accepting: rare, and never on the path of a frame.
    pub(crate) front: Arc<Front>,
    /// Which of the stack's groups this is.
    pub(crate) group: u16,
    /// Counters for whoever asks; whoever posts them waits for nobody.
    posted: Mutex<StackStats>,
    /// Panics that a replica caught and no test planted, as far as replicas have ended.
    #[cfg(feature = "testkit")]
    panics: AtomicU64,
    /// Connections for whoever asks.
    pub(crate) view: View,
    pub(crate) down: AtomicBool,
    /// The device took no frame when it was last offered some: it is down or gone.
    refuses: AtomicBool,
    /// Nothing begins any more.
    closing: AtomicBool,
}

/// Applications to be woken: once for all news that performing brings them, when this is dropped.
///
/// Waking asks for a fence, which waits for all stores before it; payload may be among them.
pub(crate) struct Wakes<'a> {
    world: &'a World,
    /// [`ConnId::NONE`] while there is none.
    conn: ConnId,
    socket: Option<ConnId>,
}

impl<'a> Wakes<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Wakes {
            world,
            conn: ConnId::NONE,
            socket: None,
        }
    }

    /// There is news of deliveries or of room for the application of `conn`.
    #[inline]
    pub(crate) fn add(&mut self, conn: ConnId) {
        if self.conn != conn {
            self.wake();
            self.conn = conn;
        }
    }

    /// There is news of datagrams or of room for a UDP socket's application.
    #[inline]
    pub(crate) fn add_socket(&mut self, socket: ConnId) {
        if self.socket != Some(socket) {
            self.wake_socket();
            self.socket = Some(socket);
        }
    }

    /// An effect was told that may be news of room.
    #[inline]
    pub(crate) fn after(&mut self, effect: &Effect) {
        match effect {
            Effect::Release { conn, .. } => self.add(*conn),
            Effect::Sent { socket, .. } => self.add_socket(*socket),
            _ => {}
        }
    }

    fn wake_socket(&mut self) {
        let socket = self.socket.take();
        if let Some(queue) = socket.and_then(|socket| self.world.queues.streams.get(socket)) {
            queue.waiting().notify_all();
        }
    }

    fn wake(&mut self) {
        let conn = core::mem::replace(&mut self.conn, ConnId::NONE);
        if let Some(stream) = self.world.streams.get(conn) {
            stream.waiting().notify_all();
        }
    }
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        self.wake();
        self.wake_socket();
    }
}

impl World {
    /// A number for the `count`th port that is chosen, hard to guess for whoever knows all others, and the secret, too.
    pub(crate) fn random_port(&self, domain: Domain, count: u64) -> u64 {
        self.keys.of(domain, [self.salt, count])
    }

    pub(crate) fn new(
        limits: Limits,
        (mac, tx_checksum): ([u8; 6], bool),
        site: Site,
        delivery_slots: usize,
        tx: Arc<TxRing>,
        waker: Waker,
        (front, shard): (Arc<Front>, Shard),
    ) -> World {
        let address = site.address;
        let group = shard.index;
        let (_, row) = front.row_for(&limits, shard.of, delivery_slots);
        let row = row.clone();
        let door = Arc::new(Door {
            dirty: ArrayQueue::new(2 * limits.connections as usize),
            notes: SegQueue::new(),
            late: SegQueue::new(),
            waker,
            asleep: AtomicBool::new(false),
        });
        if let Some(place) = front.doors.get(usize::from(group)) {
            let _ = place.set(Arc::clone(&door));
        }
        World {
            limits,
            mac,
            address,
            site,
            keys: Keys::default(),
            salt: 0,
            tx_checksum,
            streams: Streams::of_group(&limits, delivery_slots, address, row, group),
            queues: Queues::new(&limits, delivery_slots, address),
            tx,
            commands: SegQueue::new(),
            door,
            hints: SegQueue::new(),
            retired: SegQueue::new(),
            told: SegQueue::new(),
            returned: SegQueue::new(),
            control: ArrayQueue::new(64),
            front,
            group,
            posted: Mutex::default(),
            #[cfg(feature = "testkit")]
            panics: AtomicU64::new(0),
            view: View::default(),
            down: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.front.desk()
    }

    /// Tells the pump that there is something in a queue.
    pub(crate) fn ring(&self) {
        self.door.ring();
    }

    /// Leaves frames for the pump to give back.
    pub(crate) fn give_back(&self, frames: &mut Vec<Frame>) {
        frames.drain(..).for_each(|frame| self.returned.push(frame));
        self.ring();
    }

    /// The caller is about to sleep in the device and will look at every queue once more.
    pub(crate) fn before_sleep(&self) {
        self.door.asleep.store(true, Ordering::Relaxed);
        // ORDERING: the fence pairs with the one in `Door::ring`.
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(crate) fn after_sleep(&self) {
        self.door.asleep.store(false, Ordering::Relaxed);
    }

    /// What became of a connection that leaves or comes.
    pub(crate) fn tell(&self, told: Told) {
        self.told.push(told);
        self.ring();
    }

    /// Asks the group that has it to let a connection go to group `to`.
    #[cfg(feature = "migration")]
    pub(crate) fn move_to(&self, stream: &StreamRef<'_>, flow: Flow, to: u16) {
        let (group, conn) = stream.home();
        if let Some(door) = self.front.door(group) {
            door.notes.push(Note::Go { conn, flow, to });
            door.ring();
        }
    }

    pub(crate) fn command(&self, command: Command) {
        self.commands.push(command);
        self.ring();
    }

    /// Raises the flag of a connection whose application moved a cursor or asked for something.
    pub(crate) fn raise(&self, stream: &StreamRef<'_>) {
        if stream.raise() {
            let (group, conn) = stream.home();
            if group == self.group {
                self.door.tell(conn);
            } else if let Some(door) = self.front.door(group) {
                door.tell(conn);
            }
        }
    }

    /// As [`World::raise`], for a UDP socket that sent something.
    pub(crate) fn raise_socket(&self, stream: &StreamRef<'_>) {
        if stream.raise() {
            let _ = self.queues.dirty.push(stream.conn());
            self.ring();
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `shut_down`.
        self.down.load(Ordering::Acquire)
    }

    /// Whether the stack goes away, so that nothing new may begin.
    pub(crate) fn is_closing(&self) -> bool {
        // ORDERING: Relaxed: who begins something at this moment comes in time or too late.
        self.closing.load(Ordering::Relaxed) || self.is_down()
    }

    /// The stack will go away.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// The stack goes away: every blocked call returns with an error.
    pub(crate) fn shut_down(&self) {
        // ORDERING: Release, pairs with the Acquire in `is_down`.
        self.down.store(true, Ordering::Release);
        drop(self.desk());
        self.front.bell.notify_all();
        self.streams.wake_all();
        self.queues.streams.wake_all();
        self.door.waker.wake();
    }

    pub(crate) fn answer(&self, ticket: u64, answer: Answer) {
        let mut desk = self.desk();
        if let Some(place) = desk.answers.get_mut(&ticket) {
            *place = Some(answer);
            drop(desk);
            self.front.bell.notify_all();
        } else if let Answer::Opened { stream, .. } = answer {
            drop(desk);
            self.abandon(stream);
        }
    }

    /// Nobody will ever hold this connection: it is aborted, and its place free when that is done.
    pub(crate) fn abandon(&self, stream: Handle) {
        if let Some(stream) = self.streams.held(stream) {
            stream.ask(Asked {
                orphan: true,
                abort: true,
                ..Asked::default()
            });
            self.raise(&stream);
        }
    }

    /// Posts counters, unless somebody reads them at this moment.
    pub(crate) fn post(&self, post: impl FnOnce(&mut StackStats)) {
        if let Ok(mut posted) = self.posted.try_lock() {
            post(&mut posted);
        }
    }

    /// A replica of this stack ends.
    ///
    /// # Panics
    /// If it caught a panic that no test planted, unless its thread unwinds already.
    #[cfg(feature = "testkit")]
    pub(crate) fn assert_no_panics(&self, replica: &Replica) {
        let panics = replica.unplanned_panics();
        self.panics.fetch_max(panics, Ordering::Relaxed);
        if !std::thread::panicking() {
            assert_eq!(panics, 0, "panics were caught");
        }
    }

    /// How many panics a replica caught that no test planted, of those replicas that have ended.
    #[cfg(feature = "testkit")]
    pub(crate) fn unplanned_panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Counters as they were last posted.
    pub(crate) fn stats(&self) -> StackStats {
        *self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn device_failed(&self, error: DeviceError) {
        self.desk().device_error = Some(error);
    }

    /// The device took the frames that it was offered, or refused them with an error.
    pub(crate) fn note_refusal(&self, refuses: bool) {
        // ORDERING: Relaxed, a hint that says when to look again.
        if self.refuses.load(Ordering::Relaxed) != refuses {
            self.refuses.store(refuses, Ordering::Relaxed);
        }
    }

    /// Whether what is to be sent waits for a device that is down or gone.
    pub(crate) fn is_refused(&self) -> bool {
        // ORDERING: as above.
        self.refuses.load(Ordering::Relaxed)
    }

    /// Whether somebody could be waiting for the pump to look at a queue, or for a look at the state.
    pub(crate) fn has_news(&self) -> bool {
        !self.commands.is_empty()
            || !self.door.dirty.is_empty()
            || !self.door.late.is_empty()
            || !self.door.notes.is_empty()
            || !self.told.is_empty()
            || !self.retired.is_empty()
            || !self.queues.dirty.is_empty()
            || !self.queues.unbound.is_empty()
            || !self.control.is_empty() && !self.is_refused()
            || self.view.is_asked()
            || !self.returned.is_empty()
    }
}
