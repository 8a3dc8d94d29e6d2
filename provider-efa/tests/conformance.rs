//! The suite on the software EFA, in this process, under whichever libefa is loaded: over adapters that
//! shuffle and over adapters that keep order, by static and run-time dispatch; or on whatever devices the host
//! has with `SOFTNIC=off`. With a libefa that has no RDMA write the cases that need it are skipped, and say so.

use conformance::{Devices, DynFixture};
use provider_efa::EfaProvider;
use softnic::{Config, Softnic, description::Description};
use std::process::ExitCode;

/// Bytes of the largest put or get on the adapters that keep order, so that the suite tests splitting.
const SHORT: u32 = 24 << 10;

fn main() -> ExitCode {
    if std::env::var_os("SOFTNIC").is_some_and(|v| v == "off") {
        return conformance::main(vec![
            Box::new(Devices::of(EfaProvider::default())),
            Box::new(Devices::of(EfaProvider::default()).erased()),
        ]);
    }
    match Softnic::start(Config { description: machine(), ..Config::thread() }) {
        // For the life of the process: cases share the machine.
        Ok(nic) => std::mem::forget(nic),
        Err(e) => {
            eprintln!("error: the software devices do not start: {e}");
            return ExitCode::FAILURE;
        }
    }
    let shuffled = || Devices::of(EfaProvider::default()).named("rdmap0s6", "rdmap1s6");
    let ordered =
        || Devices::of(EfaProvider::default().with_max_msg_size(SHORT)).named("rdmap2s6", "rdmap3s6");
    let fixtures: Vec<Box<dyn DynFixture>> = vec![
        Box::new(shuffled()),
        Box::new(shuffled().erased()),
        Box::new(ordered()),
        Box::new(ordered().erased()),
    ];
    conformance::main(fixtures)
}

/// Two adapters that shuffle, and two that do not.
fn machine() -> Description {
    let mut all = Description::efa(4);
    for (i, device) in all.devices.iter_mut().enumerate() {
        (device.efa.in_order, device.efa.seed) = (i >= 2, 11 + i as u64);
        // Short, so that filling one takes little time.
        (device.efa.max_sq_wr, device.efa.max_rq_wr) = (512, 1024);
    }
    all
}
