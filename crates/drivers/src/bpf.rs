//! Two programs for the kernel, written as instructions, so that no BPF compiler is needed.
//!
//! Registers and calls follow RFC 9669 (BPF Instruction Set Architecture): r1 holds the context,
//! r0 the result, r6 to r9 survive calls, r10 is the end of the stack.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const XDP_PASS: i32 = 2;
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

const CALL_SKB_LOAD_BYTES: i32 = 26;
const CALL_REDIRECT_MAP: i32 = 51;

const ETHERTYPE: i16 = 12;
/// Offsets of an IPv4 packet's destination and of an ARP message's target in a frame, in bytes.
const IPV4_DESTINATION: i16 = 30;
const ARP_TARGET: i16 = 38;
/// Offsets in an IPv6 frame: the next-header field and the destination; then, if there is no
/// extension header, the type of an ICMPv6 message and the target of a neighbor solicitation or
/// advertisement (RFC 4861 section 4.3).
const IPV6_NEXT: i16 = 20;
const IPV6_DESTINATION: i16 = 38;
const ICMPV6_TYPE: i16 = 54;
const NEIGHBOR_TARGET: i16 = 62;

// Operation codes (RFC 9669 section 3 to 5).
const MOV: u8 = 0xb7;
const MOV_REG: u8 = 0xbf;
const ADD: u8 = 0x07;
const LOAD_HALF: u8 = 0x69;
const LOAD_BYTE: u8 = 0x71;
const LOAD_WORD: u8 = 0x61;
const LOAD_IMMEDIATE_64: u8 = 0x18;
const JUMP: u8 = 0x05;
const JUMP_IF_GREATER_REG: u8 = 0x2d;
const JUMP_IF: u8 = 0x15;
const JUMP_IF_32: u8 = 0x16;
const JUMP_IF_NOT: u8 = 0x55;
const JUMP_IF_NOT_32: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The frames that are redirected to AF_XDP sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Redirect {
    /// Packets to these addresses (1 to 64), and ARP messages, neighbor solicitations and
    /// advertisements about them. The kernel keeps all others, and continues to serve its own
    /// addresses on the same interface.
    ///
    /// Multicast packets, including router advertisements, go to the kernel, unless their group is
    /// in the list; then the kernel does not get them. A stack that also uses a link-local address
    /// needs that address in the list. Addresses that a stack gets or loses at run time are added
    /// or removed.
    Addresses(Vec<IpAddr>),
    /// All frames.
    #[default]
    Everything,
}

impl Redirect {
    /// Most addresses in [`Redirect::Addresses`].
    pub(crate) const MAX_ADDRESSES: usize = 64;
}

/// The address in network byte order, as a program reads it from a frame.
fn in_network_order(address: Ipv4Addr) -> i32 {
    i32::from_ne_bytes(address.octets())
}

fn words(address: Ipv6Addr) -> [i32; 4] {
    let octets = address.octets();
    let (words, _) = octets.as_chunks::<4>();
    [0, 1, 2, 3].map(|word: usize| i32::from_ne_bytes(words[word]))
}

fn half_in_network_order(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// One instruction (`struct bpf_insn`) in native byte order.
fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    let [o0, o1] = offset.to_ne_bytes();
    let [i0, i1, i2, i3] = immediate.to_ne_bytes();
    u64::from_ne_bytes([code, registers, o0, o1, i0, i1, i2, i3])
}

