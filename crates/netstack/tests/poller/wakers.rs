//! Wakers of tasks: a stack driven by hand, and futures on threads.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::{self, Thread};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::poller::Source;
use dominoes_netstack::{Connecting, Stack, TcpListener, TcpStream};
use futures_io::{AsyncRead, AsyncWrite};

use super::by_hand::{VARIANTS, connect, connected, drain, fill, ours_at, pair, peer_at};
use super::*;

/// Counts how often it was used.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Count {
    /// How often it was used since the last call.
    fn take(&self) -> usize {
        self.0.swap(0, Relaxed)
    }
}

fn count() -> (Arc<Count>, Waker) {
    let count = Arc::<Count>::default();
    (Arc::clone(&count), Waker::from(count))
}

#[test]
fn a_waker_is_used_once_when_its_socket_is_ready() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, listener, mut ours, mut theirs) = connected(variant);
            let ([reads, writes, accepts], [reader, writer, accepter]) = {
                let [a, b, c] = [count(), count(), count()];
                ([a.0, b.0, c.0], [a.1, b.1, c.1])
            };
            let read = |stream: &TcpStream| {
                let done = stream.register_waker(&reader, Interest::READABLE, trigger);
                done.unwrap();
            };
            read(&ours);
            ours.register_waker(&writer, Interest::WRITABLE, trigger)
                .unwrap();
            listener
                .register_waker(&accepter, Interest::READABLE, trigger)
                .unwrap();
            pair.settle();
            assert_eq!((reads.take(), writes.take(), accepts.take()), (0, 1, 0));
            for round in 0..3 {
                // Two arrivals, and one use.
                for _ in 0..2 {
                    theirs.try_write(b"abc").unwrap();
                    pair.settle();
                }
                assert_eq!(reads.take(), 1, "{variant} {trigger:?} {round}");
                // It is ready: only by level that is news.
                assert_eq!(ours.try_read(&mut [0; 1]), Ok(1));
                read(&ours);
                if trigger == Trigger::Level {
                    assert_eq!(reads.take(), 1, "{variant} {round}");
                    drain(&mut ours);
                    read(&ours);
                } else {
                    // The second arrival came after the waker was used.
                    assert_eq!(reads.take(), 1, "{variant} {round}");
                    read(&ours);
                    assert_eq!(reads.take(), 0, "{variant} {round}");
                    drain(&mut ours);
                }
                pair.settle();
                assert_eq!(reads.take(), 0, "{variant} {trigger:?} {round}");
            }
            // Neither acknowledgments nor a second registration use a waker.
            ours.try_write(b"answer").unwrap();
            read(&ours);
            pair.settle();
            drain(&mut theirs);
            pair.settle();
            assert_eq!((reads.take(), writes.take()), (0, 0), "{variant}");
            fill(&mut pair, |bytes| ours.try_write(bytes));
            ours.register_waker(&writer, Interest::WRITABLE, trigger)
                .unwrap();
            assert_eq!(writes.take(), 0, "{variant} {trigger:?}: it is full");
            while drain(&mut theirs) > 0 {
                pair.settle();
            }
            assert_eq!(writes.take(), 1, "{variant} {trigger:?}");
            let _other = connect(&mut pair, &listener);
            assert_eq!(accepts.take(), 1, "{variant} {trigger:?}");
            theirs.shutdown_write();
            pair.settle();
            assert_eq!(reads.take(), 1, "{variant} {trigger:?}: the end is news");
        }
    }
}

