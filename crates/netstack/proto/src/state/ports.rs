//! Ephemeral ports, for connections and sockets that specify no port.

/// The first ephemeral port (RFC 6056 section 3.2 asks for a wide range).
pub const EPHEMERAL: u16 = 32_768;

/// All ephemeral ports, beginning with one that `start` selects.
pub fn ephemeral_from(start: u16) -> impl Iterator<Item = u16> {
    const COUNT: u16 = u16::MAX - EPHEMERAL + 1;
    (0..COUNT).map(move |i| EPHEMERAL + start.wrapping_add(i) % COUNT)
}
