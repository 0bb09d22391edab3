//! The end of a case: no more faults, no new data, and everything that was sent must arrive.

use dominoes_netstack::group::FaultHooks;
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Worker as _;

use super::super::check::Failure;
use super::super::peer::{Peer, Phase};
use super::super::plan::LinkFaults;
use super::Case;

/// No faults.
const GOOD: LinkFaults = LinkFaults {
    loss: 0,
    duplication: 0,
    reordering: 0,
    corruption: 0,
    overlap: 0,
    delayed_acks: 0,
    strays: 0,
    datagrams: 0,
    oddities: 0,
};

/// Jumps to the next deadline after the faults have ended, without a byte that arrives.
const JUMPS: usize = 60;

impl<T: FaultHooks> Case<'_, T> {
    /// Runs without faults and new data until everything that was sent has arrived.
    pub(super) fn quiesce(&mut self) -> Result<(), Failure> {
        self.script.accept_at_most(None);
        let finishes = self.plan.app.finishes;
        self.app.stop(finishes);
        for peer in &mut self.peers {
            peer.stop(finishes);
        }
        let mut jumps = 0;
        let mut before = 0;
        loop {
            let mut done = self.app.drain(finishes)?;
            self.forget_failed();
            for index in 0..self.peers.len() {
                self.peers[index].read(u64::MAX >> 1);
                done += self.emit_from(index, &GOOD);
            }
            done += self.go_on()?;
            let bytes = self.moved_bytes();
            if bytes != before {
                (before, jumps) = (bytes, 0);
            }
            if done > 0 {
                self.now += 10_000;
                continue;
            }
            if (0..self.peers.len()).all(|index| self.is_complete(index)) {
                return Ok(());
            }
            let next = self.next_deadline();
            jumps += 1;
            if next == u64::MAX || jumps > JUMPS {
                return Err(self.incomplete());
            }
            self.now = self.now.max(next);
        }
    }

    /// Delivers all frames on the wire, and gives every worker a turn.
    fn go_on(&mut self) -> Result<usize, Failure> {
        let mut done = 0;
        while self.arrive(&GOOD) {
            done += 1;
        }
        while self.leave(&GOOD)? {
            done += 1;
        }
        Ok(done + self.turns()?)
    }

    /// Applications drop everything and peers forget their connections: every connection must end.
    pub(super) fn close_all(&mut self) -> Result<(), Failure> {
        self.app.let_go();
        for peer in &mut self.peers {
            peer.phase = Phase::Reset;
        }
        for _ in 0..JUMPS {
            while self.go_on()? > 0 {
                self.now += 10_000;
            }
            let knowing = self.worker_with_state();
            let replica = self.group.workers()[knowing].replica();
            if replica.connections().next().is_none() {
                return Ok(());
            }
            // Also of a batch that a worker claimed before it failed.
            match self.next_deadline() {
                u64::MAX => break,
                next => self.now = self.now.max(next),
            }
        }
        let knowing = self.worker_with_state();
        let replica = self.group.workers()[knowing].replica();
        let left: Vec<_> = replica
            .connections()
            .map(|(_, tcb)| (tcb.flow(), tcb.state()))
            .collect();
        Err(Failure::new(format!(
            "connections that nobody wants stay: {left:?}"
        )))
    }

    /// A turn of every worker.
    fn turns(&mut self) -> Result<usize, Failure> {
        let mut done = 0;
        let workers = self.group.workers().len();
        let first = self.rng.index(workers);
        for i in 0..workers {
            let index = (first + i) % workers;
            let Some(index) = (index < self.group.workers().len()).then_some(index) else {
                continue;
            };
            let now = Instant::from_nanos(self.now);
            let turn = self.run_with_fault(index, |case| {
                let done = case.group.workers()[index].turn(now);
                case.mark(index).map(|()| done)
            })?;
            done += turn.unwrap_or(Ok(0))?;
        }
        self.admit_and_remove()?;
        self.collect(&GOOD)?;
        Ok(done)
    }

    fn moved_bytes(&self) -> u64 {
        let read: usize = self.app.connections.iter().map(|c| c.received.len()).sum();
        let got: u64 = self.peers.iter().map(Peer::received).sum();
        read as u64 + got
    }

    /// Whether everything that was sent on a connection has arrived.
    fn is_complete(&self, index: usize) -> bool {
        let peer = &self.peers[index];
        if !peer.is_open() {
            return true;
        }
        let Some(connection) = self.app.of(index) else {
            return self.app.is_connecting(index) && peer.sent() == 0;
        };
        connection.gave_up
            || connection.ended.is_none()
                && peer.is_content()
                && peer.received() == connection.written
                && peer.sent() == connection.received.len() as u64
                && (!self.plan.app.finishes || connection.eof && peer.saw_the_end())
    }

    fn incomplete(&mut self) -> Failure {
        let index = (0..self.peers.len()).find(|&index| !self.is_complete(index));
        let index = index.unwrap_or(0);
        let position = self.published();
        Failure::new(format!(
            "not everything arrives: {:?} / {:?} at {position}, now {} ns, with {:?}",
            self.peers[index],
            self.app.of(index),
            self.now,
            self.group.workers()
        ))
    }

    /// Checks that all work is done, and that no worker found a divergence.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        // A worker that waits for a state has no share.
        for _ in 0..JUMPS {
            self.group.unpark();
            // A batch that a failed worker had claimed brings its datagrams only now.
            while self.turns()? + self.app.take_datagrams(usize::MAX) > 0 {}
            if self.group.workers().iter().all(|worker| worker.is_active()) {
                break;
            }
        }
        let end = self.published();
        for worker in self.group.workers().iter() {
            let id = worker.id();
            let position = worker.replica().applied();
            if position != end {
                return Err(Failure::new(format!(
                    "worker {id} stays at {position} of {end}"
                )));
            }
            let diverged = worker.stats().effects.diverged;
            if diverged > 0 {
                return Err(Failure::new(format!(
                    "worker {id} counts {diverged} divergences"
                )));
            }
        }
        if let Err(mismatch) = self.group.compare()
            && !self.is_explained_by_lost_workers(&mismatch)
        {
            return Err(Failure::new(format!("posted: {mismatch}")));
        }
        Ok(())
    }

    /// Checks that no connection ended without a reason.
    pub(super) fn check_endings(&mut self) -> Result<(), Failure> {
        for connection in &self.app.connections {
            let peer = &self.peers[connection.peer];
            // The stack may remove a connection in TIME-WAIT, and a peer that missed the last
            // acknowledgment then gets a reset; no data is lost.
            let is_over = connection.eof && peer.saw_the_end();
            let wanted = peer.reset_by_us || connection.gave_up || is_over;
            if connection.eof && connection.received.len() as u64 != peer.sent() {
                return Err(Failure::new(format!("{connection:?} ends before {peer:?}")));
            }
            self.seen.reset |= peer.phase == Phase::Reset;
            self.seen.finished |= is_over;
            let is_early = connection.ended.is_some() || peer.phase == Phase::Reset;
            if is_early && !wanted {
                return Err(Failure::new(format!(
                    "nobody wanted the end of {connection:?} / {peer:?}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::strategy::ValueTree;

    use super::super::super::plan;
    use super::super::super::wire::Coverage;
    use super::*;
    use dominoes_testkit::Rng;
    use dominoes_testkit::packet::{ACK, SYN, Segment};

    /// The stack would not ask again for a delayed acknowledgment once it has removed the
    /// connection.
    #[test]
    fn without_faults_no_peer_delays_an_acknowledgment() {
        let mut style = plan::tree(0, 1..=1).current().peers;
        (style.short, style.resets) = (0, 0);
        for seed in 0..100 {
            let (mut rng, mut seen) = (Rng::new(seed), Coverage::default());
            let mut peer = Peer::new(0, 0, seed, true, &style, &mut rng);
            let syn = peer.emit(0, &style, &GOOD, &mut rng, &mut seen);
            let answer = Segment {
                src_port: syn[0].dst_port,
                ack: syn[0].seq.wrapping_add(1),
                flags: SYN | ACK,
                ..Segment::default()
            };
            assert_eq!(peer.arrive(&answer, 0), Ok(None));
            assert!(!peer.is_content());
            let out = peer.emit(0, &style, &GOOD, &mut rng, &mut seen);
            assert_eq!(out.len(), 1, "seed {seed}");
        }
    }
}
