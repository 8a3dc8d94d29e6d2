//! The loader against whatever rdma-core this machine has; without one, the typed error is the subject.

use ibv_sys::{
    Efadv, Library, LoadError, Mlx5dv, RDMA_CORE_VERSION, Verbs, efadv, ibv_gid, mlx5_cqe64,
    mlx5_wqe_ctrl_seg, mlx5dv, verbs, versions,
};
use static_assertions::{assert_eq_align, assert_eq_size, assert_impl_all};

assert_impl_all!(Library<Verbs>: Send, Sync, Clone);
assert_impl_all!(Library<Mlx5dv>: Send, Sync, Clone);
assert_impl_all!(Library<Efadv>: Send, Sync, Clone);
assert_impl_all!(LoadError: std::error::Error, Send, Sync, Clone);
// C's union holds two 64-bit numbers: a GID that is only bytes can not stand for it behind a pointer.
assert_eq_align!(ibv_gid, u64);
assert_eq_size!(mlx5_wqe_ctrl_seg, [u8; 16]);
assert_eq_size!(mlx5_cqe64, [u8; 64]);

#[test]
fn the_libraries_load_or_say_what_was_tried() {
    match verbs() {
        Ok(verbs) => {
            assert!(verbs.path().is_file(), "{verbs:?}");
            assert!(verbs.absent().iter().all(|symbol| !symbol.required));
            let mut count = -1;
            // SAFETY: `count` is valid for the call; the list is freed once and not used after.
            let list = unsafe { verbs.ibv_get_device_list(&mut count) };
            if !list.is_null() {
                assert!(count >= 0, "{count} devices");
                // SAFETY: as above.
                unsafe { verbs.ibv_free_device_list(list) };
            }
            let versions = versions();
            let ours = versions.iter().find(|version| version.library == "libibverbs.so.1").unwrap();
            assert!(ours.symbol_versions.starts_with(&["IBVERBS_1.0", "IBVERBS_1.1"]), "{ours:?}");
            assert!(ours.file.is_file() && ours.file_version.is_some(), "{ours:?}");
        }
        Err(LoadError::LibraryNotFound { library, tried, .. }) => {
            println!("no libibverbs on this machine: the error is what is tested");
            assert_eq!(library, "libibverbs.so.1");
            assert!(!tried.is_empty() && tried.iter().all(|attempt| !attempt.answer.is_empty()), "{tried:?}");
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_library_answers_the_same_twice() {
    assert_eq!(verbs().map(|verbs| verbs.path()), verbs().map(|verbs| verbs.path()));
    assert_eq!(mlx5dv().map(|mlx5| mlx5.path()), mlx5dv().map(|mlx5| mlx5.path()));
    assert_eq!(efadv().map(|efa| efa.path()), efadv().map(|efa| efa.path()));
}

#[test]
fn a_function_that_no_library_has_is_named_with_its_version() {
    let Ok(verbs) = verbs() else { return println!("skipped: no libibverbs on this machine") };
    assert_eq!(verbs.require(&["ibv_alloc_pd", "ibv_reg_mr"]), Ok(()));
    let missing = verbs.require(&["ibv_alloc_pd", "ibv_no_such_verb"]).unwrap_err();
    assert!(matches!(missing, LoadError::SymbolMissing { symbol: "ibv_no_such_verb", .. }), "{missing}");
    for symbol in verbs.absent() {
        let missing = verbs.require(&[symbol.name]).unwrap_err();
        assert!(missing.to_string().contains(symbol.version), "{missing}");
    }
}

#[test]
fn the_bound_rdma_core_lacks_nothing_and_an_older_one_does() {
    let loaded = [verbs().map(drop), mlx5dv().map(drop), efadv().map(drop)];
    if let Some(error) = loaded.into_iter().find_map(Result::err) {
        return println!("skipped: {error}");
    }
    for version in versions() {
        let Some(core) = version.file_version.as_deref().and_then(|file| file.splitn(3, '.').nth(2)) else {
            println!("skipped: {} does not end with a version", version.file.display());
            continue;
        };
        println!("{} {core}: lacks {} functions", version.library, version.absent.len());
        match core {
            RDMA_CORE_VERSION => assert_eq!(version.absent, [""; 0], "{version:?}"),
            "44.0" => assert!(!version.absent.is_empty(), "{version:?}"),
            _ => {}
        }
    }
}
