//! A transport for `ureq`: a copy of its transport over std's sockets, with our types.

use std::fmt;
use std::io::{Read, Write};
use std::net::SocketAddr;

use dominoes_netstack::{Sockets, TcpStream};
use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

pub(crate) struct Ours(pub(crate) Sockets);

impl fmt::Debug for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ours")
    }
}

impl Connector<()> for Ours {
    type Out = Over;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<Over>, Error> {
        let to = details.addrs.iter().find_map(|address| match address {
            SocketAddr::V4(address) => Some(*address),
            SocketAddr::V6(_) => None,
        });
        let to = to.ok_or(Error::HostNotFound)?;
        let stream = self.0.connect(to).map_err(std::io::Error::from)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(Over { stream, buffers }))
    }
}

pub(crate) struct Over {
    stream: TcpStream,
    buffers: LazyBuffers,
}

impl fmt::Debug for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

impl Transport for Over {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.not_zero().map(|timeout| *timeout);
        self.stream.set_write_timeout(timeout)?;
        self.stream.write_all(&self.buffers.output()[..amount])?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = timeout.not_zero().map(|timeout| *timeout);
        self.stream.set_read_timeout(timeout)?;
        let len = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(len);
        Ok(len > 0)
    }

    fn is_open(&mut self) -> bool {
        use dominoes_netstack::SocketError;
        self.stream.try_read(&mut [0]) == Err(SocketError::WouldBlock)
    }
}
