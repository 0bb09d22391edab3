use super::*;
use crate::{Context, Log, Publisher, Semaphore, SpinYield, channel};
use std::sync::atomic::{AtomicUsize, Ordering};

type Wire = (Publisher<u32, SpinYield>, Log<u32, SpinYield>);

fn wire() -> Wire {
    channel(64)
}

/// A service that records the subscription of each entry.
fn noting(wires: &[&Wire], scheduler: impl Scheduler + 'static) -> Service<Vec<(usize, u32)>> {
    let mut service = Service::new(1, "noting", Vec::new()).with_scheduler(scheduler);
    for (n, (_, log)) in wires.iter().enumerate() {
        let note = move |seen: &mut Vec<(usize, u32)>, _, entry: &u32| seen.push((n, *entry));
        service.subscribe(n as u8, log.subscribe().unwrap(), note);
    }
    service
}

#[test]
fn round_robin_serves_every_subscription_in_its_turn() {
    let (mut a, mut b) = (wire(), wire());
    let mut service = noting(&[&a, &b], RoundRobin::default());
    a.0.publish_all([1, 2, 3]).unwrap();
    b.0.publish_all([7]).unwrap();
    while service.run_one() == Turn::Worked {}
    assert_eq!(service.state(), &[(0, 1), (1, 7), (0, 2), (0, 3)]);
}

#[test]
fn priority_serves_the_most_urgent_first() {
    let (mut a, mut b) = (wire(), wire());
    let mut service = noting(&[&a, &b], Priority);
    a.0.publish_all([1, 2]).unwrap();
    b.0.publish_all([7, 8]).unwrap();
    while service.run_one() == Turn::Worked {}
    assert_eq!(service.state(), &[(1, 7), (1, 8), (0, 1), (0, 2)]);
}

#[test]
fn a_batch_is_of_one_subscription_and_no_longer_than_asked() {
    let (mut a, b) = (wire(), wire());
    let mut service = noting(&[&a, &b], RoundRobin::default());
    a.0.publish_all(0..10).unwrap();
    assert_eq!(service.run_batch(4), Turn::Worked);
    assert_eq!(service.state().len(), 4);
    assert_eq!(
        a.1.len(),
        6,
        "what was handled is released, the rest is not"
    );
}

#[test]
fn an_inactive_subscription_misses_what_is_published_and_keeps_its_place() {
    let (mut a, mut b) = (wire(), wire());
    let mut service = noting(&[&a, &b], RoundRobin::default());
    let id = FeedId(0);
    a.0.publish(1).unwrap();
    assert!(service.deactivate(id) && service.deactivate(id));
    a.0.publish(2).unwrap();
    b.0.publish(7).unwrap();
    while service.run_one() == Turn::Worked {}
    assert_eq!(a.1.len(), 0, "nothing is kept for it");
    assert!(service.activate(id) && service.activate(id));
    a.0.publish(3).unwrap();
    while service.run_one() == Turn::Worked {}
    assert_eq!(service.state(), &[(1, 7), (0, 3)]);
    assert!(!service.deactivate(FeedId(9)));
}

#[test]
fn a_service_subscribes_to_a_channel_of_any_kind() {
    use crate::{Channel, Lifo, Publish, WorkShare};
    let (mut publisher, share) = WorkShare::<u32, Lifo<u32>, SpinYield>::open(8);
    let (mut one, log) = wire();
    let mut service = Service::new(1, "both", Vec::new());
    let note = |seen: &mut Vec<u32>, entry: &u32| seen.push(*entry);
    let id = service.subscribe_to(0, share.join().unwrap(), note);
    service.subscribe_to(0, log.subscribe().unwrap(), note);
    (1..=3).for_each(|n| publisher.offer(n).unwrap());
    one.publish(9).unwrap();
    while service.run_one() == Turn::Worked {}
    service.state_mut().sort_unstable();
    assert_eq!(service.state(), &[1, 2, 3, 9]);
    assert!(!service.deactivate(id), "it is no log");
    drop((publisher, one));
    assert_eq!(service.run(), Turn::Finished);
}

#[test]
fn a_scheduler_that_repeats_itself_ends_the_turn() {
    let (a, mut b) = (wire(), wire());
    let mut service = noting(&[&a, &b], |_: &[FeedView]| Some(0));
    b.0.publish(1).unwrap();
    assert_eq!(service.run(), Turn::Idle);
    let mut service = noting(&[&a, &b], |_: &[FeedView]| Some(99));
    assert_eq!(service.run(), Turn::Idle);
}

