//! How a request travels, and the memory that it meets.
//!
//! ```text
//! device -> rx: parse, merge, publish -> prepare -> apply -> perform -> tx -> device
//!                                                                \-> stream -> application
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `claim` | takes batches of frames from the device, and gives them back |
//! | `gro` | parses a batch: its segments become runs |
//! | `rx` | publishes runs and all else that replicas must know; answers neighbours and ICMP |
//! | `control` | what `rx` sends, outside of the log |
//! | `run` | the frames behind a request |
//! | `prepare` | verifies checksums |
//! | `perform` | performs the effects of `apply` ([`crate::state`]) |
//! | `tx` | holds numbered frames until they are built, and sends them in order |
//! | `stream`, `udp_queues` | memory that primaries share with applications |
//! | `units` | pieces of a stream that any worker may process |
//! | `direct` | does all steps at once, for a thread that has the state to itself |
//! | `record` | records what is published, and replays it |
//! | `world`, `view` | what all threads of a stack share, and what they show of themselves |
//!
//! [`crate::variants`] decides which thread calls what, and whether there is a log in between.
//!
//! # Numbers that wrap
//! Every number by which threads tell one use of a place from another, in `dominoes`, here, in
//! `group` and in the sockets. The time is how long the number takes to come round at 100 million
//! calls a second, or 100 Gbit/s (150 million frames or 12.5 GB a second), in the smallest place
//! that the settings allow. A number of 64 bits that counts calls, such as `Seq`, takes 5,800
//! years; a count of bytes takes 46.
//!
//! | number | bits | counts | time | what happens then |
//! |---|---|---|---|---|
//! | `Seq`; the tail and the end of a log | 63 | requests | 2,900 years | a log is closed |
//! | lap bytes of a log (`ring.rs`) | 8 | laps of 16 | 41 us | nothing: none read is a lap off |
//! | `Verdicts` | 1 | laps of 16 | 320 ns | nothing: none read or set is a lap off |
//! | `Attachments`, tags | 32 | laps of 16 | 11 min | a pin that late lends nothing |
//! | `Attachments`, pins of a chunk | 15 | threads | none | 32,767 at a time, checked; 56 workers |
//! | `Units` | 63 | pieces | 2,900 years | nothing: compared modulo 2^63 |
//! | `Greedy` | 48 | chunks of 1 | 32 days | nothing: compared modulo 2^48 |
//! | `EventCount`, `WaitSet` | 64 | wake-ups | 5,800 years | |
//! | `TimerId` | 64 | timers of a wheel | 5,800 years | |
//! | owners of chunks, membership | 56 | replica slots | none | 56 at most, checked |
//! | delivery stamp: lap | 28 | laps of 16 | 43 s | nothing: a ring holds a quarter of them |
//! | delivery stamp: end | 35 | bytes | 2.7 s | nothing: a ring holds a 32nd of them |
//! | positions in streams | 64 | bytes | 46 years | a connection stops |
//! | `UnitRing` | 62 | units | 1,400 years | |
//! | `Serial` | 64 | calls during one | 5,800 years | |
//! | generations of `ConnId` | 32 | uses of an entry | 43 s | nothing, see below |
//! | looks at idle connections | 32 | looks | 43 s | nothing: a look waits for 0.5 s |
//! | laps of transmit slots | 32 | laps of 4 | 2 min | nothing: frame numbers stop at a hole |
//! | frame numbers, batches | 64 | frames | 3,900 years | |
//! | versions of hints, places, routes | 64 | changes | 5,800 years | |
//! | shortages, misses of a socket | 64 | failed calls | 5,800 years | |
//! | users of a socket (`UserId`) | 64 | clones | 5,800 years | |
//! | request ids, arrivals | 64 | calls | 5,800 years | |
//! | `Instant` | 64 | nanoseconds | 584 years | time stands still |
//!
//! A thread that stops between two instructions for a whole round would take an old number for a
//! new one where a lap counts. It stops the round as well: a worker that has not applied or
//! performed a request holds up the log, and so its laps and those of delivery slots (invariant 4);
//! one that has begun frames holds up the frame numbers (invariant 11). A poller that looks at
//! stamps holds up nothing. If it stops for seconds within a look, it may report what was read
//! meanwhile, or miss what has come since; the stamps that have come since call for another look.
//!
//! No name of a connection outlives its connection. An entry is used again only when its socket is
//! gone, all requests that name it are performed and its frames are sent (invariants 6 and 13); a
//! hint is forgotten before that. A thread that raises the flag of a stream which it has released
//! already names an older generation. 2^32 connections later this would bring the pump to look at
//! the stream once more, in vain.

pub(crate) mod accept;
pub(crate) mod claim;
pub(crate) mod control;
pub(crate) mod copy;
pub(crate) mod direct;
pub(crate) mod echo;
pub(crate) mod gro;
pub(crate) mod perform;
pub(crate) mod prepare;
pub(crate) mod record;
mod run;
pub(crate) mod rx;
pub(crate) mod setup;
pub(crate) mod sleep;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod tx;
pub(crate) mod udp_queues;
pub(crate) mod units;
pub(crate) mod view;
pub(crate) mod world;

pub(crate) use dominoes_drivers::prefetch;
pub(crate) use run::{Batch, FrameRecycler, Frames, Indices, MAX_BATCH, Payload, Run};
