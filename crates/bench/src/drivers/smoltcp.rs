//! smoltcp over the same device and the same peer: a good single-core stack without a log.
//!
//! It is given what makes it fast: frames are claimed and handed over by 32, as our pumps do;
//! nothing is allocated per frame; the rings hold whole segments, so that none is cut at the end of
//! a ring; windows are scaled. Its receive buffer is consumed in place, and its send buffer is
//! sent again as it is. It copies as we do, once: from the frame into the receive buffer, from the
//! send buffer into a transmit slot, of which there are as many as ours.
//!
//! Acknowledgments are much of the work. smoltcp makes them after all that its device has was taken
//! in: here that is one for 32 segments, as we do. There is a second row which is polled every 8
//! frames, and so acknowledges once for 8, as we do when no more are there at a time. RFC 9293
//! section 3.8.6.3 wants one for every second.

use std::cell::Cell;

use dominoes_drivers::memory::peer::headers::{self, Ends};
use dominoes_drivers::memory::peer::{PeerDevice, PeerHandle, PeerRx, PeerTx};
use dominoes_drivers::{DeviceRx, DeviceTx, Frame, TxChecksum, TxFrame, TxMeta};
use dominoes_netstack::framed::MAX_PAYLOAD;
use dominoes_netstack::time::Instant;
use smoltcp::iface::{
    Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet,
};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};

use crate::drivers::app::{self, Expected, differences};
#[cfg(feature = "tls")]
use crate::drivers::tls;
use crate::drivers::{Direction, Driver, Row};
use crate::inline::Units;
use crate::peer;
use crate::workload::Workload;

/// Frames that are handed over at once.
const BATCH: usize = 32;
/// Bytes of a transmit slot.
const SLOT: usize = 1600;
/// Where the TCP header of a frame begins.
const TCP_START: u16 = 34;

thread_local! {
    /// The clock that timestamps are taken from, in milliseconds.
    static CLOCK: Cell<u32> = const { Cell::new(0) };
}

/// Our device as smoltcp sees one.
struct Port {
    rx: Incoming,
    tx: Outgoing,
    checksum: bool,
}

struct Incoming {
    device: PeerRx,
    frames: Vec<Frame>,
    next: usize,
    /// How many are claimed at once.
    batch: usize,
}

struct Outgoing {
    device: PeerTx,
    slots: Vec<u8>,
    /// First slot that was not handed over.
    first: usize,
    /// Lengths of the frames in the slots from there on.
    lens: Vec<usize>,
    meta: TxMeta,
}

impl Incoming {
    /// Gives used frames back and claims more. Returns how many.
    fn claim(&mut self) -> usize {
        self.device.release(&mut self.frames);
        self.next = 0;
        // A simulated device cannot be down.
        self.device.claim(self.batch, &mut self.frames).unwrap_or(0)
    }
}

impl Outgoing {
    fn hand_over(&mut self) {
        let mut frames = [TxFrame::new(&[]); BATCH];
        let count = self.lens.len();
        let all = self.slots.len() / SLOT;
        for (i, (frame, len)) in frames.iter_mut().zip(&self.lens).enumerate() {
            let slot = (self.first + i) % all;
            *frame = TxFrame {
                head: &self.slots[slot * SLOT..][..*len],
                payload: &[],
                meta: self.meta,
            };
        }
        // It takes all; see `PeerTx::transmit`.
        let _ = self.device.transmit(&frames[..count]);
        self.first = (self.first + count) % all;
        self.lens.clear();
    }
}

struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

struct TxToken<'a>(&'a mut Outgoing);

impl phy::TxToken for TxToken<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let tx = self.0;
        let slot = (tx.first + tx.lens.len()) % (tx.slots.len() / SLOT);
        let frame = &mut tx.slots[slot * SLOT..][..len];
        let result = f(frame);
        // The peer knows no ARP.
        if frame[12..14] != ARP {
            tx.lens.push(len);
            if tx.lens.len() == BATCH {
                tx.hand_over();
            }
        }
        result
    }
}

