//! `ibv conformance`: the suite over the providers of this build. Cases, reports and options are crate
//! `conformance`'s; here is only the list of what can be tested.

use conformance::{DynFixture, cli, fixtures::mock::Mock};
use ibv::mock::Schedule;
use std::process::ExitCode;

/// Bytes in a piece of the mock's unordered schedule: less than most messages, and no power of two.
const PIECE: usize = 24;

/// Runs the suite's command line, whose exit codes these are: 0, 1 where a case failed, 2. `efa` and `verbs`
/// make work requests of at most `max_msg_size` bytes.
pub(crate) fn run(args: Vec<String>, max_msg_size: Option<u32>) -> ExitCode {
    let fixtures = fixtures(max_msg_size);
    let fixtures: Vec<&dyn DynFixture> = fixtures.iter().map(|fixture| &**fixture).collect();
    let name = "ibv conformance".to_owned();
    cli::run([name].into_iter().chain(args), &fixtures)
}

/// Each provider by both dispatches, and the mock by both schedules too.
fn fixtures(max_msg_size: Option<u32>) -> Vec<Box<dyn DynFixture>> {
    #[cfg(feature = "verbs")]
    let verbs = || {
        let plain = ibv::providers::verbs::VerbsProvider::default();
        max_msg_size.map_or_else(|| plain.clone(), |bytes| plain.clone().with_max_msg_size(bytes))
    };
    #[cfg(not(any(feature = "efa", feature = "verbs")))]
    let _ = max_msg_size;
    let unordered = Schedule::Unordered { seed: 1, chunk: PIECE };
    let mut fixtures: Vec<Box<dyn DynFixture>> = vec![
        Box::new(Mock::new(Schedule::InOrder)),
        Box::new(Mock::new(Schedule::InOrder).erased()),
        Box::new(Mock::new(unordered)),
        Box::new(Mock::new(unordered).erased()),
        #[cfg(feature = "mlx5")]
        Box::new(devices_of(ibv::providers::mlx5::Mlx5Provider)),
        #[cfg(feature = "mlx5")]
        Box::new(devices_of(ibv::providers::mlx5::Mlx5Provider).erased()),
        #[cfg(feature = "verbs")]
        Box::new(devices_of(verbs())),
        #[cfg(feature = "verbs")]
        Box::new(devices_of(verbs()).erased()),
    ];
    #[cfg(feature = "efa")]
    fixtures.extend(efa(max_msg_size));
    fixtures
}

/// The fixture of a provider's devices, which names the libraries that were loaded for them.
#[cfg(any(feature = "efa", feature = "mlx5", feature = "verbs"))]
fn devices_of<P: ibv::Provider>(provider: P) -> conformance::Devices<P> {
    conformance::Devices::of(provider).with_versions_by(|| {
        let loaded = |library: &ibv_sys::LibraryVersion| {
            let version = library.file_version.as_deref().unwrap_or("of unknown version");
            format!("{} {version}", library.library)
        };
        let libraries: Vec<_> = ibv_sys::versions().iter().map(loaded).collect();
        conformance::Versions {
            provider: env!("CARGO_PKG_VERSION").into(),
            library: libraries.join(", "),
            ..conformance::Versions::default()
        }
    })
}

/// EFA's adapters in pairs, since one does not have to reach itself: each pair by both dispatches.
#[cfg(feature = "efa")]
fn efa(max_msg_size: Option<u32>) -> Vec<Box<dyn DynFixture>> {
    use ibv::{Claim, Provider};
    let plain = ibv::providers::efa::EfaProvider::default();
    let provider = max_msg_size.map_or_else(|| plain.clone(), |bytes| plain.clone().with_max_msg_size(bytes));
    let mut names: Vec<_> = provider.devices().unwrap_or_default();
    names.retain(|device| matches!(provider.claim(device), Claim::Yes(_)));
    names.sort_by(|a, b| a.name.cmp(&b.name));
    let devices = || devices_of(provider.clone());
    if names.len() < 2 {
        return vec![Box::new(devices()), Box::new(devices().erased())];
    }
    let pairs = names.chunks_exact(2).map(|pair| [pair[0].name.clone(), pair[1].name.clone()]);
    pairs
        .flat_map(|[a, b]| {
            let named = || devices().named(&a, &b);
            [Box::new(named()) as Box<dyn DynFixture>, Box::new(named().erased())]
        })
        .collect()
}
