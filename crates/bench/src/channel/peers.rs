//! The channels that are compared, each with [`Tx`] and [`Rx`].

use super::{Backoff, Check, Message, Point, Rx, Source, Tx, drive};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

dominoes_bench::named! {
    /// A channel that can be measured at a point.
    pub(crate) enum Peer {
        /// `dominoes::channel`.
        Dominoes = "dominoes",
        /// `disruptor`, single-producer build.
        DisruptorSingle = "disruptor-1p",
        /// `disruptor`, multi-producer build.
        DisruptorMulti = "disruptor-mp",
        /// `rtrb`, a ring for each publisher and subscriber; no common order.
        Rtrb = "rtrb-fanout",
        /// `bus`; several publishers share it with a mutex.
        Bus = "bus",
        /// `crossbeam-channel`, a channel for each subscriber; no common order.
        Crossbeam = "crossbeam-fanout",
    }
}

impl Peer {
    /// Whether the peer supports this point.
    pub(crate) fn can(self, point: Point) -> bool {
        match self {
            Peer::DisruptorSingle => point.publishers == 1,
            _ => true,
        }
    }

    /// Messages per second at a point.
    pub(crate) fn run(self, point: Point, window: Duration) -> f64 {
        let Point {
            publishers,
            subscribers,
            capacity,
            ..
        } = point;
        match self {
            Peer::Dominoes => {
                let (publisher, log) = dominoes::channel::<Message, dominoes::SpinYield>(capacity);
                let rxs = (0..subscribers).map(|_| log.subscribe().unwrap()).collect();
                let mut txs: Vec<_> = (1..publishers).map(|_| publisher.clone()).collect();
                txs.push(publisher);
                drive(point, true, window, txs, rxs)
            }
            Peer::DisruptorSingle => disruptor_single(point, window),
            Peer::DisruptorMulti => disruptor_multi(point, window),
            Peer::Rtrb => {
                let mut txs: Vec<RtrbTx> = (0..publishers)
                    .map(|_| RtrbTx(Vec::new(), Vec::new()))
                    .collect();
                let mut rxs = Vec::new();
                for _ in 0..subscribers {
                    let mut rings = Vec::new();
                    for tx in &mut txs {
                        let (producer, consumer) = rtrb::RingBuffer::new(capacity);
                        tx.0.push(producer);
                        rings.push(consumer);
                    }
                    rxs.push(RtrbRx(rings, Backoff::default()));
                }
                drive(point, false, window, txs, rxs)
            }
            Peer::Bus => {
                let mut bus = bus::Bus::new(capacity);
                let rxs = (0..subscribers)
                    .map(|_| BusRx(bus.add_rx(), Backoff::default()))
                    .collect();
                if publishers == 1 {
                    drive(point, true, window, vec![BusTx(bus)], rxs)
                } else {
                    let bus = Arc::new(Mutex::new(bus));
                    let txs = (0..publishers).map(|_| SharedBusTx(bus.clone())).collect();
                    drive(point, true, window, txs, rxs)
                }
            }
            Peer::Crossbeam => {
                let (senders, receivers): (Vec<_>, Vec<_>) = (0..subscribers)
                    .map(|_| crossbeam_channel::bounded(capacity))
                    .unzip();
                let txs = (0..publishers)
                    .map(|_| CrossbeamTx(senders.clone()))
                    .collect();
                let rxs = receivers
                    .into_iter()
                    .map(|receiver| CrossbeamRx(receiver, Backoff::default()))
                    .collect();
                drive(point, false, window, txs, rxs)
            }
        }
    }
}

impl Tx for dominoes::Publisher<Message, dominoes::SpinYield> {
    #[inline]
    fn one(&mut self, message: Message) {
        self.publish(message).unwrap();
    }

    #[inline]
    fn many(&mut self, n: usize, source: &mut Source) {
        self.publish_all((0..n).map(|_| source.message())).unwrap();
    }
}

impl Rx for dominoes::Subscription<Message, dominoes::SpinYield> {
    #[inline]
    fn some(&mut self, check: &mut Check) {
        let batch = self.next_batch().unwrap();
        batch.iter().for_each(|(_, message)| check.see(message));
    }
}

/// Offers a message until there is room for it.
#[inline]
fn until_accepted(mut offer: impl FnMut() -> bool) {
    let mut backoff = Backoff::default();
    while !offer() {
        backoff.wait();
    }
}

/// A receiver whose `try_recv` returns a message or an error.
macro_rules! receiver {
    ($name:ident, $receiver:ty) => {
        struct $name($receiver, Backoff);

        impl Rx for $name {
            #[inline]
            fn some(&mut self, check: &mut Check) {
                match self.0.try_recv() {
                    Ok(message) => {
                        check.see(&message);
                        self.1.reset();
                    }
                    Err(_) => self.1.wait(),
                }
            }
        }
    };
}

struct DisruptorTx<P>(P);

impl<P: disruptor::Producer<Message> + Send + 'static> Tx for DisruptorTx<P> {
    #[inline]
    fn one(&mut self, message: Message) {
        until_accepted(|| self.0.try_publish(|slot| *slot = message).is_ok());
    }

    #[inline]
    fn many(&mut self, n: usize, source: &mut Source) {
        until_accepted(|| {
            self.0
                .try_batch_publish(n, |slots| slots.for_each(|slot| *slot = source.message()))
                .is_ok()
        });
    }
}

