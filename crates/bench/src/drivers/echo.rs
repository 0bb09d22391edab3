//! An echo server in each variant, and a client on another stack.
//!
//! Both are on one machine, joined by two devices in memory. The server's first worker, with its
//! application, has a core; the client has another. Where the server has a second worker, the
//! client's thread drives it, too, one turn after each turn of the client. Nothing sleeps: the
//! result is the time of the protocol, without the time that the system takes to wake a thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig, MemoryDevice, MemoryRx, MemoryTx};
use dominoes_drivers::{DeviceRx, DeviceTx, Frame, TxFrame};
use dominoes_netstack::config::Limits;
use dominoes_netstack::group::Layout;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{Setup, VariantKind, Worker};
use dominoes_netstack::{
    Connecting, SocketError, Sockets, TcpListener, TcpStream, time::Instant as StackTime,
};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};

use crate::topology;

/// Port of the server.
const PORT: u16 = 7;
/// Receive and send ring of a connection, in bytes.
const RING: u32 = 4096;
/// How long nothing may come back.
const PATIENCE: Duration = Duration::from_secs(20);

/// A way to run the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its kind; `None` for smoltcp.
    pub(crate) kind: Option<VariantKind>,
    /// Its workers.
    pub(crate) cores: usize,
}

const fn server(name: &'static str, kind: VariantKind, cores: usize) -> Server {
    Server {
        name,
        kind: Some(kind),
        cores,
    }
}

/// The rows.
pub(crate) const SERVERS: [Server; 8] = [
    server("single", VariantKind::Single, 1),
    server("replicated", VariantKind::Replicated, 1),
    server("replicated", VariantKind::Replicated, 2),
    server("locked-mutex", VariantKind::Locked, 1),
    server("locked-mutex", VariantKind::Locked, 2),
    server("locked-mcs", VariantKind::LockedMcs, 1),
    server("locked-mcs", VariantKind::LockedMcs, 2),
    Server {
        name: "smoltcp",
        kind: None,
        cores: 1,
    },
];

/// One worker, with the application if it is the first.
trait Turn: Send {
    fn turn(&mut self, now: StackTime) -> usize;
}

struct Ours {
    worker: Box<dyn Worker>,
    echo: Option<Echo>,
}

impl Turn for Ours {
    fn turn(&mut self, now: StackTime) -> usize {
        let done = self.worker.turn(now);
        done + self.echo.as_mut().map_or(0, Echo::turn)
    }
}

/// The application of our own stack.
struct Echo {
    listener: TcpListener,
    streams: Vec<TcpStream>,
}

impl Echo {
    fn turn(&mut self) -> usize {
        let mut done = 0;
        while let Ok((stream, _)) = self.listener.try_accept() {
            // A byte that waits for an acknowledgment would measure the other end's timer.
            let _ = stream.set_nodelay(true);
            self.streams.push(stream);
            done += 1;
        }
        self.streams.retain_mut(|stream| {
            let mut buffer = [0; 64];
            match stream.try_read(&mut buffer) {
                Err(SocketError::WouldBlock) => true,
                // It has closed: so does the stream when it goes.
                Ok(0) | Err(_) => {
                    done += 1;
                    false
                }
                Ok(len) => {
                    done += 1;
                    // There is always room for so little.
                    stream.try_write(&buffer[..len]).is_ok()
                }
            }
        });
        done
    }
}

/// smoltcp with a socket that listens.
struct Theirs {
    port: Port,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

/// A device of ours as smoltcp sees one: frames are claimed one by one, and sent one by one.
struct Port {
    rx: MemoryRx,
    tx: MemoryTx,
    claimed: Vec<Frame>,
}

struct Received<'a>(&'a mut MemoryRx, &'a mut Vec<Frame>);
struct Transmit<'a>(&'a mut MemoryTx);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(self.1.first().map_or(&[], |frame| frame.bytes()));
        self.0.release(self.1);
        result
    }
}

impl phy::TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut buffer = [0; 2048];
        let result = f(&mut buffer[..len]);
        // If the queue is full the frame is lost, and TCP sends it again.
        let _ = self.0.transmit(&[TxFrame::new(&buffer[..len])]);
        result
    }
}

