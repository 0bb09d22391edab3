//! The list of all fields of a connection, in one place.
//!
//! A type lists its fields with `fields!`, and the compiler rejects a list that omits one. The
//! fingerprint, the name of the first field that differs, and (for tests) the flip of any bit
//! are derived from the list. So no field can be corrupted without changing the fingerprint.

use core::num::NonZero;
use std::collections::VecDeque;

use crate::config::{CongestionControl, Keepalive, Settings, Tuning};
use crate::log::effect::CommonHeaders;
#[cfg(any(test, feature = "testkit"))]
use crate::log::request::Address;
use crate::log::request::{ConnId, Endpoint, Flow, IpFields, Mac};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

use super::receive_space::AckContents;

/// A value made of named numbers.
pub trait Fields {
    /// Calls `each` with the names and values of all parts, in a fixed order. Two different
    /// values differ in one of these parts, or in their number. `name` is the name of this
    /// value in its owner.
    fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64));

    /// Offers the bits of the value, in the same order, to `flip`, which may change one of
    /// them. The result is a value of the type, but often one that no connection could have.
    #[cfg(any(test, feature = "testkit"))]
    fn flip(&mut self, name: &'static str, flip: &mut Flip);
}

/// A fingerprint, which almost certainly differs if any part differs.
#[inline]
pub fn fingerprint(what: &impl Fields) -> u64 {
    let mut h = 0;
    what.visit("", &mut |_, value| h = fold(h, value));
    h
}

/// The name of the first part in which two values differ.
pub fn first_difference<T: Fields>(a: &T, b: &T) -> Option<&'static str> {
    let (ours, theirs) = (parts(a), parts(b));
    let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    let (name, _) = theirs.get(same).or(ours.get(same))?;
    Some(name)
}

/// All parts of a value with their names.
#[cold]
fn parts<T: Fields>(what: &T) -> Vec<(&'static str, u64)> {
    /// One instance of the code, instead of one per part.
    #[inline(never)]
    fn push(parts: &mut Vec<(&'static str, u64)>, name: &'static str, value: u64) {
        parts.push((name, value));
    }

    let mut parts = Vec::new();
    what.visit("", &mut |name, value| push(&mut parts, name, value));
    parts
}

/// One step of a fixed integer hash. It is one-to-one in both arguments, so a difference in a
/// single part changes the result.
const fn fold(h: u64, value: u64) -> u64 {
    (h.rotate_left(26) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A flip of one bit, which counts bits until it finds its own.
#[cfg(any(test, feature = "testkit"))]
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    /// Bits before the one to flip.
    left: u32,
    /// The field that contained it.
    hit: Option<&'static str>,
}

#[cfg(any(test, feature = "testkit"))]
impl Flip {
    /// A flip of the bit with this number.
    pub const fn new(bit: u32) -> Self {
        Flip {
            left: bit,
            hit: None,
        }
    }

    /// The field whose bit was flipped; `None` before the flip.
    pub const fn hit(&self) -> Option<&'static str> {
        self.hit
    }

    /// How many bits `what` has now.
    pub fn bits<T: Fields + Clone>(what: &T) -> u32 {
        let mut past = Flip::new(u32::MAX);
        what.clone().flip("", &mut past);
        u32::MAX - past.left
    }

    /// The bit to flip in the next field, `width` bits wide; `None` if it is in another.
    pub fn within(&mut self, name: &'static str, width: u32) -> Option<u32> {
        if self.hit.is_some() {
            return None;
        }
        if self.left < width {
            self.hit = Some(name);
            return Some(self.left);
        }
        self.left -= width;
        None
    }
}

/// Lists the fields of a struct. Plain fields are named `prefix.field`; fields that are structs
/// name their own.
macro_rules! fields {
    ($type:ty, $prefix:literal, { $($field:ident),* $(,)? }) => {
        impl $crate::tcp::fields::Fields for $type {
            #[inline(always)]
            fn visit(&self, _: &'static str, each: &mut impl FnMut(&'static str, u64)) {
                let Self { $($field),* } = self;
                $($crate::tcp::fields::Fields::visit(
                    $field,
                    concat!($prefix, ".", stringify!($field)),
                    each,
                );)*
            }

            #[cfg(any(test, feature = "testkit"))]
            fn flip(&mut self, _: &'static str, flip: &mut $crate::tcp::fields::Flip) {
                let Self { $($field),* } = self;
                $($crate::tcp::fields::Fields::flip(
                    $field,
                    concat!($prefix, ".", stringify!($field)),
                    flip,
                );)*
            }
        }
    };
}
pub(crate) use fields;

