//! The calls of the application (RFC 9293 section 3.10): OPEN, SEND and RECEIVE as advancing
//! cursors, CLOSE, ABORT.

use super::congestion::Congestion;
use super::fast_path::{FastPath, NO_BITS};
use super::keepalive::KeepaliveTimer;
use super::pmtu::PathMtu;
use super::reassembly::Reassembly;
use super::receive_space::{Autotune, ReceiveSpace};
use super::recovery::Recovery;
use super::retransmit::{Retransmit, Timer, Timers};
use super::scoreboard::Scoreboard;
use super::send_space::SendSpace;
use super::undo::Undo;
use super::{Challenges, Counted, Cx, State, Tcb};
use crate::config::{Limits, Settings, Tuning};
use crate::log::effect::{CommonHeaders, ConnectionEvent, EffectSink};
use crate::log::request::{ConnId, Flow, IpFields, Mac, Segment};
use crate::seqnum::SeqNum;
use crate::time::Instant;

impl Tcb {
    /// Active OPEN (section 3.10.1): SYN-SENT. The SYN leaves in [`Tcb::finish`].
    pub fn open(
        conn: ConnId,
        flow: Flow,
        mac: Mac,
        iss: SeqNum,
        limits: &Limits,
        now: Instant,
    ) -> Tcb {
        Tcb {
            rcv: ReceiveSpace::new(limits),
            snd: SendSpace::new(iss, super::mss_for(&flow, limits), now),
            state: State::SynSent,
            fast_path: FastPath::Off,
            orphan: false,
            passive: false,
            counted: Counted::Opening,
            expected_bits: NO_BITS,
            common: CommonHeaders {
                conn,
                version: 0,
                ip: IpFields::DEFAULT,
                mac,
                flow,
            },
            timers: Timers::new(),
            congestion: Congestion::new(iss, limits.tcp.congestion),
            retransmit: Retransmit::new(),
            scoreboard: Scoreboard::new(),
            recovery: Recovery::new(iss),
            undo: Undo::new(iss),
            challenges: Challenges::default(),
            settings: Settings::default(),
            tuning: Tuning::default(),
            keepalive: KeepaliveTimer::default(),
            autotune: Autotune::default(),
            pmtu: PathMtu::new(),
            reassembly: Reassembly::new(),
        }
    }

    /// `syn` arrived for a listening port (section 3.10.7.2): [`Tcb::finish`] sends the SYN-ACK.
    pub fn passive(
        conn: ConnId,
        flow: Flow,
        mac: Mac,
        iss: SeqNum,
        syn: &Segment<'_>,
        limits: &Limits,
        now: Instant,
    ) -> Tcb {
        let mut tcb = Tcb::open(conn, flow, mac, iss, limits, now);
        tcb.passive = true;
        tcb.state = State::SynReceived;
        tcb.synchronize(syn, limits, now);
        tcb
    }

    /// SEND and RECEIVE (sections 3.10.2 and 3.10.3): the application has read and written up
    /// to these offsets of its streams. Cursors never move backwards; older values are ignored.
    #[inline]
    pub fn progress<S: EffectSink>(&mut self, app_read: u64, app_written: u64, cx: &mut Cx<'_, S>) {
        if app_read > self.rcv.read {
            self.on_read(app_read, cx);
        }
        if app_written > self.snd.written {
            self.on_written(app_written, cx.limits);
        }
    }

    /// [`Tcb::progress`] from the low halves of the cursors.
    #[inline(always)]
    pub fn progress_low<S: EffectSink>(
        &mut self,
        app_read: u32,
        app_written: u32,
        cx: &mut Cx<'_, S>,
    ) {
        // Mostly, a segment finds one of them where it was.
        if app_read != self.rcv.read as u32 {
            let read = app_read.wrapping_sub(self.rcv.read as u32);
            if (read as i32) > 0 {
                self.on_read(self.rcv.read + u64::from(read), cx);
            }
        }
        if app_written != self.snd.written as u32 {
            let written = app_written.wrapping_sub(self.snd.written as u32);
            if (written as i32) > 0 {
                self.on_written(self.snd.written + u64::from(written), cx.limits);
            }
        }
    }

