//! The suite on the software ConnectX, in this process: static and run-time dispatch, or on whatever
//! device the host has with `SOFTNIC=off`.

use conformance::Devices;
use provider_mlx5::Mlx5Provider;
use softnic::{Config, Softnic};
use std::process::ExitCode;

fn main() -> ExitCode {
    let _nic = match Softnic::start(Config::thread()) {
        Ok(nic) => nic,
        Err(e) => {
            eprintln!("error: the software device does not start: {e}");
            return ExitCode::FAILURE;
        }
    };
    conformance::main(vec![
        Box::new(Devices::of(Mlx5Provider)),
        Box::new(Devices::of(Mlx5Provider).erased()),
    ])
}
