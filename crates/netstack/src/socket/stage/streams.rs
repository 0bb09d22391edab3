//! The interface that all streams of units have.

/// The methods and traits of a stream over a stage and of its halves. `$ends` lists the additional
/// errors with which reading ends.
macro_rules! stream_of_units {
    ($stream:ident, $read:ident, $write:ident, $codec:ty, $error:ident, $ends:literal) => {
        impl $stream {
            fn over(stage: &std::sync::Arc<Stage<$codec>>, reader: Reader<$codec>) -> $stream {
                let shared = std::sync::Arc::new(Shared(std::sync::Arc::clone(stage)));
                $stream {
                    watched: Watched::default(),
                    writer: $write {
                        watched: Watched::default(),
                        shared: std::sync::Arc::clone(&shared),
                    },
                    reader: $read {
                        watched: Watched::default(),
                        shared,
                        reader,
                    },
                }
            }

            fn stage(&self) -> &std::sync::Arc<Stage<$codec>> {
                &self.reader.shared.0
            }

            /// The two halves, for two threads.
            pub fn split(self) -> ($read, $write) {
                (self.reader, self.writer)
            }

            /// Both halves by reference.
            pub fn halves(&mut self) -> (&mut $read, &mut $write) {
                (&mut self.reader, &mut self.writer)
            }

            /// The connection below: options, information, shutdown.
            pub fn get_ref(&self) -> TcpView<'_> {
                self.stage().view()
            }

            /// Our end.
            pub fn local_addr(&self) -> core::net::SocketAddr {
                self.stage().half.flow.local.into()
            }

            /// The peer's end.
            pub fn peer_addr(&self) -> core::net::SocketAddr {
                self.stage().half.flow.remote.into()
            }

            /// The connection's identifier within its group.
            pub fn conn(&self) -> ConnId {
                let stream = self.stage().half.stream();
                stream.map_or(ConnId::NONE, |stream| stream.conn())
            }

            /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: as
            /// the stream below.
            pub fn set_nonblocking(&self, nonblocking: bool) {
                let half = &self.stage().half;
                half.read_wait.set_nonblocking(nonblocking);
                half.write_wait.set_nonblocking(nonblocking);
            }

            /// How long a read waits at most before it returns [`SocketError::WouldBlock`].
            /// Default: as the stream below.
            ///
            /// # Errors
            /// [`SocketError::Invalid`] if it is zero.
            pub fn set_read_timeout(
                &self,
                timeout: Option<core::time::Duration>,
            ) -> Result<(), SocketError> {
                self.stage().half.read_wait.set_timeout(timeout)
            }

            /// How long a write waits at most, likewise.
            ///
            /// # Errors
            /// [`SocketError::Invalid`] if it is zero.
            pub fn set_write_timeout(
                &self,
                timeout: Option<core::time::Duration>,
            ) -> Result<(), SocketError> {
                self.stage().half.write_wait.set_timeout(timeout)
            }

            #[doc = concat!("As [`", stringify!($write), "::shutdown`].")]
            pub fn shutdown_write(&mut self) {
                self.writer.shutdown();
            }

            #[doc = concat!("As [`", stringify!($read), "::try_read`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($read), "::try_read`].")]
            pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, $error> {
                self.reader.try_read(into)
            }

            #[doc = concat!("As [`", stringify!($write), "::try_write`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($write), "::try_write`].")]
            pub fn try_write(&mut self, from: &[u8]) -> Result<usize, $error> {
                self.writer.try_write(from)
            }

            #[doc = concat!("As [`", stringify!($write), "::shutdown`]; waits until the peer has")]
            /// everything, or the connection is over for another reason.
            ///
            /// # Errors
            /// [`SocketError::WouldBlock`] after `timeout`: written bytes are still sent.
            pub fn close_within(mut self, timeout: core::time::Duration) -> Result<(), $error> {
                self.shutdown_write();
                let until = WaitUntil::after(timeout);
                self.writer.shared.0.half.await_end(until)?;
                Ok(())
            }
        }

        impl $read {
            #[doc = concat!("As [`", stringify!($stream), "::get_ref`].")]
            pub fn get_ref(&self) -> TcpView<'_> {
                self.shared.0.view()
            }

            /// Processed and unread bytes of one unit, in place; empty at the end of the stream.
            ///
            /// # Errors
            /// [`SocketError::WouldBlock`] if there is none yet, or how the connection ended.
            #[doc = $ends]
            pub fn try_fill(&mut self) -> Result<&[u8], $error> {
                self.reader.fill()?;
                Ok(self.reader.text())
            }

            /// Consumes the first `len` bytes that [`Self::try_fill`] returned.
            ///
            /// # Panics
            /// If `len` exceeds those bytes.
            pub fn consume(&mut self, len: usize) {
                self.reader.consume(len);
            }

            /// Copies processed and unread bytes of one unit; 0 at the end of the stream, or if
            /// `into` is empty.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($read), "::try_fill`].")]
            pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, $error> {
                self.reader.read(into)
            }

            /// Ends reading: from now on reads return the end of the stream.
            pub fn shutdown(&mut self) {
                self.shared.0.half.shut_read();
            }
        }

        impl $write {
            #[doc = concat!("As [`", stringify!($stream), "::get_ref`].")]
            pub fn get_ref(&self) -> TcpView<'_> {
                self.shared.0.view()
            }

            /// Writes as much as there is room for, at least one byte.
            ///
            /// # Errors
            /// [`SocketError::WouldBlock`] if there is no room, [`SocketError::ShutDown`], the
            /// error with which reading ended the connection, or how it ended.
            pub fn try_write(&mut self, from: &[u8]) -> Result<usize, $error> {
                self.shared.0.write(from)
            }

            /// Ends writing: the peer reads the end of the stream after all written bytes.
            pub fn shutdown(&mut self) {
                self.shared.0.end(None);
            }
        }

        impl std::io::Read for $read {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                if into.is_empty() {
                    return Ok(0);
                }
                self.reader.wait()?;
                Ok(self.reader.read(into)?)
            }
        }

        impl std::io::BufRead for $read {
            fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
                self.reader.wait()?;
                Ok(self.reader.text())
            }

            fn consume(&mut self, len: usize) {
                self.reader.consume(len);
            }
        }

        impl std::io::Write for $write {
            fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
                Ok(self.shared.0.write_waiting(from)?)
            }

            /// Returns at once: written bytes are sent without a flush.
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        impl std::io::Read for $stream {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                self.reader.read(into)
            }
        }

        impl std::io::BufRead for $stream {
            fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
                self.reader.fill_buf()
            }

            fn consume(&mut self, len: usize) {
                self.reader.consume(len);
            }
        }

        impl std::io::Write for $stream {
            fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
                self.writer.write(from)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                self.writer.flush()
            }
        }

        stream_of_units!(@debug $read, $write);
        stream_of_units!(@source
            $stream: this => this.stage(), BOTH;
            $read: this => &this.shared.0, READABLE;
            $write: this => &this.shared.0, WRITABLE;
        );
    };
    (@source $($source:ident: $this:ident => $stage:expr, $can:ident;)*) => {$(
        impl Sealed for $source {
            fn registered(&self) -> Registered<'_> {
                let $this = self;
                Registered::new($stage.target(Interest::$can), &self.watched)
            }
        }
    )*};
    (@debug $($half:ident),*) => {$(
        impl core::fmt::Debug for $half {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut shown = f.debug_struct(stringify!($half));
                shown.field("stage", &self.shared.0).finish_non_exhaustive()
            }
        }
    )*};
}

pub(in crate::socket) use stream_of_units;