impl phy::Device for Port {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    #[inline]
    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let frame = self.rx.frames.get(self.rx.next)?;
        self.rx.next += 1;
        Some((RxToken(frame.bytes()), TxToken(&mut self.tx)))
    }

    #[inline]
    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<TxToken<'_>> {
        Some(TxToken(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 1514;
        if !self.checksum {
            caps.checksum.tcp = Checksum::None;
        }
        caps
    }
}

/// EtherType of ARP (RFC 826).
const ARP: [u8; 2] = [0x08, 0x06];

struct SmoltcpDriver {
    port: Port,
    interface: Interface,
    sockets: SocketSet<'static>,
    ends: Vec<End>,
    direction: Direction,
    peer: PeerHandle,
    workload: Workload,
    /// The expected payload, while bytes are compared.
    payload: Option<Expected>,
    cipher: Option<Cipher>,
    #[cfg(feature = "tls")]
    tls: Option<tls::OverSmoltcp>,
    /// What went wrong with TLS.
    failed: Option<String>,
}

/// One connection.
struct End {
    handle: SocketHandle,
    read: u64,
    wrong: u64,
    /// The first bytes of the send buffer; empty once they are there.
    first: Vec<u8>,
    /// Bytes that were enciphered.
    sent: u64,
}

/// The application's part where payload is enciphered: smoltcp has no place for that, so it is a
/// separate pass, between the socket's buffers and the application's.
struct Cipher {
    units: Units,
    /// The text of a unit.
    text: Vec<u8>,
}

impl Cipher {
    /// Deciphers whole units of `bytes`, which begin at `offset`, and compares them with `payload`.
    /// Returns how many bytes that were, and how many were wrong.
    fn receive(&mut self, offset: u64, bytes: &[u8], payload: Option<&Expected>) -> (usize, u64) {
        let (mut at, mut wrong) = (0, 0);
        for unit in bytes.chunks_exact(self.units.len) {
            let processor = &self.units.processor;
            match processor.receive(offset + at as u64, unit, &mut self.text) {
                Err(_) => wrong += unit.len() as u64,
                Ok(len) => {
                    let differ = |payload| differences(0, &self.text[..len], payload);
                    wrong += payload.map_or(0, differ);
                }
            }
            at += unit.len();
        }
        (at, wrong)
    }

    /// Enciphers as many whole units as there is room for, the first of which begins at `offset`.
    /// Returns how many bytes that were.
    fn send(&self, offset: u64, room: &mut [u8]) -> usize {
        let whole = room.len() / self.units.len * self.units.len;
        self.units.sent(offset, &mut room[..whole]);
        whole
    }
}

/// smoltcp on one core, which takes in `batch` frames before it sends.
pub(crate) fn row(
    name: &'static str,
    direction: Direction,
    workload: &Workload,
    batch: usize,
) -> Result<Row, String> {
    let (device, peer) = peer::with_period(app::role(direction), workload, ring(workload))?;
    let driver = driver(direction, workload, batch, device, peer)?;
    Ok(Row::new(name, vec![Box::new(driver)]))
}

/// smoltcp on one core, with TLS above it.
#[cfg(feature = "tls")]
pub(crate) fn tls_row(
    name: &'static str,
    direction: Direction,
    workload: &Workload,
    mut tls: tls::OverSmoltcp,
) -> Result<Row, String> {
    let payload = core::mem::take(&mut tls.payload);
    let (device, peer) = peer::with_payload(app::role(direction), workload, payload)?;
    let mut driver = driver(direction, workload, BATCH, device, peer)?;
    driver.tls = Some(tls);
    Ok(Row::new(name, vec![Box::new(driver)]))
}

/// Bytes of each ring: whole segments, and whole units.
fn ring(workload: &Workload) -> usize {
    let whole = workload.whole().max(workload.segment_bytes);
    workload.ring_bytes as usize / whole * whole
}