/// A program under construction. Jumps go forward only, to labels that are placed later.
#[derive(Default)]
struct Assembler {
    code: Vec<u64>,
    jumps: Vec<(usize, &'static str)>,
}

impl Assembler {
    fn op(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> &mut Self {
        self.code
            .push(instruction(code, to, from, offset, immediate));
        self
    }

    fn jump(
        &mut self,
        code: u8,
        to: u8,
        from: u8,
        immediate: i32,
        place: &'static str,
    ) -> &mut Self {
        self.jumps.push((self.code.len(), place));
        self.op(code, to, from, 0, immediate)
    }

    /// Makes all pending jumps to `place` lead here.
    fn place(&mut self, place: &'static str) -> &mut Self {
        let here = self.code.len();
        let code = &mut self.code;
        self.jumps.retain(|&(at, name)| {
            if name == place {
                let mut bytes = code[at].to_ne_bytes();
                let offset = i16::try_from(here - at - 1).expect("a short program");
                bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
                code[at] = u64::from_ne_bytes(bytes);
            }
            name != place
        });
        self
    }

    /// Passes frames shorter than `len` bytes to the kernel. r2 is the frame's start, r3 its end.
    fn within(&mut self, len: i16) -> &mut Self {
        self.op(MOV_REG, 4, 2, 0, 0)
            .op(ADD, 4, 0, 0, len.into())
            .jump(JUMP_IF_GREATER_REG, 4, 3, 0, "pass")
    }

    /// Redirects a frame that has one of our IPv4 addresses at offset `at`, and passes others to
    /// the kernel.
    fn redirect_v4(&mut self, ours: &[IpAddr], at: i16) -> &mut Self {
        self.op(LOAD_WORD, 7, 2, at, 0);
        for address in ours {
            if let IpAddr::V4(address) = address {
                self.jump(JUMP_IF_32, 7, 0, in_network_order(*address), "redirect");
            }
        }
        self.jump(JUMP, 0, 0, 0, "pass")
    }

    /// Redirects a frame that has one of our IPv6 addresses at offset `at`; other frames reach the
    /// next instruction.
    fn redirect_v6(&mut self, ours: &[IpAddr], at: i16) -> &mut Self {
        for address in ours {
            if let IpAddr::V6(address) = address {
                for (number, word) in (0..).zip(words(*address)) {
                    self.op(LOAD_WORD, 7, 2, at + 4 * number, 0).jump(
                        JUMP_IF_NOT_32,
                        7,
                        0,
                        word,
                        "another",
                    );
                }
                self.jump(JUMP, 0, 0, 0, "redirect").place("another");
            }
        }
        self
    }

    fn finish(&mut self) -> Vec<u64> {
        assert!(self.jumps.is_empty(), "a jump to nowhere");
        std::mem::take(&mut self.code)
    }
}

/// An XDP program that redirects the selected frames to the socket of their queue in `map`, and
/// passes all others to the kernel.
pub(crate) fn redirect(what: &Redirect, map: i32) -> Vec<u64> {
    let mut program = Assembler::default();
    if matches!(what, Redirect::Addresses(ours) if ours.is_empty()) {
        // The kernel's verifier rejects programs with unreachable code.
        let pass = program.op(MOV, 0, 0, 0, XDP_PASS);
        return pass.op(EXIT, 0, 0, 0, 0).finish();
    }
    program.op(MOV_REG, 6, 1, 0, 0);
    if let Redirect::Addresses(ours) = what {
        program
            .op(LOAD_WORD, 2, 1, 0, 0) // r2: start of the frame
            .op(LOAD_WORD, 3, 1, 4, 0) // r3: its end
            .within(IPV4_DESTINATION + 4)
            .op(LOAD_HALF, 5, 2, ETHERTYPE, 0)
            .jump(JUMP_IF_NOT, 5, 0, half_in_network_order(0x0800), "not IPv4")
            .redirect_v4(ours, IPV4_DESTINATION)
            .place("not IPv4")
            .jump(JUMP_IF_NOT, 5, 0, half_in_network_order(0x0806), "not ARP")
            .within(ARP_TARGET + 4)
            .redirect_v4(ours, ARP_TARGET)
            .place("not ARP")
            .jump(JUMP_IF_NOT, 5, 0, half_in_network_order(0x86dd), "pass")
            .within(IPV6_DESTINATION + 16)
            .redirect_v6(ours, IPV6_DESTINATION)
            // Multicast neighbor discovery messages about our addresses.
            .op(LOAD_BYTE, 5, 2, IPV6_DESTINATION, 0)
            .jump(JUMP_IF_NOT, 5, 0, 0xff, "pass")
            .op(LOAD_BYTE, 5, 2, IPV6_NEXT, 0)
            .jump(JUMP_IF_NOT, 5, 0, 58, "pass")
            .within(NEIGHBOR_TARGET + 16)
            .op(LOAD_BYTE, 5, 2, ICMPV6_TYPE, 0)
            .jump(JUMP_IF, 5, 0, 135, "neighbor")
            .jump(JUMP_IF_NOT, 5, 0, 136, "pass")
            .place("neighbor")
            .redirect_v6(ours, NEIGHBOR_TARGET)
            .jump(JUMP, 0, 0, 0, "pass")
            .place("redirect");
    }
    program
        .op(LOAD_IMMEDIATE_64, 1, 1, 0, map) // from 1: the number is a map's descriptor
        .op(0, 0, 0, 0, 0)
        .op(LOAD_WORD, 2, 6, 16, 0) // the queue
        .op(MOV, 3, 0, 0, XDP_PASS) // if no socket is there
        .op(CALL, 0, 0, 0, CALL_REDIRECT_MAP)
        .op(EXIT, 0, 0, 0, 0);
    if *what != Redirect::Everything {
        program
            .place("pass")
            .op(MOV, 0, 0, 0, XDP_PASS)
            .op(EXIT, 0, 0, 0, 0);
    }
    program.finish()
}

/// An XDP program that sends each frame out of the interface with this index.
#[cfg(feature = "bare")]
pub(crate) fn forward(index: i32) -> Vec<u64> {
    const CALL_REDIRECT: i32 = 23;
    Assembler::default()
        .op(MOV, 1, 0, 0, index)
        .op(MOV, 2, 0, 0, 0)
        .op(CALL, 0, 0, 0, CALL_REDIRECT)
        .op(EXIT, 0, 0, 0, 0)
        .finish()
}

/// A program that runs after packet sockets and before the kernel's stack. It drops packets to
/// `address` and, for IPv4, ARP messages about it, so that the kernel does not answer for it.
pub(crate) fn guard(address: IpAddr) -> Vec<u64> {
    let mut program = Assembler::default();
    // Loads `len` bytes of the frame to the end of the stack. Here frames may be in pieces.
    let load = |program: &mut Assembler, at: i16, len: i32| {
        program
            .op(MOV_REG, 1, 6, 0, 0)
            .op(MOV, 2, 0, 0, at.into())
            .op(MOV_REG, 3, 10, 0, 0)
            .op(ADD, 3, 0, 0, -8)
            .op(MOV, 4, 0, 0, len)
            .op(CALL, 0, 0, 0, CALL_SKB_LOAD_BYTES)
            .jump(JUMP_IF_NOT, 0, 0, 0, "pass");
    };
    program.op(MOV_REG, 6, 1, 0, 0);
    load(&mut program, ETHERTYPE, 2);
    program.op(LOAD_HALF, 7, 10, -8, 0);
    let compare = |program: &mut Assembler, word| {
        let found = program.op(LOAD_WORD, 7, 10, -8, 0);
        found.jump(JUMP_IF_NOT_32, 7, 0, word, "pass");
    };
    match address {
        IpAddr::V4(address) => {
            let ipv4 = half_in_network_order(0x0800);
            program.jump(JUMP_IF_NOT, 7, 0, ipv4, "not IPv4");
            load(&mut program, IPV4_DESTINATION, 4);
            program
                .jump(JUMP, 0, 0, 0, "compare")
                .place("not IPv4")
                .jump(JUMP_IF_NOT, 7, 0, half_in_network_order(0x0806), "pass");
            load(&mut program, ARP_TARGET, 4);
            program.place("compare");
            compare(&mut program, in_network_order(address));
        }
        IpAddr::V6(address) => {
            program.jump(JUMP_IF_NOT, 7, 0, half_in_network_order(0x86dd), "pass");
            for (number, word) in (0..).zip(words(address)) {
                load(&mut program, IPV6_DESTINATION + 4 * number, 4);
                compare(&mut program, word);
            }
        }
    }
    program
        .op(MOV, 0, 0, 0, TCX_DROP)
        .op(EXIT, 0, 0, 0, 0)
        .place("pass")
        .op(MOV, 0, 0, 0, TCX_NEXT)
        .op(EXIT, 0, 0, 0, 0)
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
    /// The interpreter's result for a redirected frame.
    const REDIRECTED: i64 = 4;

    /// Runs a program on a frame. Implements only the instructions that the two programs use. The
    /// kernel's verifier makes sure that nothing outside the frame is read; here that panics.
    fn run(program: &[u64], frame: &[u8]) -> i64 {
        const CONTEXT: i64 = 1 << 40;
        const FRAME: i64 = 1 << 41;
        let mut registers = [0i64; 11];
        let mut stack = [0u8; 8];
        registers[1] = CONTEXT;
        let mut at = 0;
        loop {
            let bytes = program[at].to_ne_bytes();
            let (to, from) = (usize::from(bytes[1] & 15), usize::from(bytes[1] >> 4));
            let offset = i64::from(i16::from_ne_bytes([bytes[2], bytes[3]]));
            let number = i32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let immediate = i64::from(number);
            at += 1;
            let mut jump = |taken: bool| {
                if taken {
                    at += offset as usize;
                }
            };
            match bytes[0] {
                MOV => registers[to] = immediate,
                MOV_REG => registers[to] = registers[from],
                ADD => registers[to] += immediate,
                LOAD_IMMEDIATE_64 => {
                    assert_eq!(from, 1, "a map");
                    registers[to] = immediate;
                    at += 1;
                }
                LOAD_BYTE | LOAD_HALF | LOAD_WORD => {
                    let len = match bytes[0] {
                        LOAD_BYTE => 1,
                        LOAD_HALF => 2,
                        _ => 4,
                    };
                    let address = registers[from] + offset;
                    let read = |bytes: &[u8], start: i64| {
                        let mut word = [0; 4];
                        word[..len].copy_from_slice(&bytes[start as usize..][..len]);
                        i64::from(u32::from_le_bytes(word))
                    };
                    registers[to] = match address {
                        _ if address == CONTEXT => FRAME,
                        _ if address == CONTEXT + 4 => FRAME + frame.len() as i64,
                        _ if address == CONTEXT + 16 => 3,
                        _ if address >= FRAME => read(frame, address - FRAME),
                        _ => read(&stack, address + 8),
                    };
                }
                JUMP => jump(true),
                JUMP_IF_GREATER_REG => jump(registers[to] > registers[from]),
                JUMP_IF => jump(registers[to] == immediate),
                JUMP_IF_32 => jump(registers[to] as u32 == number as u32),
                JUMP_IF_NOT => jump(registers[to] != immediate),
                JUMP_IF_NOT_32 => jump(registers[to] as u32 != number as u32),
                CALL if number == CALL_REDIRECT_MAP => {
                    assert_eq!(registers[1..4], [77, 3, XDP_PASS.into()]);
                    registers[0] = REDIRECTED;
                }
                CALL => {
                    assert_eq!((number, registers[1]), (CALL_SKB_LOAD_BYTES, CONTEXT));
                    let [start, to, len] = [2, 3, 4].map(|register| registers[register]);
                    assert_eq!(to, -8);
                    let bytes = frame.get(start as usize..(start + len) as usize);
                    registers[0] = if bytes.is_some() { 0 } else { -14 };
                    if let Some(bytes) = bytes {
                        stack[..bytes.len()].copy_from_slice(bytes);
                    }
                }
                EXIT => return registers[0],
                code => panic!("unknown operation {code:#x}"),
            }
        }
    }

    fn frame(ethertype: u16, at: i16, address: Ipv4Addr, len: usize) -> Vec<u8> {
        let mut frame = vec![0; 64];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[at as usize..at as usize + 4].copy_from_slice(&address.octets());
        frame.truncate(len);
        frame
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn what_is_ours_is_taken_and_the_rest_is_left_to_the_kernel() {
        let redirect_ours = redirect(&Redirect::Addresses(vec![OURS.into()]), 77);
        let guard_ours = guard(OURS.into());
        let frames = [
            (frame(0x0800, IPV4_DESTINATION, OURS, 64), true),
            (frame(0x0800, IPV4_DESTINATION, OURS, 34), true),
            (frame(0x0800, IPV4_DESTINATION, OURS, 33), false),
            (frame(0x0800, IPV4_DESTINATION, OTHER, 64), false),
            (frame(0x0806, ARP_TARGET, OURS, 64), true),
            (frame(0x0806, ARP_TARGET, OURS, 42), true),
            (frame(0x0806, ARP_TARGET, OURS, 41), false),
            (frame(0x0806, ARP_TARGET, OTHER, 64), false),
            (frame(0x0806, IPV4_DESTINATION, OURS, 64), false),
            (frame(0x86dd, IPV4_DESTINATION, OURS, 64), false),
            (vec![0; 13], false),
            (vec![], false),
        ];
        for (frame, ours) in frames {
            let answer = run(&redirect_ours, &frame);
            let expected = if ours { REDIRECTED } else { XDP_PASS.into() };
            assert_eq!(answer, expected, "{frame:02x?}");
            let answer = run(&guard_ours, &frame);
            let expected = if ours { TCX_DROP } else { TCX_NEXT };
            assert_eq!(answer, i64::from(expected), "{frame:02x?}");
            assert_eq!(
                run(&redirect(&Redirect::Everything, 77), &frame),
                REDIRECTED
            );
            let nothing = redirect(&Redirect::Addresses(Vec::new()), 77);
            assert_eq!(run(&nothing, &frame), XDP_PASS.into());
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn what_is_about_one_of_our_addresses_is_taken() {
        let ours = Ipv6Addr::new(0xfd00, 0x78, 0, 0, 0, 0, 0, 1);
        let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x1234, 0x5678);
        // It has the same last 24 bits as `ours`, hence the same solicited-node group.
        let other = Ipv6Addr::new(0xfd00, 0x78, 0, 0, 0, 0, 1, 1);
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
        let mdns = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
        let listed = [
            OTHER.into(),
            ours.into(),
            OURS.into(),
            local.into(),
            mdns.into(),
        ];
        let program = redirect(&Redirect::Addresses(listed.to_vec()), 77);
        let guard_ours = guard(ours.into());
        let packet = |to: Ipv6Addr, next: u8, kind: u8, target: Ipv6Addr, len| {
            let mut frame = vec![0; 86];
            frame[12..14].copy_from_slice(&0x86dd_u16.to_be_bytes());
            (frame[20], frame[54]) = (next, kind);
            frame[38..54].copy_from_slice(&to.octets());
            frame[62..78].copy_from_slice(&target.octets());
            frame.truncate(len);
            frame
        };
        let nowhere = Ipv6Addr::UNSPECIFIED;
        let frames = [
            (frame(0x0800, IPV4_DESTINATION, OURS, 64), true),
            (frame(0x0806, ARP_TARGET, OTHER, 64), true),
            (packet(ours, 6, 0, nowhere, 86), true),
            (packet(local, 17, 0, nowhere, 54), true),
            (packet(mdns, 17, 0, nowhere, 86), true),
            (packet(ours, 6, 0, nowhere, 53), false),
            (packet(other, 6, 0, nowhere, 86), false),
            // Solicitations and advertisements about our addresses, and about other addresses.
            (packet(group, 58, 135, ours, 86), true),
            (packet(group, 58, 136, local, 78), true),
            (packet(group, 58, 135, other, 86), false),
            (packet(group, 58, 135, ours, 77), false),
            (packet(group, 58, 134, ours, 86), false),
            (packet(group, 17, 135, ours, 86), false),
            (packet(other, 58, 135, ours, 86), false),
        ];
        for (frame, taken) in frames {
            let expected = if taken { REDIRECTED } else { XDP_PASS.into() };
            assert_eq!(run(&program, &frame), expected, "{frame:02x?}");
            // Only what is sent to this one address itself.
            let is_to_it =
                frame[12..14] == [0x86, 0xdd] && frame.get(38..54) == Some(&ours.octets());
            let expected = if is_to_it { TCX_DROP } else { TCX_NEXT };
            let answer = run(&guard_ours, &frame);
            assert_eq!(answer, i64::from(expected), "{frame:02x?}");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_shortest_program_is_as_the_kernel_reads_it() {
        let expected: [[u8; 8]; 7] = [
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],  // r6 = r1
            [0x18, 0x11, 0, 0, 5, 0, 0, 0],  // r1 = map 5
            [0, 0, 0, 0, 0, 0, 0, 0],        //
            [0x61, 0x62, 16, 0, 0, 0, 0, 0], // r2 = r6->rx_queue_index
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0],  // r3 = XDP_PASS
            [0x85, 0, 0, 0, 51, 0, 0, 0],    // call bpf_redirect_map
            [0x95, 0, 0, 0, 0, 0, 0, 0],     // exit
        ];
        let program = redirect(&Redirect::Everything, 5);
        assert_eq!(program, expected.map(u64::from_ne_bytes));
    }
}