impl phy::Device for Port {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Transmit<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received<'_>, Transmit<'_>)> {
        if self.claimed.is_empty() {
            // A device in memory cannot be down.
            self.rx.claim(1, &mut self.claimed).unwrap_or(0);
        }
        let some = !self.claimed.is_empty();
        some.then_some((
            Received(&mut self.rx, &mut self.claimed),
            Transmit(&mut self.tx),
        ))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Transmit<'_>> {
        Some(Transmit(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 1514;
        caps
    }
}

impl Theirs {
    fn new(device: MemoryDevice) -> Result<Theirs, String> {
        let mac = MemoryConfig::default().macs[0];
        let (rx, tx) = device.into_halves();
        let mut port = Port {
            rx,
            tx,
            claimed: Vec::new(),
        };
        let mut config = Config::new(EthernetAddress(mac).into());
        config.random_seed = 1;
        let mut interface = Interface::new(config, &mut port, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // There is room for at least one.
            let _ = addresses.push(IpCidr::new(Ipv4Address::new(10, 0, 0, 1).into(), 24));
        });
        let mut sockets = SocketSet::new(Vec::new());
        let buffer = || tcp::SocketBuffer::new(vec![0; RING as usize]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.listen(PORT).map_err(|e| e.to_string())?;
        let handle = sockets.add(socket);
        Ok(Theirs {
            port,
            interface,
            sockets,
            handle,
        })
    }
}

impl Turn for Theirs {
    fn turn(&mut self, now: StackTime) -> usize {
        let now = smoltcp::time::Instant::from_micros((now.as_nanos() / 1_000) as i64);
        let Theirs {
            port,
            interface,
            sockets,
            handle,
        } = self;
        let changed = interface.poll(now, port, sockets) != smoltcp::iface::PollResult::None;
        if !changed {
            return 0;
        }
        let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
        let mut buffer = [0; 64];
        if let Ok(len @ 1..) = socket.recv_slice(&mut buffer) {
            // There is always room for so little.
            let _ = socket.send_slice(&buffer[..len]);
        }
        interface.poll(now, port, sockets);
        1
    }
}

fn setup(last: u8) -> Setup {
    let mut limits = Limits::default();
    (limits.receive_buffer, limits.send_buffer) = (RING, RING);
    let mut setup = Setup::new([10, 0, 0, last].into(), 24, [1, u64::from(last)]);
    setup.limits = limits;
    setup
}

/// A server and a client, joined.
pub(crate) struct Pair {
    first: Box<dyn Turn>,
    /// What the client's thread drives.
    others: Vec<Box<dyn Turn>>,
    client: Client,
}

impl Pair {
    /// With this server.
    pub(crate) fn new(server: Server) -> Result<Pair, String> {
        let (here, there) = memory::pair(MemoryConfig::default());
        let mut workers: Vec<Box<dyn Turn>> = match server.kind {
            None => vec![Box::new(Theirs::new(here)?)],
            Some(kind) => {
                let layout = Layout::default().replicas(server.cores);
                let variant = kind.build(setup(1), layout, Box::new(here));
                let variant = variant.map_err(|e| e.to_string())?;
                let listener = variant.sockets().listen(PORT, 1024);
                let mut echo = Some(Echo {
                    listener: listener.map_err(|e| e.to_string())?,
                    streams: Vec::new(),
                });
                let workers = variant.into_parts().0.into_iter();
                let ours = workers.map(|worker| -> Box<dyn Turn> {
                    Box::new(Ours {
                        worker,
                        echo: echo.take(),
                    })
                });
                ours.collect()
            }
        };
        let others = workers.split_off(1);
        let first = workers.pop().ok_or("a variant without workers")?;
        let stack = Single::new(setup(2), Box::new(there)).map_err(|e| e.to_string())?;
        Ok(Pair {
            first,
            others,
            client: Client {
                sockets: stack.sockets(),
                stack,
                held: None,
            },
        })
    }

