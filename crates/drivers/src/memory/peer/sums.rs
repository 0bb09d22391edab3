//! Precomputed checksums of a periodic stream.

/// Sums of all prefixes of a stream's period. Two of them give the sum of any range of the stream.
#[derive(Debug)]
pub(super) struct Sums {
    /// The sums of the first 0, 1, 2, ... bytes of the period.
    sums: Vec<u16>,
}

/// The sum in one's complement (RFC 1071 section 1).
#[inline]
fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    // After a carry the sum is below 0xffff.
    sum + u16::from(carry)
}

impl Sums {
    /// The sums of a stream with this period, which must not be empty.
    pub(super) fn new(period: &[u8]) -> Sums {
        let mut sums = Vec::with_capacity(period.len() + 1);
        let mut sum = 0;
        sums.push(sum);
        for (i, byte) in period.iter().enumerate() {
            let word = u16::from(*byte);
            sum = add(sum, if i % 2 == 0 { word << 8 } else { word });
            sums.push(sum);
        }
        Sums { sums }
    }

    /// The sum of `len` bytes from `offset` of the stream on, as 16-bit words in network order
    /// that begin at `offset`.
    pub(super) fn of(&self, offset: u64, len: usize) -> u16 {
        let period = self.sums.len() - 1;
        let mut from = (offset % period as u64) as usize;
        let (mut sum, mut done) = (0, 0);
        while done < len {
            let to = period.min(from + (len - done));
            let part = add(self.sums[to], !self.sums[from]);
            // Words of the period begin at its even offsets; words of the range begin at even
            // offsets of the range.
            let swapped = (from ^ done) % 2 == 1;
            sum = add(sum, if swapped { part.swap_bytes() } else { part });
            done += to - from;
            from = 0;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_any_stretch_is_that_of_its_bytes() {
        for period in [1, 2, 3, 8, 13] {
            let bytes: Vec<u8> = (0..period).map(|i| (i * 91 + 200) as u8).collect();
            let sums = Sums::new(&bytes);
            for offset in 0..2 * period {
                for len in 0..3 * period + 1 {
                    let stretch = bytes.iter().cycle().skip(offset).take(len);
                    let naive = stretch.enumerate().fold(0, |sum, (i, byte)| {
                        add(sum, u16::from(*byte) << if i % 2 == 0 { 8 } else { 0 })
                    });
                    // Both 0 and 0xffff represent zero.
                    let known = sums.of(offset as u64, len);
                    assert_eq!(known % 0xffff, naive % 0xffff, "{period} {offset} {len}");
                }
            }
        }
    }
}
