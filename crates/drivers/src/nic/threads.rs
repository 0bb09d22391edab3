//! One thread for each processor of a card.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::event::Sleeper;
use super::memory::Shared;
use super::processor::{Processor, Profile};
use crate::Waker;

/// The threads of a card, which end when the halves of its device are dropped.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    running: Mutex<Vec<JoinHandle<Profile>>>,
    shared: OnceLock<Arc<Shared>>,
}

impl Threads {
    /// Starts a thread for each processor.
    pub(crate) fn start(
        &self,
        name: &str,
        shared: &Arc<Shared>,
        processors: Vec<Processor>,
        wire: &Waker,
    ) -> io::Result<()> {
        let _ = self.shared.set(Arc::clone(shared));
        let mut sleepers: Vec<Vec<Sleeper>> = shared.registers.iter().map(|_| Vec::new()).collect();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut begin = Vec::new();
        for (number, mut processor) in processors.into_iter().enumerate() {
            let (register, place) = (processor.register, processor.place);
            let waits_for_wire = place == 0 && processor.commands_receiving();
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let thread = Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || {
                    // Waits until all processors are registered. After an error it ends without a
                    // turn.
                    if wait.recv().is_ok() {
                        processor.run();
                    }
                    processor.profile()
                })?;
            let handle = thread.thread().clone();
            sleepers[register].push(Sleeper::new(if waits_for_wire {
                wire.clone()
            } else {
                Waker::new(move || handle.unpark())
            }));
            running.push(thread);
            begin.push(go);
        }
        for (register, sleepers) in shared.registers.iter().zip(sleepers) {
            register.set_sleepers(sleepers);
        }
        for go in begin {
            // A thread that is gone has panicked, which `join` reports.
            let _ = go.send(());
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.get() {
            shared.end();
        }
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for thread in running.drain(..) {
            thread.thread().unpark();
            // The panic of a thread, if there was one, is of no use here.
            let _ = thread.join();
        }
    }
}