#[test]
fn hooks_hear_of_subscriptions_that_come_go_and_end() {
    let (a, b) = (wire(), wire());
    let mut service = Service::new(0, "hooked", Vec::new())
        .on_subscribe(|heard: &mut Vec<(char, FeedId)>, id| heard.push(('+', id)))
        .on_unsubscribe(|heard, id| heard.push(('-', id)));
    let ids = [&a, &b]
        .map(|(_, log)| service.subscribe(0, log.subscribe().unwrap(), |_: &mut _, _, _: &u32| {}));
    assert_eq!(service.feeds(), ids);
    assert!(service.unsubscribe(ids[0]) && !service.unsubscribe(ids[0]));
    assert_eq!(a.1.subscribers(), 0);
    drop(b.0);
    assert_eq!(service.run(), Turn::Finished);
    let expected = [('+', ids[0]), ('+', ids[1]), ('-', ids[0]), ('-', ids[1])];
    assert_eq!(service.state(), &expected);
}

/// The dissertation's scenario (section 4.3.1): packets wait for an address to be resolved, the
/// reply comes through the same thread, and permits are released in another order than they were
/// requested, which its nested waits cannot do.
#[test]
fn waiting_domains_hold_up_nobody_and_are_released_in_any_order() {
    let (mut to_x, mut to_y, mut replies) = (wire(), wire(), wire());
    let addresses = Arc::new([Semaphore::new(0), Semaphore::new(0)]);
    // IP: packets to x and packets to y; each needs its neighbor's address.
    let mut ip = Service::new(1, "ip", Vec::new());
    for (n, (_, log)) in [&to_x, &to_y].into_iter().enumerate() {
        let addresses = addresses.clone();
        let send = move |sent: &mut Vec<(usize, u32)>, _, packet: &u32| {
            if !addresses[n].try_take() {
                return Handled::Wait;
            }
            sent.push((n, *packet));
            Handled::Primary(1)
        };
        ip.subscribe(0, log.subscribe().unwrap(), send);
    }
    // ARP: a reply resolves a neighbor, here for two packets.
    let mut arp = Service::new(2, "arp", 0);
    let resolve = {
        let addresses = addresses.clone();
        move |_: &mut i32, _, neighbour: &u32| addresses[*neighbour as usize].release(2)
    };
    arp.subscribe(0, replies.1.subscribe().unwrap(), resolve);

    // x is requested first, y second; both wait, and neither turn blocks.
    to_x.0.publish_all([10, 11]).unwrap();
    to_y.0.publish_all([20, 21]).unwrap();
    assert_eq!((ip.run(), arp.run()), (Turn::Waiting, Turn::Idle));
    // y is resolved first, so its packets are sent first.
    replies.0.publish(1).unwrap();
    assert_eq!(arp.run(), Turn::Worked);
    while ip.run() == Turn::Worked {}
    assert_eq!(ip.state(), &[(1, 20), (1, 21)]);
    assert_eq!(ip.run(), Turn::Waiting);
    replies.0.publish(0).unwrap();
    assert_eq!(arp.run(), Turn::Worked);
    while ip.run() == Turn::Worked {}
    assert_eq!(ip.state(), &[(1, 20), (1, 21), (0, 10), (0, 11)]);
    let stats = ip.meter().unwrap().stats(1, "ip");
    assert_eq!((stats.handled, stats.primary, stats.lag), (4, 4, 0));
    assert!(stats.waits >= 3);
}

/// As above, in one running thread: the domain that waits and the one that releases share a
/// context.
#[test]
fn a_context_runs_the_one_who_releases_while_another_domain_waits() {
    let (mut packets, mut replies) = (wire(), wire());
    let resolved = Arc::new(Semaphore::new(0));
    let sent = Arc::new(AtomicUsize::new(0));
    let mut ip = Service::new(1, "ip", sent.clone());
    let take = {
        let resolved = resolved.clone();
        move |sent: &mut Arc<AtomicUsize>, _, _: &u32| {
            if !resolved.try_take() {
                return Handled::Wait;
            }
            sent.fetch_add(1, Ordering::Relaxed);
            Handled::Done
        }
    };
    ip.subscribe(0, packets.1.subscribe().unwrap(), take);
    let mut arp = Service::new(2, "arp", ());
    let release = move |_: &mut (), _, _: &u32| resolved.release(1);
    arp.subscribe(0, replies.1.subscribe().unwrap(), release);
    let context = Context::spawn("one", None, vec![Box::new(ip), Box::new(arp)]).unwrap();
    packets.0.publish_all(0..5).unwrap();
    replies.0.publish_all(0..5).unwrap();
    drop((packets.0, replies.0));
    assert_eq!(context.join().unwrap().len(), 2);
    assert_eq!(sent.load(Ordering::Relaxed), 5);
}
