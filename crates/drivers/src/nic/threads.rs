//! One thread for each processor of a card.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::event::CardSleeper;
use super::memory::CardShared;
use super::processor::{CardProcessor, Profile};
use crate::DeviceWaker;

/// The threads of a card, which end when the halves of its device are dropped.
#[derive(Debug, Default)]
pub(crate) struct CardThreads {
    running: Mutex<Vec<JoinHandle<Profile>>>,
    shared: OnceLock<Arc<CardShared>>,
}

impl CardThreads {
    /// Starts a thread for each processor.
    pub(crate) fn start(
        &self,
        name: &str,
        shared: &Arc<CardShared>,
        processors: Vec<CardProcessor>,
        wire: &DeviceWaker,
    ) -> io::Result<()> {
        let _ = self.shared.set(Arc::clone(shared));
        let mut sleepers: Vec<Vec<CardSleeper>> =
            shared.registers.iter().map(|_| Vec::new()).collect();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut begin = Vec::new();
        for (number, mut processor) in processors.into_iter().enumerate() {
            let (register, place) = (processor.register, processor.place);
            let waits_for_wire = place == 0 && processor.commands_receiving();
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let thread = Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || {
                    // Waits until all are registered. After an error it ends without a turn.
                    if wait.recv().is_ok() {
                        processor.run();
                    }
                    processor.profile()
                })?;
            let handle = thread.thread().clone();
            sleepers[register].push(CardSleeper::new(if waits_for_wire {
                wire.clone()
            } else {
                DeviceWaker::new(move || handle.unpark())
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

impl Drop for CardThreads {
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
            // A panic of the thread is ignored here.
            let _ = thread.join();
        }
    }
}
