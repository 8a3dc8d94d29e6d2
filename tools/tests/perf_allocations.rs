//! The hot loops of `ibv perf` allocate nothing: thousands of messages more cost no allocation more.

#[path = "../../ibv-core/tests/counting/mod.rs"]
mod counting;

use counting::allocated;
use ibv::{IbvDomain, Provider, mock::MockProvider};
use ibv_tools::perf::{self, Extent, Measure, Operation, Settings};

/// Allocations of the client's thread for rows of `messages` messages.
fn allocations(operation: Operation, measure: Measure, messages: u64) -> usize {
    let provider = MockProvider::default();
    let open = |i: usize| {
        let info = provider.devices().unwrap().swap_remove(i);
        IbvDomain::new(provider.open(&info).unwrap(), info)
    };
    let (near, far) = (open(0), open(1));
    let mut settings = Settings::new(operation, measure);
    (settings.extent, settings.size, settings.tx_depth) = (Extent::Iterations(messages), Some(8), 16);
    (settings.rx_depth, settings.cq_mod) = (32, Some(4));
    let before = allocated();
    perf::loopback(&near, &far, &settings, &mut ()).unwrap();
    allocated() - before
}

#[test]
fn messages_cost_no_allocation() {
    for operation in [Operation::Write, Operation::Read, Operation::Send] {
        for measure in [Measure::Bw, Measure::Lat] {
            // The mock's own queues grow to their size first.
            let counts = [200, 200, 5000].map(|messages| allocations(operation, measure, messages));
            // A run that a busy machine makes long has more of the heartbeats, by the clock, which allocate. One
            // allocation for every completion, of which each tells of four messages, would be 1200.
            assert!(counts[2] <= counts[1] + 600, "{operation} {measure}: {counts:?} allocations");
        }
    }
}