fn driver(
    direction: Direction,
    workload: &Workload,
    batch: usize,
    device: PeerDevice,
    peer: PeerHandle,
) -> Result<SmoltcpDriver, String> {
    let ring = ring(workload);
    let (rx, tx) = device.into_halves();
    let mut meta = TxMeta::default();
    if !workload.checksum {
        meta.checksum = TxChecksum::Partial {
            start: TCP_START,
            offset: 16,
        };
    }
    let slots = if direction.sends() {
        workload.transmit_slots() as usize
    } else {
        // As many as our own stack has by default.
        512
    };
    let mut port = Port {
        rx: Incoming {
            device: rx,
            // So that the peer's Ethernet address is known.
            frames: vec![Frame::from_bytes(&headers::arp_reply(&Ends::default()))],
            next: 0,
            batch,
        },
        tx: Outgoing {
            device: tx,
            slots: vec![0; slots * SLOT],
            first: 0,
            lens: Vec::with_capacity(BATCH),
            meta,
        },
        checksum: workload.checksum,
    };
    let ends = Ends::default();
    let mut config = Config::new(EthernetAddress(ends.to_mac).into());
    config.random_seed = workload.seed;
    let zero = smoltcp::time::Instant::ZERO;
    let mut interface = Interface::new(config, &mut port, zero);
    interface.update_ip_addrs(|addresses| {
        let address = Ipv4Address::from(ends.to.ip().octets());
        // There is room for at least one.
        let _ = addresses.push(IpCidr::new(address.into(), 24));
    });
    let mut sockets = SocketSet::new(Vec::new());
    let mut all = Vec::new();
    for _ in 0..workload.connections {
        let buffer = || tcp::SocketBuffer::new(vec![0; ring]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        if workload.timestamps {
            socket.set_tsval_generator(Some(|| CLOCK.get()));
        }
        socket.listen(peer::port()).map_err(|e| e.to_string())?;
        all.push(End {
            handle: sockets.add(socket),
            read: 0,
            wrong: 0,
            first: if direction.sends() && !workload.processes() {
                workload.ring(ring)
            } else {
                Vec::new()
            },
            sent: 0,
        });
    }
    let mut driver = SmoltcpDriver {
        port,
        interface,
        sockets,
        ends: all,
        direction,
        peer,
        workload: *workload,
        payload: None,
        cipher: Units::of(workload)?.map(|units| Cipher {
            units,
            text: vec![0; MAX_PAYLOAD],
        }),
        #[cfg(feature = "tls")]
        tls: None,
        failed: None,
    };
    for now in 0..super::SETUP_NS {
        driver.exchange(Instant::from_nanos(now));
        if driver.established() {
            return Ok(driver);
        }
    }
    Err("smoltcp did not establish the peer's connections".to_owned())
}

impl SmoltcpDriver {
    fn established(&mut self) -> bool {
        let sockets = &self.sockets;
        self.ends
            .iter()
            .all(|end| sockets.get::<tcp::Socket<'_>>(end.handle).may_send())
    }

    /// Frames in, the application, frames out, the news to the peer.
    #[inline]
    fn exchange(&mut self, now: Instant) -> usize {
        let micros = now.as_nanos() / 1_000;
        CLOCK.set((micros / 1_000) as u32);
        let now = smoltcp::time::Instant::from_micros(micros as i64);
        let SmoltcpDriver {
            port,
            interface,
            sockets,
            ..
        } = self;
        let mut done = 0;
        while interface.poll_ingress_single(now, port, sockets) != PollIngressSingleResult::None {
            done += 1;
        }
        done += self.serve();
        let SmoltcpDriver {
            port,
            interface,
            sockets,
            ..
        } = self;
        for _ in 0..2 * BATCH {
            if interface.poll_egress(now, port, sockets) == PollResult::None {
                break;
            }
            done += 1;
        }
        if !port.tx.lens.is_empty() {
            port.tx.hand_over();
        }
        done + port.rx.claim()
    }

    /// The application.
    fn serve(&mut self) -> usize {
        if self.cipher.is_some() {
            return self.serve_enciphered();
        }
        if self.workload.processing.is_tls() {
            return self.serve_tls();
        }
        let mut done = 0;
        for end in &mut self.ends {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(end.handle);
            while self.direction.receives() && socket.can_recv() {
                let payload = self.payload.as_ref();
                let (at, wrong) = (end.read, &mut end.wrong);
                let taken = socket.recv(|bytes| {
                    if let Some(payload) = payload {
                        *wrong += differences(at, bytes, payload);
                    }
                    (bytes.len(), bytes.len())
                });
                let Ok(taken) = taken else { break };
                end.read += taken as u64;
                done += 1;
            }
            while self.direction.sends() && socket.can_send() {
                let first = &mut end.first;
                let sent = socket.send(|room| {
                    let len = if first.is_empty() {
                        room.len()
                    } else {
                        room.len().min(first.len())
                    };
                    if !first.is_empty() {
                        room[..len].copy_from_slice(&first[..len]);
                        first.drain(..len);
                    }
                    (len, ())
                });
                if sent.is_err() {
                    break;
                }
                done += 1;
            }
        }
        done
    }
}

impl SmoltcpDriver {
    /// The application where records are sealed and opened; until there are keys, nothing is done.
    #[cfg(feature = "tls")]
    fn serve_tls(&mut self) -> usize {
        let (Some(tls), [end]) = (&mut self.tls, &mut self.ends[..]) else {
            return 0;
        };
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(end.handle);
        let expected = self.payload.as_ref().map(|_| &tls.expected);
        let mut done = 0;
        loop {
            // An error means that the connection is over, which is looked at in the end.
            let step = if self.direction.sends() {
                let write = |from: &[u8]| socket.send_slice(from).unwrap_or(0);
                tls.records.send(&tls.text, write)
            } else {
                let read = |into: &mut [u8]| socket.recv_slice(into).unwrap_or(0);
                tls.records.receive(read, |text| {
                    end.read += text.len() as u64;
                    if expected.is_some_and(|expected| text != expected) {
                        end.wrong += text.len() as u64;
                    }
                })
            };
            match step {
                Ok(true) => done += 1,
                Ok(false) => return done,
                Err(failed) => {
                    self.failed.get_or_insert(failed);
                    return done;
                }
            }
        }
    }

    #[cfg(not(feature = "tls"))]
    fn serve_tls(&mut self) -> usize {
        0
    }

    /// The application where payload is enciphered.
    fn serve_enciphered(&mut self) -> usize {
        let Some(cipher) = &mut self.cipher else {
            return 0;
        };
        let mut done = 0;
        for end in &mut self.ends {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(end.handle);
            while self.direction.receives() && socket.recv_queue() >= cipher.units.len {
                let (at, wrong) = (end.read, &mut end.wrong);
                let payload = self.payload.as_ref();
                let taken = socket.recv(|bytes| {
                    let (taken, bad) = cipher.receive(at, bytes, payload);
                    *wrong += bad;
                    (taken, taken)
                });
                let Ok(taken @ 1..) = taken else { break };
                end.read += taken as u64;
                done += 1;
            }
            while self.direction.sends()
                && socket.send_capacity() - socket.send_queue() >= cipher.units.len
            {
                let at = end.sent;
                let sent = socket.send(|room| {
                    let sent = cipher.send(at, room);
                    (sent, sent)
                });
                let Ok(sent @ 1..) = sent else { break };
                end.sent += sent as u64;
                done += 1;
            }
        }
        done
    }
}

impl Driver for SmoltcpDriver {
    fn turn(&mut self, now: Instant) -> usize {
        self.exchange(now)
    }

    fn bytes(&self) -> u64 {
        let read: u64 = self.ends.iter().map(|end| end.read).sum();
        let sent = |index| self.peer.received_bytes(index);
        if self.direction.sends() {
            read + (0..self.ends.len()).map(sent).sum::<u64>()
        } else {
            read
        }
    }

    fn verify(&mut self, on: bool) {
        self.peer.verify(on);
        self.payload = on.then(|| Expected::of(&self.workload));
    }

    fn sent_again(&self) -> u64 {
        self.peer.sent_again()
    }

    fn out_of_order(&self) -> u64 {
        self.peer.out_of_order()
    }

    fn check(&self) -> Result<(), String> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let wrong: u64 = self.ends.iter().map(|end| end.wrong).sum();
        if wrong > 0 {
            return Err(format!("{wrong} bytes arrived wrong"));
        }
        for end in &self.ends {
            let socket = self.sockets.get::<tcp::Socket<'_>>(end.handle);
            if socket.state() != tcp::State::Established {
                return Err(format!("a connection is in state {}", socket.state()));
            }
        }
        self.peer.check().map_err(|e| e.to_string())
    }
}
