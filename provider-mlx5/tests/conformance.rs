//! The suite on the software ConnectX, in this process: an InfiniBand and a RoCE device, static and
//! run-time dispatch; or on whatever devices the host has with `SOFTNIC=off`.

use conformance::Devices;
use provider_mlx5::Mlx5Provider;
use softnic::{
    Config, Softnic,
    description::{Description, Link},
};
use std::process::ExitCode;

fn main() -> ExitCode {
    let off = std::env::var_os("SOFTNIC").is_some_and(|v| v == "off");
    let nic = (!off).then(|| Softnic::start(Config { description: both(), ..Config::thread() }));
    if let Some(Err(e)) = &nic {
        eprintln!("error: the software devices do not start: {e}");
        return ExitCode::FAILURE;
    }
    if off {
        return conformance::main(vec![
            Box::new(Devices::of(Mlx5Provider)),
            Box::new(Devices::of(Mlx5Provider).erased()),
        ]);
    }
    let on = |name: &str| Devices::of(Mlx5Provider).named(name, name);
    conformance::main(vec![
        Box::new(on("mlx5_0")),
        Box::new(on("mlx5_0").erased()),
        Box::new(on("mlx5_1")),
        Box::new(on("mlx5_1").erased()),
    ])
}

/// `mlx5_0` speaks InfiniBand, `mlx5_1` RoCE.
fn both() -> Description {
    let mut ib = Description::standard(Link::Ib, 1);
    let roce = Description::standard(Link::Roce, 2).devices.pop();
    ib.devices.extend(roce);
    ib
}
