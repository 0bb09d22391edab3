//! The requests of applications in the receive pump: opens, listeners, and the progress of
//! streams.

use super::{Log, RxPump};
use crate::error::SocketError;
use crate::io::stream::Change;
use crate::io::world::{Command, OpenResult};
use crate::ip::neighbor::WaitingOpen;
use crate::log::request::{Body, ConnId, Endpoint, Mac};
use crate::time::Instant;

/// Requests that one change of options takes.
pub(super) const ROOM_OF_CHANGE: usize = 3;

/// An open fails because no route, neighbour or source address is found.
pub(super) const UNREACHABLE: OpenResult = OpenResult::Failed(SocketError::Unreachable);
/// An open fails because too many others wait.
const NO_ROOM: OpenResult = OpenResult::Failed(SocketError::NoRoom);

impl RxPump {
    pub(super) fn command(&mut self, now: Instant, command: Command, log: &mut impl Log) {
        match command {
            Command::Open(open) => self.resolve(now, open, log),
            Command::Publish(body) => {
                self.connections.held.note(&body);
                self.publish_command(now, body, log);
            }
            Command::HoldSyns { port, holds } => {
                self.connections.held.listen(port, holds);
                let holds = holds.is_some();
                self.publish_command(now, Body::HoldSyns { port, holds }, log);
            }
            Command::Decide { flow, id, decision } => self.decide(now, (flow, id), decision, log),
            Command::SetListener {
                port,
                binding,
                group,
            } => {
                if let Some(settings) = self.world.settings_of_listener(port, binding, group) {
                    let body = Body::SetListener {
                        port,
                        binding,
                        settings,
                    };
                    self.publish_command(now, body, log);
                }
            }
            Command::Bind {
                socket,
                port,
                binding,
            } => self.bind(now, (socket, port, binding), log),
            Command::Connect { socket, remote } => self.connect(socket, remote),
            Command::Info { socket, wants_info } => self.set_info(socket, wants_info),
            Command::Unbind { socket } => self.unbind(now, socket),
            Command::Echo { ident } => self.send_echoes(now, ident),
            Command::Interface(change) => self.change_interface(now, change),
            Command::Member { member, listens } => self.member(now, member, listens),
        }
    }

    pub(super) fn resolve(&mut self, now: Instant, open: WaitingOpen, log: &mut impl Log) {
        if self.waits_for_source(open) {
            return;
        }
        if let Some(mac) = self.with_host(now, |host| host.own_mac_for(open.remote.address)) {
            return self.publish_open(now, open, mac, log);
        }
        let Some(next_hop) = self.host.site.next_hop(open.remote.address) else {
            self.world.complete_open(open.request_id, UNREACHABLE);
            return;
        };
        if let Some(mac) = self.host.neighbors.lookup(next_hop, now) {
            return self.publish_open(now, open, mac, log);
        }
        if !self.may_wait(open) {
            return;
        }
        if self.host.neighbors.wait_for(next_hop, open, now) {
            self.with_host(now, |host| host.request_address(next_hop, None));
        }
    }

    /// Whether `open` may wait: at most [`Limits::connections`](crate::Limits::connections) may. If
    /// not, completes it with an error.
    pub(super) fn may_wait(&self, open: WaitingOpen) -> bool {
        let waiting = self.connections.opens.len()
            + self.host.neighbors.waiting_opens()
            + self.connections.sourceless.len();
        let has_room = waiting < self.world.limits.connections as usize;
        if !has_room {
            self.world.complete_open(open.request_id, NO_ROOM);
        }
        has_room
    }

    pub(super) fn publish_open(
        &mut self,
        now: Instant,
        open: WaitingOpen,
        mac: Mac,
        log: &mut impl Log,
    ) {
        let WaitingOpen {
            request_id,
            local,
            remote,
        } = open;
        let address = local.address;
        let source = match address.is_unspecified() {
            true => self.host.site.source(remote.address),
            false => Some(address).filter(|address| self.host.site.takes(*address)),
        };
        let Some(source) = source else {
            let failed = match address.is_unspecified() {
                true => UNREACHABLE,
                // It was ours when the application asked.
                false => OpenResult::Failed(SocketError::NotOurs),
            };
            return self.world.complete_open(request_id, failed);
        };
        let local = Endpoint::new(source, local.port);
        let settings = self.world.settings_of_open(request_id);
        let body = Body::Open {
            request_id,
            settings,
            local,
            remote,
            mac,
        };
        self.publish_command(now, body, log);
    }

    /// Publishes the application's progress on `conn`: its cursors, changes of options, and the
    /// end.
    pub(super) fn progress(&mut self, now: Instant, conn: ConnId, log: &mut impl Log) {
        self.after_reading(now, conn);
        let Some(stream) = self.world.streams.get(conn) else {
            return;
        };
        let (app_read, mut app_written, asked) = stream.progress();
        if self.connections.lingering.contains(&conn) {
            if asked.orphan {
                self.connections.lingering.remove(&conn);
                self.free(now, conn, log);
            }
            return;
        }
        if asked.set {
            // A change that waits for plaintext to be sealed is published when sealing raises the
            // flag again.
            match self.publish_changes(now, (conn, app_read), log) {
                Some(written) => app_written = app_written.max(written),
                // The rest is published in a later turn.
                None => return,
            }
        }
        let body = if asked.abort {
            Body::Abort { conn }
        } else {
            Body::Progress {
                conn,
                app_read,
                app_written,
                shutdown: asked.shutdown,
                orphan: asked.orphan,
            }
        };
        self.publish_command(now, body, log);
    }

    /// Publishes the changed options of a connection: each after the bytes that were written before
    /// it, once these are sealed. Returns how many bytes were written before the last change, or 0;
    /// `None` if the log has no room for all, or an application thread holds the options.
    #[cold]
    fn publish_changes(
        &mut self,
        now: Instant,
        (conn, app_read): (ConnId, u64),
        log: &mut impl Log,
    ) -> Option<u64> {
        let mut last = 0;
        loop {
            let stream = self.world.streams.get(conn)?;
            let has_room = log.room() > ROOM_OF_CHANGE;
            let Some(Ok(change)) = has_room.then(|| stream.next_change()) else {
                self.world.raise(&stream);
                return None;
            };
            let Some(change) = change else {
                return Some(last);
            };
            let Change {
                settings,
                tuning,
                more: waits,
                push,
                written: app_written,
            } = change;
            last = app_written;
            let progress = Body::Progress {
                conn,
                app_read,
                app_written,
                shutdown: false,
                orphan: false,
            };
            let tune = Body::Tune {
                conn,
                tuning,
                more: waits,
                push,
            };
            self.publish_command(now, progress, log);
            self.publish_command(now, Body::Set { conn, settings }, log);
            self.publish_command(now, tune, log);
        }
    }
}