struct DisruptorRx<B>(disruptor::EventPoller<Message, B>, Backoff);

// Implemented for each of the two barriers by name, since the trait that `EventPoller::poll`
// requires is not exported.
macro_rules! disruptor_rx {
    ($($barrier:ident)*) => {$(
        impl Rx for DisruptorRx<disruptor::$barrier> {
            #[inline]
            fn some(&mut self, check: &mut Check) {
                match self.0.poll() {
                    Ok(mut events) => {
                        for message in &mut events {
                            check.see(message);
                        }
                        self.1.reset();
                    }
                    Err(_) => self.1.wait(),
                };
            }
        }
    )*};
}

disruptor_rx!(SingleProducerBarrier MultiProducerBarrier);

macro_rules! disruptor_at {
    ($name:ident, $build:ident, |$producer:ident, $publishers:ident| $txs:expr) => {
        fn $name(point: Point, window: Duration) -> f64 {
            let $publishers = point.publishers;
            let builder = disruptor::$build(point.capacity, || [0; 8], disruptor::BusySpin);
            let (first, builder) = builder.new_event_poller();
            if point.subscribers == 1 {
                let $producer = builder.build();
                return drive(
                    point,
                    true,
                    window,
                    $txs,
                    vec![DisruptorRx(first, Backoff::default())],
                );
            }
            let mut pollers = vec![DisruptorRx(first, Backoff::default())];
            let (poller, mut builder) = builder.new_event_poller();
            pollers.push(DisruptorRx(poller, Backoff::default()));
            for _ in 2..point.subscribers {
                let (poller, more) = builder.new_event_poller();
                pollers.push(DisruptorRx(poller, Backoff::default()));
                builder = more;
            }
            let $producer = builder.build();
            drive(point, true, window, $txs, pollers)
        }
    };
}

disruptor_at!(
    disruptor_single,
    build_single_producer,
    |producer, _publishers| vec![DisruptorTx(producer)]
);
disruptor_at!(
    disruptor_multi,
    build_multi_producer,
    |producer, publishers| (0..publishers)
        .map(|_| DisruptorTx(producer.clone()))
        .collect()
);

struct RtrbTx(Vec<rtrb::Producer<Message>>, Vec<Message>);

impl Tx for RtrbTx {
    #[inline]
    fn one(&mut self, message: Message) {
        for ring in &mut self.0 {
            until_accepted(|| ring.push(message).is_ok());
        }
    }

    #[inline]
    fn many(&mut self, n: usize, source: &mut Source) {
        if let [ring] = &mut self.0[..] {
            let mut backoff = Backoff::default();
            loop {
                if let Ok(chunk) = ring.write_chunk_uninit(n) {
                    chunk.fill_from_iter((0..n).map(|_| source.message()));
                    return;
                }
                backoff.wait();
            }
        }
        self.1.clear();
        self.1.extend((0..n).map(|_| source.message()));
        for ring in &mut self.0 {
            until_accepted(|| ring.push_entire_slice(&self.1).is_ok());
        }
    }
}

struct RtrbRx(Vec<rtrb::Consumer<Message>>, Backoff);

impl Rx for RtrbRx {
    #[inline]
    fn some(&mut self, check: &mut Check) {
        let mut idle = true;
        for ring in &mut self.0 {
            let n = ring.slots();
            if n > 0 {
                let chunk = ring.read_chunk(n).unwrap();
                let (head, rest) = chunk.as_slices();
                head.iter()
                    .chain(rest)
                    .for_each(|message| check.see(message));
                chunk.commit_all();
                idle = false;
            }
        }
        if idle { self.1.wait() } else { self.1.reset() }
    }
}

struct BusTx(bus::Bus<Message>);

impl Tx for BusTx {
    #[inline]
    fn one(&mut self, message: Message) {
        until_accepted(|| self.0.try_broadcast(message).is_ok());
    }
}

struct SharedBusTx(Arc<Mutex<bus::Bus<Message>>>);

impl Tx for SharedBusTx {
    #[inline]
    fn one(&mut self, message: Message) {
        until_accepted(|| self.0.lock().unwrap().try_broadcast(message).is_ok());
    }

    fn many(&mut self, n: usize, source: &mut Source) {
        let mut left = n;
        let mut backoff = Backoff::default();
        let mut pending = None;
        while left > 0 {
            let mut bus = self.0.lock().unwrap();
            while left > 0 {
                match bus.try_broadcast(pending.take().unwrap_or_else(|| source.message())) {
                    Ok(()) => left -= 1,
                    Err(message) => {
                        pending = Some(message);
                        break;
                    }
                }
            }
            drop(bus);
            if left > 0 {
                backoff.wait();
            }
        }
    }
}

receiver!(BusRx, bus::BusReader<Message>);

struct CrossbeamTx(Vec<crossbeam_channel::Sender<Message>>);

impl Tx for CrossbeamTx {
    #[inline]
    fn one(&mut self, message: Message) {
        for sender in &self.0 {
            until_accepted(|| sender.try_send(message).is_ok());
        }
    }
}

receiver!(CrossbeamRx, crossbeam_channel::Receiver<Message>);