/// Lists the variants of an enum without fields, in order, or takes its list `ALL`. A flipped
/// bit turns a variant into another.
macro_rules! field_variants {
    ($type:ident { $($variant:ident),* $(,)? }) => {
        // A missing variant is a compile error.
        const _: fn(&$type) = |variant| match variant {
            $($type::$variant)|* => {}
        };
        $crate::tcp::fields::field_variants!($type in [$($type::$variant),*]);
    };
    ($type:ident in $all:expr) => {
        impl $crate::tcp::fields::Fields for $type {
            #[inline(always)]
            fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
                each(name, *self as u64);
            }

            #[cfg(any(test, feature = "testkit"))]
            fn flip(&mut self, name: &'static str, flip: &mut $crate::tcp::fields::Flip) {
                const ALL: &[$type] = &$all;
                let width = ALL.len().next_power_of_two().trailing_zeros();
                if let Some(bit) = flip.within(name, width) {
                    let is = *self as usize;
                    // If the new pattern is no variant, takes the next variant.
                    let other = Some(is ^ 1 << bit).filter(|other| *other < ALL.len());
                    *self = ALL[other.unwrap_or((is + 1) % ALL.len())];
                }
            }
        }
    };
}
pub(crate) use field_variants;

/// A field that is one number: its width in bits, and the conversions from and to a number.
macro_rules! plain {
    ($($type:ty, $width:literal, $of:expr, $from:expr;)*) => {$(
        impl Fields for $type {
            #[inline(always)]
            fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
                let of: fn($type) -> u64 = $of;
                each(name, of(*self));
            }

            #[cfg(any(test, feature = "testkit"))]
            fn flip(&mut self, name: &'static str, flip: &mut Flip) {
                let of: fn($type) -> u64 = $of;
                let from: fn(u64) -> $type = $from;
                if let Some(bit) = flip.within(name, $width) {
                    *self = from(of(*self) ^ 1 << bit);
                }
            }
        }
    )*};
}

plain! {
    bool, 1, u64::from, |bits| bits & 1 != 0;
    u8, 8, u64::from, |bits| bits as u8;
    u16, 16, u64::from, |bits| bits as u16;
    u32, 32, u64::from, |bits| bits as u32;
    u64, 64, |value| value, |bits| bits;
    SeqNum, 32, |seq| u64::from(seq.0), |bits| SeqNum(bits as u32);
    Instant, 64, Instant::as_nanos, Instant::from_nanos;
    Duration, 64, Duration::as_nanos, Duration::from_nanos;
    AckContents, 8, |tells| u64::from(tells.0), |bits| AckContents(bits as u8);
    // Zero is not a valid value: the largest replaces it.
    NonZero<u8>, 8, |some| u64::from(some.get()), |bits| NonZero::new(bits as u8).unwrap_or(NonZero::<u8>::MAX);
    (SeqNum, SeqNum), 64, |(a, b)| u64::from(a.0) << 32 | u64::from(b.0), |bits| (SeqNum((bits >> 32) as u32), SeqNum(bits as u32));
    (u16, SeqNum), 48, |(a, b)| u64::from(a) << 32 | u64::from(b.0), |bits| ((bits >> 32) as u16, SeqNum(bits as u32));
    Mac, 48, |mac| {
        let [a, b, c, d, e, f] = mac.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }, |bits| {
        let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
        Mac([a, b, c, d, e, f])
    };
}

impl Fields for Endpoint {
    /// An IPv4 address and its port are one number; an IPv6 address adds two words.
    #[inline(always)]
    fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
        let Endpoint { address, port } = self;
        if address.is_v4() {
            return each(name, u64::from(address.v4_bits()) << 16 | u64::from(*port));
        }
        for word in address.words() {
            each(name, word);
        }
        each(name, u64::from(*port));
    }

    #[cfg(any(test, feature = "testkit"))]
    fn flip(&mut self, name: &'static str, flip: &mut Flip) {
        if let Some(bit) = flip.within(name, 128) {
            self.address = Address::v6((self.address.bits() ^ 1 << bit).to_be_bytes());
        }
        self.port.flip(name, flip);
    }
}

impl Fields for (u64, u64) {
    #[inline(always)]
    fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
        each(name, self.0);
        each(name, self.1);
    }

    #[cfg(any(test, feature = "testkit"))]
    fn flip(&mut self, name: &'static str, flip: &mut Flip) {
        self.0.flip(name, flip);
        self.1.flip(name, flip);
    }
}

impl<T: Fields, const N: usize> Fields for [T; N] {
    #[inline(always)]
    fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
        for part in self {
            part.visit(name, each);
        }
    }

    #[cfg(any(test, feature = "testkit"))]
    fn flip(&mut self, name: &'static str, flip: &mut Flip) {
        for part in self {
            part.flip(name, flip);
        }
    }
}

impl<T: Fields + Default> Fields for Option<T> {
    #[inline(always)]
    fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
        each(name, u64::from(self.is_some()));
        if let Some(value) = self {
            value.visit(name, each);
        }
    }

    #[cfg(any(test, feature = "testkit"))]
    fn flip(&mut self, name: &'static str, flip: &mut Flip) {
        if flip.within(name, 1).is_some() {
            *self = match self {
                Some(_) => None,
                None => Some(T::default()),
            };
        } else if let Some(value) = self {
            value.flip(name, flip);
        }
    }
}

