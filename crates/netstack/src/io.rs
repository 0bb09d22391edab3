//! The path of a request, and the memory that it uses.
//!
//! ```text
//! device -> rx: parse, merge, publish -> prepare -> apply -> perform -> tx -> device
//!                                                                \-> stream -> application
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `claim` | takes batches of frames from the device, and gives them back |
//! | `gro` | parses a batch: its segments become runs |
//! | `rx` | publishes runs and all other inputs of replicas; answers neighbours and ICMP |
//! | `run` | the frames of a request |
//! | `prepare` | verifies checksums |
//! | `perform` | performs the effects of `apply` ([`crate::state`]) |
//! | `tx` | holds numbered frames until they are built and sent, in order but for holes |
//! | `stream`, `udp_queues` | memory that primaries share with applications |
//! | `units` | pieces of a stream that any worker may process |
//! | `direct` | does all steps at once, for a thread that owns the state |
//! | `record` | records published requests, and replays them |
//! | `world`, `view` | data shared by all threads of a stack, and views of their states |
//!
//! [`crate::variants`] decides which thread calls each step, and whether there is a log in between.
//!
//! # Numbers that wrap
//! This table has every number by which threads distinguish one use of a place from another, in
//! `dominoes`, here, in `group` and in the sockets. The time is how long the number takes to wrap
//! at 100 million calls a second, or at 100 Gbit/s (150 million frames or 12.5 GB a second), in the
//! smallest place that the settings allow. A number of 64 bits that counts calls, such as `Seq`,
//! wraps after 5,800 years; a count of bytes wraps after 46.
//!
//! | number | bits | counts | time | when it wraps |
//! |---|---|---|---|---|
//! | `Seq`; the tail and the end of a log | 63 | requests | 2,900 years | a log is closed |
//! | lap bytes of a log (`ring.rs`) | 8 | laps of 16 | 41 us | nothing: no reader is a lap off |
//! | `Verdicts` | 1 | laps of 16 | 320 ns | nothing: no reader or writer is a lap off |
//! | `BatchRecords`, laps | 24 | laps of 16 | 2.7 s | nothing: no caller is a lap off |
//! | `BatchRecords`, readers | 7 | threads | none | at most 127, checked; 56 workers |
//! | `BatchRecords`, pieces of work | 30 | effects | none | 2^22 of a request, 256 requests, checked |
//! | `Chunks` | 63 | pieces | 2,900 years | nothing: compared modulo 2^63 |
//! | `EventCount`, `WaitSet` | 64 | wake-ups | 5,800 years | |
//! | `TimerId` | 64 | timers of a wheel | 5,800 years | |
//! | owners of chunks, membership | 56 | replica slots | none | at most 56, checked |
//! | delivery stamp: lap | 28 | laps of 16 | 43 s | nothing: a ring holds at most a quarter |
//! | delivery stamp: end | 35 | bytes | 2.7 s | nothing: a ring holds at most a 32nd |
//! | positions in streams | 64 | bytes | 46 years | a connection stops |
//! | `UnitRing` | 62 | units | 1,400 years | |
//! | `Serial` | 64 | calls during one | 5,800 years | |
//! | generations of `ConnId` | 32 | uses of an entry | 43 s | nothing, see below |
//! | looks at idle connections | 32 | looks | 43 s | nothing: a look waits for 0.5 s |
//! | laps of transmit slots | 24 | laps of 4 | 450 ms | nothing: frame numbers stop at a hole |
//! | frame numbers, batches | 64 | frames | 3,900 years | |
//! | versions of hints, places, routes | 64 | changes | 5,800 years | |
//! | shortages, misses of a socket | 64 | failed calls | 5,800 years | |
//! | users of a socket (`UserId`) | 64 | clones | 5,800 years | |
//! | request ids, arrivals | 64 | calls | 5,800 years | |
//! | `Instant` | 64 | nanoseconds | 584 years | time stops |
//!
//! Where laps are counted, a thread that stops between two instructions for a whole round would
//! mistake an old number for a new one. But it also stops the round: a worker that has not applied
//! or performed a request holds up the log, and thereby its laps and the laps of delivery slots
//! (invariant 4); a worker that has begun frames holds up the frame numbers (invariant 11). A
//! poller that looks at stamps holds up nothing. If it stops for seconds within a look, it may
//! report bytes that were read meanwhile, or miss bytes that arrived since; but the stamps of those
//! bytes cause another look.
//!
//! No id of a connection outlives its connection. An entry is used again only when its socket is
//! gone, all requests that name it are performed and its frames are sent (invariants 6 and 13); a
//! hint is forgotten before that. If a thread raises the flag of a stream that it has already
//! released, it names an older generation. After 2^32 further connections, this would only make the
//! pump look at the stream once more, in vain.

pub(crate) mod accept;
pub(crate) mod claim;
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
pub(crate) use run::{BatchFrames, ClaimedFrames, FrameRecycler, Indices, Run, RunFrames};
