//! Two hosts with perfect wires.

use core::cell::RefCell;
use core::ops::ControlFlow;
use std::rc::Rc;

use dominoes_netstack::time::Duration;
use dominoes_testkit::{HostConfig, LinkConfig, Net, Stalls, Traffic, Variant};

use super::wire_observer::WireObserver;

/// Two hosts send to each other as fast as they can over perfect wires, while workers stall.
/// Returns the number of retransmitted segments, and the number of stalls.
pub(super) fn both_ways(seed: u64, variant: Variant, stalls: Stalls) -> (u64, u64) {
    const BYTES: u64 = 500_000;
    let mut net = Net::new(seed);
    let wire = LinkConfig::default().delay(core::time::Duration::from_micros(20));
    let host = HostConfig::new(variant)
        .stalls(stalls)
        .wires(wire.clone(), wire);
    let hosts = [0, 1].map(|_| net.add(host.clone()).expect("its bounds are right"));
    let eyes = Rc::new(RefCell::new(WireObserver::default()));
    let seen = Rc::clone(&eyes);
    net.watch(move |_, from, frame| {
        let from = usize::from(from != hosts[0]);
        seen.borrow_mut().see(from, frame);
    });
    let listener = net
        .sockets(hosts[0])
        .listen(7, 1)
        .expect("nobody else does");
    let to = net.address_of(hosts[0], 7);
    let mut connecting = net
        .sockets(hosts[1])
        .begin_connect(to)
        .expect("the stack is up");
    let mut all_traffic: Vec<Traffic> = Vec::new();
    let run = net.run(Duration::from_secs(600), |_| {
        if all_traffic.is_empty()
            && let Some(stream) = connecting.try_finish()?
        {
            all_traffic.push(Traffic::new(stream, 1, 2, BYTES, BYTES));
        }
        if all_traffic.len() == 1
            && let Ok((stream, _)) = listener.try_accept()
        {
            all_traffic.push(Traffic::new(stream, 2, 1, BYTES, BYTES));
        }
        let steps = all_traffic
            .iter_mut()
            .map(|traffic| traffic.step().expect("all is well"));
        let done = steps.sum();
        let over = all_traffic.len() == 2 && all_traffic.iter().all(Traffic::is_over);
        Ok(match over {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(done),
        })
    });
    assert_eq!(run, Ok(()), "seed {seed}");
    let stalls = hosts.map(|id| net.host(id).stall_count());
    let again = eyes.borrow().retransmissions;
    (again, stalls[0] + stalls[1])
}