    /// Runs the server while `ask` asks it, each on another core. `clock` belongs to the row: it
    /// stops between two calls. Returns the result of `ask`, and the share of the time that a
    /// thread waited for its core.
    pub(crate) fn run<T: Send>(
        &mut self,
        clock: &mut Duration,
        ask: impl FnOnce(
            &mut Client,
            &mut dyn FnMut(StackTime),
            &dyn Fn() -> StackTime,
        ) -> Result<T, String>
        + Send,
    ) -> Result<(T, f64), String> {
        let stop = AtomicBool::new(false);
        let cores = topology::cores();
        let (begin, from) = (Instant::now(), *clock);
        let now = || StackTime::from_nanos((from + begin.elapsed()).as_nanos() as u64);
        let Pair {
            first,
            others,
            client,
        } = self;
        let found = thread::scope(|scope| {
            let serve = scope.spawn(|| {
                topology::pin_to(1);
                let waited = topology::waited_ns();
                // ORDERING: Relaxed, a wish.
                while !stop.load(Ordering::Relaxed) {
                    if first.turn(now()) == 0 && cores.len() < 2 {
                        thread::yield_now();
                    }
                }
                topology::waited_ns() - waited
            });
            let asking = scope.spawn(|| {
                topology::pin_to(0);
                let waited = topology::waited_ns();
                let mut beside = |now| {
                    for other in others.iter_mut() {
                        other.turn(now);
                    }
                    if cores.len() < 2 {
                        thread::yield_now();
                    }
                };
                let found = ask(client, &mut beside, &now);
                (found, topology::waited_ns() - waited)
            });
            let asked = asking.join();
            stop.store(true, Ordering::Relaxed);
            let served = serve.join();
            match (asked, served) {
                (Ok((found, one)), Ok(other)) => Ok((found?, one.max(other))),
                _ => Err("a thread panicked".to_owned()),
            }
        });
        let took = begin.elapsed();
        *clock = from + took;
        let (found, waited) = found?;
        Ok((found, waited as f64 / took.as_nanos().max(1) as f64))
    }
}

/// The asking end: `single`, with its application.
pub(crate) struct Client {
    stack: Single,
    sockets: Sockets,
    /// The connection, once it is open.
    held: Option<TcpStream>,
}

impl Client {
    fn begin(&self) -> Result<Connecting, SocketError> {
        let to = std::net::SocketAddr::from(([10, 0, 0, 1], PORT));
        self.sockets.begin_connect(to)
    }

    /// Sends a byte and waits for it, so often; nanoseconds of each time.
    pub(crate) fn ask(
        &mut self,
        times: usize,
        beside: &mut dyn FnMut(StackTime),
        now: &dyn Fn() -> StackTime,
    ) -> Result<Vec<u64>, String> {
        let mut stream = match self.held.take() {
            Some(stream) => stream,
            None => {
                let mut opening = self.begin().map_err(|e| e.to_string())?;
                let begin = Instant::now();
                loop {
                    self.stack.turn(now());
                    beside(now());
                    match opening.try_finish() {
                        Ok(Some(stream)) => break stream,
                        Ok(None) if begin.elapsed() < PATIENCE => {}
                        Ok(None) => return Err("the server does not answer".to_owned()),
                        Err(error) => return Err(error.to_string()),
                    }
                }
            }
        };
        // As in the server.
        let _ = stream.set_nodelay(true);
        let mut took = Vec::with_capacity(times);
        for number in 0..times {
            let sent = [number as u8];
            let begin = Instant::now();
            if stream.try_write(&sent) != Ok(1) {
                return Err("there is no room for one byte".to_owned());
            }
            let mut answer = [0; 2];
            loop {
                self.stack.turn(now());
                match stream.try_read(&mut answer) {
                    Ok(1) if answer[0] == sent[0] => break,
                    Err(SocketError::WouldBlock) if begin.elapsed() < PATIENCE => {}
                    other => return Err(format!("answer {number}: {other:?}, {answer:?}")),
                }
                beside(now());
            }
            took.push(begin.elapsed().as_nanos() as u64);
        }
        self.held = Some(stream);
        Ok(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_answers() {
        for server in SERVERS {
            let mut pair = Pair::new(server).unwrap();
            let mut clock = Duration::ZERO;
            let asked = pair.run(&mut clock, |client, beside, now| {
                client.ask(50, beside, now)
            });
            let (took, _) = asked.unwrap_or_else(|e| panic!("{server:?}: {e}"));
            assert_eq!(took.len(), 50);
        }
    }
}
