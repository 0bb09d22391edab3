//! The two programs that are loaded into the kernel, instruction by instruction, so that no
//! compiler for them is needed.
//!
//! Registers and calls as in RFC 9669 (BPF Instruction Set Architecture): r1 holds the context, r0
//! the answer, r6 to r9 survive calls, r10 is the stack's end.

use std::net::Ipv4Addr;

const XDP_PASS: i32 = 2;
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

const CALL_SKB_LOAD_BYTES: i32 = 26;
const CALL_REDIRECT_MAP: i32 = 51;

const ETHERTYPE: i16 = 12;
/// Destination of an IPv4 packet, and target of an ARP message, in bytes from the start of the
/// frame.
const IPV4_DESTINATION: i16 = 30;
const ARP_TARGET: i16 = 38;

// Operation codes (RFC 9669 section 3 to 5).
const MOV: u8 = 0xb7;
const MOV_REG: u8 = 0xbf;
const ADD: u8 = 0x07;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_IMMEDIATE_64: u8 = 0x18;
const JUMP: u8 = 0x05;
const JUMP_IF_GREATER_REG: u8 = 0x2d;
const JUMP_IF_NOT: u8 = 0x55;
const JUMP_IF_NOT_32: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Which frames are redirected to AF_XDP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Redirect {
    /// IPv4 packets to this address, and ARP messages about it. The kernel keeps all others, and
    /// goes on serving its own addresses on the same interface.
    Address(Ipv4Addr),
    /// All of them.
    #[default]
    Everything,
}

/// A number as a frame has it, read by a program as a number of this machine.
fn in_network_order(address: Ipv4Addr) -> i32 {
    i32::from_ne_bytes(address.octets())
}

fn half_in_network_order(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// One instruction: `struct bpf_insn` as a number of this machine.
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

/// A program under construction. Jumps go forward, to places that are named when they are reached.
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

    /// Lets all jumps to `place` lead here.
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

    fn finish(&mut self) -> Vec<u64> {
        assert!(self.jumps.is_empty(), "a jump to nowhere");
        std::mem::take(&mut self.code)
    }
}

/// An XDP program that hands frames to the socket in `map` of the queue they came in on, and all
/// others to the kernel.
pub(crate) fn redirect(what: Redirect, map: i32) -> Vec<u64> {
    let mut program = Assembler::default();
    program.op(MOV_REG, 6, 1, 0, 0);
    if let Redirect::Address(address) = what {
        let ours = in_network_order(address);
        program
            .op(LOAD_WORD, 2, 1, 0, 0) // r2: start of the frame
            .op(LOAD_WORD, 3, 1, 4, 0) // r3: its end
            .op(MOV_REG, 4, 2, 0, 0)
            .op(ADD, 4, 0, 0, i32::from(IPV4_DESTINATION) + 4)
            .jump(JUMP_IF_GREATER_REG, 4, 3, 0, "pass")
            .op(LOAD_HALF, 5, 2, ETHERTYPE, 0)
            .jump(JUMP_IF_NOT, 5, 0, half_in_network_order(0x0800), "not IPv4")
            .op(LOAD_WORD, 5, 2, IPV4_DESTINATION, 0)
            .jump(JUMP_IF_NOT_32, 5, 0, ours, "pass")
            .jump(JUMP, 0, 0, 0, "redirect")
            .place("not IPv4")
            .jump(JUMP_IF_NOT, 5, 0, half_in_network_order(0x0806), "pass")
            .op(ADD, 4, 0, 0, i32::from(ARP_TARGET - IPV4_DESTINATION))
            .jump(JUMP_IF_GREATER_REG, 4, 3, 0, "pass")
            .op(LOAD_WORD, 5, 2, ARP_TARGET, 0)
            .jump(JUMP_IF_NOT_32, 5, 0, ours, "pass")
            .place("redirect");
    }
    program
        .op(LOAD_IMMEDIATE_64, 1, 1, 0, map) // from 1: the number is a map's descriptor
        .op(0, 0, 0, 0, 0)
        .op(LOAD_WORD, 2, 6, 16, 0) // the queue
        .op(MOV, 3, 0, 0, XDP_PASS) // if no socket is there
        .op(CALL, 0, 0, 0, CALL_REDIRECT_MAP)
        .op(EXIT, 0, 0, 0, 0);
    if what != Redirect::Everything {
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

/// A program behind packet sockets and before the kernel's stack that drops IPv4 packets to
/// `address` and ARP messages about it, so that the kernel stays silent though it owns the address.
pub(crate) fn guard(address: Ipv4Addr) -> Vec<u64> {
    let ours = in_network_order(address);
    let mut program = Assembler::default();
    // Loads `len` bytes of the frame to the stack's end; frames may be in pieces here.
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
    program.op(LOAD_HALF, 7, 10, -8, 0).jump(
        JUMP_IF_NOT,
        7,
        0,
        half_in_network_order(0x0800),
        "not IPv4",
    );
    load(&mut program, IPV4_DESTINATION, 4);
    program
        .jump(JUMP, 0, 0, 0, "compare")
        .place("not IPv4")
        .jump(JUMP_IF_NOT, 7, 0, half_in_network_order(0x0806), "pass");
    load(&mut program, ARP_TARGET, 4);
    program
        .place("compare")
        .op(LOAD_WORD, 7, 10, -8, 0)
        .jump(JUMP_IF_NOT_32, 7, 0, ours, "pass")
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
    /// What the interpreter answers for a frame that was redirected.
    const REDIRECTED: i64 = 4;

    /// Runs a program on a frame, in just as much of the instruction set as the two programs use.
    /// The kernel verifies that nothing outside of the frame is read; here that panics.
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
                LOAD_HALF | LOAD_WORD => {
                    let len = if bytes[0] == LOAD_HALF { 2 } else { 4 };
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
        let redirect_ours = redirect(Redirect::Address(OURS), 77);
        let guard_ours = guard(OURS);
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
            assert_eq!(run(&redirect(Redirect::Everything, 77), &frame), REDIRECTED);
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
        let program = redirect(Redirect::Everything, 5);
        assert_eq!(program, expected.map(u64::from_ne_bytes));
    }
}
