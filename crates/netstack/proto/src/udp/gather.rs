//! Decides which datagrams leave in one frame, for a device that divides it.
//!
//! Several datagrams of one socket to one destination share a frame if they are adjacent in its
//! send ring, all have equal lengths except the last, which may be shorter, and none is empty
//! or longer than a packet on the path. The device makes a packet of each. The pump decides
//! this when it publishes them, so it is part of the log, and all replicas agree.

use crate::ip::fragment::Cut;
use crate::log::request::{Address, Lengths, MAX_DATAGRAMS, Merged};

/// Bytes of a UDP header.
const HEADER: u16 = 8;

/// The frames that a device can divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBounds {
    /// Maximum number of datagrams in a frame; 1 if the device divides none.
    pub datagrams: u16,
    /// Maximum packet length in the frame, in bytes; at least the length of an undivided packet.
    pub packet_len: u16,
}

/// Limits of a frame to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRoom {
    /// Maximum number of datagrams.
    datagrams: u16,
    /// Maximum payload bytes of one datagram.
    each: u16,
    /// Maximum payload bytes of all datagrams.
    all: u16,
}

impl FrameBounds {
    /// The bounds of a device that divides none.
    pub const NONE: FrameBounds = FrameBounds {
        datagrams: 1,
        packet_len: 0,
    };

    /// The limits for `destination`, where a packet has at most `mtu` bytes.
    pub fn to(self, destination: Address, mtu: u16) -> FrameRoom {
        let longest = |packet| Cut::new(destination, packet).longest_whole() - HEADER;
        FrameRoom {
            datagrams: self.datagrams,
            each: longest(mtu),
            all: longest(self.packet_len),
        }
    }
}

/// The lengths of the first datagrams that share a request, and their number of frames.
pub fn gather(mut lens: impl Iterator<Item = u16>, room: FrameRoom) -> (Lengths, u8) {
    let mut each = [0; MAX_DATAGRAMS];
    let mut count = 0;
    for len in lens.by_ref() {
        if count > 0 && room.begins_with(each[count - 1], len) {
            if count == 1 {
                return (Lengths::Merged(room.fill(each[0], len, lens)), 1);
            }
            // The last one begins a frame with others.
            count -= 1;
            each[count] = 0;
            break;
        }
        if count == MAX_DATAGRAMS {
            break;
        }
        each[count] = len;
        count += 1;
    }
    (Lengths::Each(each), count as u8)
}

impl FrameRoom {
    /// A separate frame for each datagram.
    pub const OF_ONE: FrameRoom = FrameRoom {
        datagrams: 1,
        each: 0,
        all: 0,
    };

    /// Whether these two may be the first in one frame.
    fn begins_with(self, first: u16, second: u16) -> bool {
        let both = u32::from(first) + u32::from(second);
        self.datagrams > 1
            && (1..=first).contains(&second)
            && first <= self.each
            && both <= self.all.into()
    }