    /// The application has written up to `app_written`, at most what the send ring holds.
    #[inline]
    fn on_written(&mut self, app_written: u64, limits: &Limits) {
        let snd = &mut self.snd;
        if snd.fin || self.state == State::Closed {
            return;
        }
        let most = snd.una_offset + u64::from(limits.send_buffer);
        let app_written = app_written.min(most);
        if app_written > snd.written {
            self.end_quiet();
            let snd = &mut self.snd;
            snd.end += (app_written - snd.written) as u32;
            snd.written = app_written;
        }
    }

    /// Changes the settings. [`Tcb::finish`] sends data that only the old ones delayed.
    pub fn set<S: EffectSink>(&mut self, settings: Settings, cx: &mut Cx<'_, S>) {
        if matches!(self.state, State::Closed | State::TimeWait) {
            return;
        }
        let before = core::mem::replace(&mut self.settings, settings);
        self.snd.nodelay = settings.nodelay;
        self.common.ip = settings.ip();
        self.common.version = self.common.version.wrapping_add(1);
        if settings.keepalive != before.keepalive {
            self.begin_keepalive(cx);
        }
        if settings.user_timeout != before.user_timeout {
            self.timers.stop(Timer::User);
            if self.retransmit.retries > 0 {
                self.start_user_timeout(cx);
            }
        }
    }

    /// The application tuned the connection. `more`: the newest data waits for more, as if
    /// corked. `push`: the data written so far does not wait.
    pub fn tune<S: EffectSink>(
        &mut self,
        tuning: Tuning,
        (more, push): (bool, bool),
        cx: &mut Cx<'_, S>,
    ) {
        if matches!(self.state, State::Closed | State::TimeWait) {
            return;
        }
        let before = core::mem::replace(&mut self.tuning, tuning);
        self.close_fast_path();
        self.snd.cork = tuning.cork || more;
        if push {
            self.snd.pushed = self.snd.end;
        }
        if tuning.congestion != before.congestion {
            let control = tuning.congestion.unwrap_or(cx.limits.tcp.congestion);
            self.congestion.switch(control);
            if self.state.is_synchronized() {
                self.begin_pacing(cx.now);
            }
        }
        if tuning.max_segment != 0 {
            self.bound_segments(tuning.max_segment);
        }
        if tuning.receive_buffer != before.receive_buffer {
            self.bound_receive_window(cx.limits);
        }
        if tuning.notsent_lowat != before.notsent_lowat && self.state.is_synchronized() {
            self.tell_numbered(cx);
        }
    }

    /// CLOSE (section 3.10.4) of our side: FIN follows the written data. The peer may still send.
    pub fn shutdown<S: EffectSink>(&mut self, _cx: &mut Cx<'_, S>) {
        if self.snd.fin || self.state == State::Closed {
            return;
        }
        self.snd.fin = true;
        self.snd.end += 1;
        match self.state {
            State::Established => self.enter(State::FinWait1),
            State::CloseWait => self.enter(State::LastAck),
            // SYN-SENT and SYN-RECEIVED: queued until the handshake is complete.
            _ => {}
        }
    }

    /// The connection has lost its socket: our side is shut down, and received data has no
    /// reader. If some data was not read, an RST informs the peer (RFC 9293 section 3.6.1, RFC
    /// 2525 section 2.17).
    pub fn orphan<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.orphan || self.state == State::Closed {
            return;
        }
        self.orphan = true;
        self.close_fast_path();
        if self.state == State::SynSent {
            return self.enter(State::Closed);
        }
        let unread = self.rcv.offset > self.rcv.read || !self.reassembly.is_empty();
        if unread && self.state != State::TimeWait {
            return self.reset();
        }
        self.shutdown(cx);
        if let Some(linger) = self.tuning.linger {
            self.timers.start(Timer::Linger, cx.now + linger);
        }
        self.start_fin_wait_2_timer(cx);
    }

    /// ABORT (section 3.10.5): closes at once, with an RST if the peer knows the connection.
    pub fn abort<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        match self.state {
            State::Closed | State::Listen => return,
            State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait => self.reset(),
            State::SynSent | State::Closing | State::LastAck | State::TimeWait => {
                self.enter(State::Closed);
            }
        }
        self.notify(ConnectionEvent::Aborted, cx);
    }

    /// We lost our address: the connection ends without informing its peer, since no segment
    /// may be sent from that address any more (RFC 4862 section 5.5.4).
    pub fn lose_address<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if !matches!(self.state, State::Closed | State::Listen) {
            self.enter(State::Closed);
            self.notify(ConnectionEvent::AddressLost, cx);
        }
    }
}