/// The latest waker counts, and none after its socket.
#[test]
fn a_waker_replaces_the_one_before_and_ends_with_its_socket() {
    for variant in VARIANTS {
        let (mut pair, _listener, ours, mut theirs) = connected(variant);
        let mut clone = ours.try_clone().unwrap();
        let [(before, first), (after, second), (clones, third)] = [count(), count(), count()];
        let read = |stream: &TcpStream, waker: &Waker| {
            let done = stream.register_waker(waker, Interest::READABLE, Trigger::Level);
            done.unwrap();
        };
        read(&ours, &first);
        read(&ours, &second);
        read(&clone, &third);
        assert_eq!(Arc::strong_count(&before), 2, "{variant}: it is let go");
        theirs.try_write(b"abc").unwrap();
        pair.settle();
        let taken = (before.take(), after.take(), clones.take());
        assert_eq!(taken, (0, 1, 1), "{variant}");
        drain(&mut clone);
        read(&ours, &second);
        drop(ours);
        theirs.try_write(b"abc").unwrap();
        pair.settle();
        assert_eq!(after.take(), 0, "{variant}");
        assert_eq!(Arc::strong_count(&after), 2, "{variant}: it is let go");

        let (_, waker) = count();
        let udp = pair.sockets().bind_udp(53).unwrap();
        let (receiver, sender) = udp.split();
        for wrong in [
            receiver.register_waker(&waker, Interest::WRITABLE, Trigger::Level),
            sender.register_waker(&waker, Interest::READABLE, Trigger::Edge),
        ] {
            assert_eq!(wrong.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn a_waker_learns_how_an_open_ends_and_of_datagrams() {
    for variant in VARIANTS {
        let mut pair = pair(variant);
        let _listener = pair.peer().listen(80, 4).unwrap();
        for (port, refused) in [(80, false), (81, true)] {
            let mut opening = pair.sockets().begin_connect(peer_at(port)).unwrap();
            let (uses, waker) = count();
            // As a future: it may be used too often, and the last time is late enough.
            let mut done = None;
            for _ in 0..4 {
                done = opening.try_finish().transpose();
                if done.is_some() {
                    break;
                }
                opening
                    .register_waker(&waker, Interest::WRITABLE, Trigger::Level)
                    .unwrap();
                pair.settle();
                assert!(uses.take() > 0, "{variant}");
            }
            let done = done.expect("it has ended").map(drop);
            assert_eq!(done.err(), refused.then_some(SocketError::Refused));
        }
        let mut udp = pair.sockets().bind_udp(53).unwrap();
        let mut asks = pair.peer().bind_udp(0).unwrap();
        let (uses, waker) = count();
        for _ in 0..3 {
            udp.register_waker(&waker, Interest::READABLE, Trigger::Edge)
                .unwrap();
            assert_eq!(uses.take(), 0, "{variant}");
            asks.try_send_to(b"what?", ours_at(53)).unwrap();
            pair.settle();
            assert_eq!(uses.take(), 1, "{variant}");
            assert_eq!(udp.try_recv_from(&mut [0; 16]).unwrap().0, 5);
        }
    }
}

/// A waker that uses its socket, and panics.
struct Rude(std::sync::Mutex<Option<TcpStream>>);

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        let stream = self.0.lock().unwrap().take().unwrap();
        let waker = Waker::noop();
        stream
            .register_waker(waker, Interest::READABLE, Trigger::Edge)
            .unwrap();
        drop(stream);
        panic!("a mistake");
    }
}

/// A waker that uses its socket when it is dropped.
struct Late(Arc<TcpStream>);

impl Wake for Late {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Late {
    fn drop(&mut self) {
        let waker = Waker::noop();
        let done = self
            .0
            .register_waker(waker, Interest::READABLE, Trigger::Edge);
        done.unwrap();
    }
}

#[test]
fn a_waker_that_is_replaced_may_use_its_socket() {
    let (_pair, _listener, ours, _theirs) = connected(VARIANTS[0]);
    let ours = Arc::new(ours);
    for waker in [
        Waker::from(Arc::new(Late(ours.clone()))),
        Waker::noop().clone(),
    ] {
        ours.register_waker(&waker, Interest::READABLE, Trigger::Level)
            .unwrap();
    }
    assert_eq!(Arc::strong_count(&ours), 1, "the first waker is gone");
}

#[test]
fn a_waker_may_use_the_stack_and_its_panic_harms_nobody() {
    for variant in VARIANTS {
        let (mut pair, listener, ours, mut theirs) = connected(variant);
        let rude = Arc::new(Rude(std::sync::Mutex::default()));
        let waker = Waker::from(Arc::clone(&rude));
        ours.register_waker(&waker, Interest::READABLE, Trigger::Level)
            .unwrap();
        *rude.0.lock().unwrap() = Some(ours);
        theirs.try_write(b"abc").unwrap();
        pair.settle();
        assert!(rude.0.lock().unwrap().is_none(), "{variant}: it was used");
        let (mut ours, mut theirs) = connect(&mut pair, &listener);
        theirs.try_write(b"abc").unwrap();
        pair.settle();
        assert_eq!(ours.try_read(&mut [0; 8]), Ok(3), "{variant}");
    }
}

// A program that runs futures needs an executor, and traits of a library.

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps while the future waits.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

/// Returns the result of a call of a socket, or lets the task wait.
fn poll_socket<T>(
    socket: &impl Source,
    interest: Interest,
    context: &Context<'_>,
    done: Result<T, SocketError>,
) -> Poll<io::Result<T>> {
    match done {
        Err(SocketError::WouldBlock) => {
            socket.register_waker(context.waker(), interest, Trigger::Level)?;
            Poll::Pending
        }
        done => Poll::Ready(done.map_err(io::Error::from)),
    }
}

/// A stream for any executor.
struct Async(TcpStream);

impl AsyncRead for Async {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let done = self.0.try_read(into);
        poll_socket(&self.0, Interest::READABLE, context, done)
    }
}

impl AsyncWrite for Async {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = self.0.try_write(from);
        poll_socket(&self.0, Interest::WRITABLE, context, done)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.shutdown_write();
        Poll::Ready(Ok(()))
    }
}

async fn finish(mut opening: Connecting) -> io::Result<Async> {
    poll_fn(|context| {
        let done = opening.try_finish();
        let done = done.and_then(|stream| stream.ok_or(SocketError::WouldBlock));
        poll_socket(&opening, Interest::WRITABLE, context, done).map_ok(Async)
    })
    .await
}

async fn accept(listener: &TcpListener) -> io::Result<Async> {
    poll_fn(|context| {
        let done = listener.try_accept().map(|(stream, _)| Async(stream));
        poll_socket(listener, Interest::READABLE, context, done)
    })
    .await
}

/// Two futures as one, on one task.
async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    poll_fn(|context| {
        if one.is_none()
            && let Poll::Ready(done) = first.as_mut().poll(context)
        {
            one = Some(done);
        }
        if other.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(context)
        {
            other = Some(done);
        }
        match (one.is_some(), other.is_some()) {
            (true, true) => Poll::Ready((one.take().unwrap(), other.take().unwrap())),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Echoes until the end of the stream.
async fn echo(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<u64> {
    let mut buffer = vec![0; 10_000];
    let (mut held, mut sum) = (0..0, 0);
    poll_fn(|context| {
        loop {
            if held.is_empty() {
                match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer))? {
                    0 => return Pin::new(&mut *stream).poll_close(context),
                    len => held = 0..len,
                }
                sum += held.len() as u64;
            }
            let from = &buffer[held.clone()];
            held.start += ready!(Pin::new(&mut *stream).poll_write(context, from))?;
        }
    })
    .await?;
    Ok(sum)
}

/// Sends `len` bytes and reads them back, both ways at once.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    len: usize,
) -> io::Result<u64> {
    let (mut left, mut sum, mut closed) = (len, 0, false);
    let mut buffer = vec![7; 30_000];
    poll_fn(|context| {
        loop {
            let mut moved = false;
            if left > 0 {
                let from = &buffer[..left.min(30_000)];
                if let Poll::Ready(len) = Pin::new(&mut *stream).poll_write(context, from) {
                    left -= len?;
                    moved = true;
                }
            } else if !closed {
                closed = true;
                let _ = Pin::new(&mut *stream).poll_close(context)?;
            }
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(0)) => return Poll::Ready(io::Result::Ok(())),
                Poll::Ready(len) => sum += len? as u64,
                Poll::Pending if !moved => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    })
    .await?;
    Ok(sum)
}

/// A megabyte and more passes between two tasks on two threads, and between two futures of one.
#[test]
fn futures_of_any_executor_wait_for_sockets() {
    const LEN: usize = 1_500_000;
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24")
        .replicas(2)
        .start(left)
        .unwrap();
    let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
    let listener = server.listen(7, 16).unwrap();
    let opens = || client.sockets().begin_connect(ours_at(7)).unwrap();
    let serve = async || echo(&mut accept(&listener).await?).await;
    let ask = async || exchange(&mut finish(opens()).await?, LEN).await;
    thread::scope(|scope| {
        let served = scope.spawn(|| block_on(serve()));
        assert_eq!(block_on(ask()).unwrap(), LEN as u64);
        assert_eq!(served.join().unwrap().unwrap(), LEN as u64);
    });
    let (served, asked) = block_on(both(serve(), ask()));
    assert_eq!((served.unwrap(), asked.unwrap()), (LEN as u64, LEN as u64));
}