impl<T: Fields> Fields for Box<T> {
    #[inline(always)]
    fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
        (**self).visit(name, each);
    }

    #[cfg(any(test, feature = "testkit"))]
    fn flip(&mut self, name: &'static str, flip: &mut Flip) {
        (**self).flip(name, flip);
    }
}

/// Collections: their length, which two bits change by one, and their elements.
macro_rules! collections {
    ($($type:ident, $last:ident, $push:ident, $pop:ident;)*) => {$(
        impl<T: Fields + Clone + Default> Fields for $type<T> {
            #[inline(always)]
            fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
                each(name, self.len() as u64);
                for part in self {
                    part.visit(name, each);
                }
            }

            #[cfg(any(test, feature = "testkit"))]
            fn flip(&mut self, name: &'static str, flip: &mut Flip) {
                match flip.within(name, 2) {
                    Some(0) if !self.is_empty() => {
                        self.$pop();
                    }
                    Some(_) => {
                        let another = self.$last().cloned().unwrap_or_default();
                        self.$push(another);
                    }
                    None => {
                        for part in self {
                            part.flip(name, flip);
                        }
                    }
                }
            }
        }
    )*};
}

collections! {
    Vec, last, push, pop;
    VecDeque, back, push_back, pop_back;
}

fields!(ConnId, "conn", { index, generation });
fields!(CommonHeaders, "common", { conn, version, ip, mac, flow });
fields!(Flow, "flow", { local, remote });
fields!(IpFields, "ip", { ttl, tos });
fields!(Settings, "settings", { nodelay, keepalive, user_timeout, ttl, tos });
fields!(Tuning, "tuning", { cork, congestion, max_segment, receive_buffer, notsent_lowat, linger });
field_variants!(CongestionControl in CongestionControl::ALL);
fields!(Keepalive, "settings.keepalive", { idle, interval, probes });

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Some3 {
        flag: bool,
        numbers: Vec<u16>,
        maybe: Option<SeqNum>,
    }
    fields!(Some3, "three", { flag, numbers, maybe });

    fn values(what: &impl Fields) -> Vec<(&'static str, u64)> {
        let mut values = Vec::new();
        what.visit("", &mut |name, value| values.push((name, value)));
        values
    }

    #[test]
    fn every_bit_can_be_flipped_and_every_flip_is_seen() {
        let three = Some3 {
            flag: true,
            numbers: vec![7, 9],
            maybe: None,
        };
        let bits = Flip::bits(&three);
        assert_eq!(bits, 1 + (2 + 2 * 16) + 1);
        for bit in 0..bits {
            let mut other = three.clone();
            let mut flip = Flip::new(bit);
            other.flip("", &mut flip);
            assert!(flip.hit().is_some(), "bit {bit}");
            assert_ne!(values(&other), values(&three), "bit {bit}: {other:?}");
        }
        let mut same = three.clone();
        let mut flip = Flip::new(bits);
        same.flip("", &mut flip);
        assert_eq!((flip.hit(), same), (None, three));
    }

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Nested {
        pair: (u64, u64),
        few: [u16; 2],
        far: Option<Box<bool>>,
        three: Some3,
    }
    fields!(Nested, "nested", { pair, few, far, three });

    #[test]
    fn a_change_of_any_bit_changes_the_fingerprint_and_is_found_by_the_name_of_its_field() {
        let nested = Nested {
            far: Some(Box::new(true)),
            ..Nested::default()
        };
        let mut names = Vec::new();
        for bit in 0..Flip::bits(&nested) {
            let mut other = nested.clone();
            let mut flip = Flip::new(bit);
            other.flip("", &mut flip);
            assert_ne!(fingerprint(&other), fingerprint(&nested), "bit {bit}");
            assert_eq!(first_difference(&nested, &other), flip.hit());
            names.extend(flip.hit());
        }
        let count = |name| names.iter().filter(|is| **is == name).count();
        assert_eq!((count("nested.pair"), count("nested.few")), (128, 32));
        assert!(count("nested.far") > 1 && count("three.flag") == 1);
        assert_eq!(fingerprint(&nested.clone()), fingerprint(&nested));
        assert_eq!(first_difference(&nested.clone(), &nested), None);
    }

    #[test]
    fn a_step_of_the_hash_loses_no_bit_of_either_argument() {
        for start in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
            for bit in 0..64 {
                let other = start ^ 1 << bit;
                for same in [0, u64::MAX] {
                    assert_ne!(fold(start, same), fold(other, same), "bit {bit}");
                    assert_ne!(fold(same, start), fold(same, other), "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn what_is_nothing_can_become_something() {
        let mut empty = Some3::default();
        empty.flip("", &mut Flip::new(1));
        empty.flip("", &mut Flip::new(1 + 2 + 16));
        assert_eq!(empty.numbers, [0]);
        assert_eq!(empty.maybe, Some(SeqNum(0)));
    }
}
