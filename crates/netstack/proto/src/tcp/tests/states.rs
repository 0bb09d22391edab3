//! The connection diagram, and the limit of challenges per connection.

use crate::tcp::{CHALLENGES_PER_SECOND, Challenges, State};
use crate::time::{Duration, Instant};

#[test]
fn the_diagram_has_these_edges_and_no_others() {
    use State::*;
    let edges = [
        (Closed, Listen),
        (Closed, SynSent),
        (Closed, SynReceived),
        (Listen, SynSent),
        (Listen, SynReceived),
        (Listen, Closed),
        (SynSent, SynReceived),
        (SynSent, Established),
        (SynSent, Closed),
        (SynReceived, Established),
        (SynReceived, FinWait1),
        (SynReceived, Listen),
        (SynReceived, Closed),
        (Established, FinWait1),
        (Established, CloseWait),
        (Established, Closed),
        (FinWait1, FinWait2),
        (FinWait1, Closing),
        (FinWait1, TimeWait),
        (FinWait1, Closed),
        (FinWait2, TimeWait),
        (FinWait2, Closed),
        (CloseWait, LastAck),
        (CloseWait, Closed),
        (Closing, TimeWait),
        (Closing, Closed),
        (LastAck, Closed),
        (TimeWait, Closed),
    ];
    for from in State::ALL {
        for to in State::ALL {
            assert_eq!(
                from.may_enter(to),
                edges.contains(&(from, to)),
                "{from:?} -> {to:?}"
            );
        }
    }
}

#[test]
fn ten_challenges_leave_in_a_second_and_no_more_and_do_not_use_up_other_answers() {
    let mut challenges = Challenges::default();
    let start = Instant::from_millis(5_000);
    let forged = (0..100).filter(|_| challenges.allow_forged(start)).count();
    assert_eq!(forged, usize::from(CHALLENGES_PER_SECOND));
    let honest = (0..100).filter(|_| challenges.allow_honest(start)).count();
    assert_eq!(honest, usize::from(CHALLENGES_PER_SECOND));
    let later = start + Duration::from_secs(1);
    assert!(challenges.allow_forged(later) && challenges.allow_honest(later));
}
