//! Two ends of a mutant on a mock fabric of their own, made afresh for each case.

use crate::{
    domain::MutantDomain,
    hooks::Hooks,
    mutations::Mutant,
    world::{End, Shared},
};
use conformance::{Fixture, Pair, Progress, Unavailable, fixtures::mock::Mock};
use ibv_core::{AnyDomain, IbvDeviceInfo, IbvDomain, Provider};
use provider_mock::{Fabric, MockProvider, Schedule};
use std::sync::Arc;

/// The fixture of one mutant.
#[derive(Clone, Debug)]
pub struct MutantFixture {
    name: &'static str,
    hooks: Hooks,
}

impl MutantFixture {
    /// Two ends of `mutant`.
    pub fn new(mutant: &Mutant) -> Self {
        Self { name: mutant.name, hooks: mutant.hooks }
    }

    /// Configured as the suite's own fixture of the mock is.
    fn fabric(&self) -> Fabric {
        let ordered = Schedule::InOrder;
        let schedule = if self.hooks.shuffled { Schedule::Unordered { seed: 1, chunk: 64 } } else { ordered };
        let mock = Mock::new(schedule);
        let mock = if self.hooks.read_only { mock.read_only() } else { mock };
        let fabric = Fabric::new(mock.config().clone());
        (self.hooks.fabric)(&fabric);
        fabric
    }
}

impl Fixture for MutantFixture {
    type Domain = MutantDomain;

    fn provider(&self) -> &str {
        self.name
    }

    fn pair(&self) -> Result<Pair<MutantDomain>, Unavailable> {
        let fabric = self.fabric();
        let provider = MockProvider::new(fabric.clone());
        let shared = Arc::new(Shared { hooks: self.hooks, world: Default::default() });
        let open = |device: &IbvDeviceInfo, end| {
            let inner = AnyDomain::new(provider.open(device)?);
            Ok::<_, Unavailable>(IbvDomain::new(MutantDomain::new(inner, end, &shared), device.clone()))
        };
        let devices = provider.devices()?;
        let [first, second, ..] = &devices[..] else {
            return Err(Unavailable::Fail("no two devices".into()));
        };
        let progress = move || if fabric.step() { Progress::Moved } else { Progress::Idle };
        Ok(Pair::new(open(first, End::A)?, open(second, End::B)?).with_progress(progress))
    }
}
