//! Generated programs on the software ConnectX do what they do on the mock's model.

use conformance::{Devices, Outcome, differential};
use provider_mlx5::Mlx5Provider;
use softnic::{Config, Softnic};

#[test]
fn generated_programs_agree_with_the_model() {
    let _nic = Softnic::start(Config::thread()).unwrap();
    for seed in [1, 2] {
        assert_eq!(differential::run(&Devices::of(Mlx5Provider), 10, seed), Outcome::Passed, "seed {seed}");
    }
}
