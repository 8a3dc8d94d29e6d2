//! Certifies the provider in `cargo test`: each case a test, by static and by run-time dispatch.

use conformance::{Devices, suite};
use provider_shm::ShmProvider;

mod by_static_dispatch {
    super::suite!(super::Devices::of(super::ShmProvider::default()));
}

mod by_dyn_dispatch {
    super::suite!(super::Devices::of(super::ShmProvider::default()).erased());
}