    /// Adds as many as fit after the first two.
    fn fill(self, first: u16, second: u16, lens: impl Iterator<Item = u16>) -> Merged {
        let mut merged = Merged {
            len: first + second,
            size: first,
        };
        let mut last = second;
        for len in lens.take(usize::from(self.datagrams) - 2) {
            let fits = (1..=first).contains(&len) && len <= self.all - merged.len;
            if last < first || !fits {
                break;
            }
            merged.len += len;
            last = len;
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Address = Address::ipv4(10, 0, 0, 2);
    const V6: Address = Address::v6([0xfd; 16]);
    /// The limits of Linux.
    const LINUX: FrameBounds = FrameBounds {
        datagrams: 64,
        packet_len: 65_535,
    };

    fn gathered(bounds: FrameBounds, lens: &[u16]) -> (Lengths, u8) {
        gather(lens.iter().copied(), bounds.to(V4, 1500))
    }

    fn each(lens: &[u16]) -> (Lengths, u8) {
        let mut all = [0; MAX_DATAGRAMS];
        all[..lens.len()].copy_from_slice(lens);
        (Lengths::Each(all), lens.len() as u8)
    }

    fn merged(len: u16, size: u16) -> (Lengths, u8) {
        (Lengths::Merged(Merged { len, size }), 1)
    }

    #[test]
    fn equally_long_datagrams_share_a_frame_and_a_shorter_one_ends_it() {
        assert_eq!(gathered(LINUX, &[100, 100, 100]), merged(300, 100));
        assert_eq!(gathered(LINUX, &[100, 100, 99, 99]), merged(299, 100));
        assert_eq!(gathered(LINUX, &[100, 1, 1]), merged(101, 100));
        assert_eq!(gathered(LINUX, &[100, 100, 101]), merged(200, 100));
        assert_eq!(gathered(LINUX, &[100, 100, 0, 100]), merged(200, 100));
        assert_eq!(gathered(LINUX, &[1; 70]), merged(64, 1));
    }

    #[test]
    fn others_have_frames_of_their_own_up_to_two_that_share_one() {
        assert_eq!(gathered(LINUX, &[]), each(&[]));
        assert_eq!(gathered(LINUX, &[100]), each(&[100]));
        assert_eq!(gathered(LINUX, &[0, 0, 0]), each(&[0, 0, 0]));
        assert_eq!(gathered(LINUX, &[0, 7, 8, 8]), each(&[0, 7]));
        assert_eq!(gathered(LINUX, &[1, 2, 3, 2]), each(&[1, 2]));
        let ascending: Vec<u16> = (1..40).collect();
        assert_eq!(
            gathered(LINUX, &ascending),
            each(&ascending[..MAX_DATAGRAMS])
        );
        let mut equal_at_last = ascending[..MAX_DATAGRAMS].to_vec();
        equal_at_last.push(MAX_DATAGRAMS as u16);
        let before = &ascending[..MAX_DATAGRAMS - 1];
        assert_eq!(gathered(LINUX, &equal_at_last), each(before));
    }

    #[test]
    fn a_datagram_that_is_cut_for_its_path_shares_no_frame() {
        assert_eq!(gathered(LINUX, &[1472, 1472]), merged(2944, 1472));
        assert_eq!(gathered(LINUX, &[1473, 1473]), each(&[1473, 1473]));
        let gathered = |mtu, lens: [u16; 2]| gather(lens.into_iter(), LINUX.to(V6, mtu));
        assert_eq!(gathered(1500, [1452, 1452]), merged(2904, 1452));
        assert_eq!(gathered(1500, [1453, 1453]), each(&[1453, 1453]));
        // The minimum MTU of IPv6.
        assert_eq!(gathered(0, [1232, 9]), merged(1241, 1232));
    }

    #[test]
    fn no_frame_is_longer_than_the_device_takes() {
        // 45 datagrams and headers have 65,202 bytes.
        assert_eq!(gathered(LINUX, &[1448; 64]), merged(45 * 1448, 1448));
        let last = [[1448; 45].as_slice(), &[347]].concat();
        assert_eq!(gathered(LINUX, &last), merged(65_507, 1448));
        let last = [[1448; 45].as_slice(), &[348]].concat();
        assert_eq!(gathered(LINUX, &last), merged(45 * 1448, 1448));
        let short = FrameBounds {
            packet_len: 328,
            ..LINUX
        };
        assert_eq!(gathered(short, &[100; 5]), merged(300, 100));
        assert_eq!(gathered(short, &[151; 2]), each(&[151, 151]));
        // For IPv6, whose header is longer.
        let all = gather([1232; 64].into_iter(), LINUX.to(V6, 1280));
        assert_eq!(all, merged(53 * 1232, 1232));
        let packet = |datagrams: u16| 48 + u32::from(datagrams) * 1232;
        let longest = u32::from(LINUX.packet_len);
        assert!(packet(53) <= longest && longest < packet(54));
    }

    #[test]
    fn a_frame_has_no_more_datagrams_than_the_bounds_allow() {
        let with = |datagrams| FrameBounds { datagrams, ..LINUX };
        assert_eq!(gathered(with(2), &[9; 5]), merged(18, 9));
        assert_eq!(gathered(with(3), &[9; 5]), merged(27, 9));
        assert_eq!(gathered(with(1), &[9; 20]), each(&[9; MAX_DATAGRAMS]));
        assert_eq!(gathered(FrameBounds::NONE, &[9; 2]), each(&[9, 9]));
    }
}
