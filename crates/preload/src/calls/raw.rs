//! `syscall`: libuv, for example, uses it where libc has a function, too.

use core::ffi::c_long;

use super::{bytes, descriptors, interpose, messages, open};
use crate::table;

interpose! {
    /// Variadic in C, with up to six words after the number.
    fn syscall(
        number: c_long,
        a: c_long,
        b: c_long,
        c: c_long,
        d: c_long,
        e: c_long,
        f: c_long,
    ) -> c_long |next| {
        /// Calls a function with the words that this call has.
        macro_rules! call {
            ($function:path, $($word:ident)*) => { $function($($word as _),*) as c_long };
        }
        if number == libc::SYS_futex || table::socket(a as i32).is_none() {
            return next(number, a, b, c, d, e, f);
        }
        match number {
            libc::SYS_read => call!(bytes::read, a b c),
            libc::SYS_write => call!(bytes::write, a b c),
            libc::SYS_readv => call!(bytes::readv, a b c),
            libc::SYS_writev => call!(bytes::writev, a b c),
            libc::SYS_recvfrom => call!(bytes::recvfrom, a b c d e f),
            libc::SYS_sendto => call!(bytes::sendto, a b c d e f),
            libc::SYS_recvmsg => call!(messages::recvmsg, a b c),
            libc::SYS_sendmsg => call!(messages::sendmsg, a b c),
            libc::SYS_recvmmsg => call!(messages::recvmmsg, a b c d e),
            libc::SYS_sendmmsg => call!(messages::sendmmsg, a b c d),
            libc::SYS_connect => call!(open::connect, a b c),
            libc::SYS_accept4 => call!(open::accept4, a b c d),
            libc::SYS_shutdown => call!(open::shutdown, a b),
            libc::SYS_close => call!(descriptors::close, a),
            _ => next(number, a, b, c, d, e, f),
        }
    }
}
