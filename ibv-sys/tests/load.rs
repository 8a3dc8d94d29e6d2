//! The loader against whatever rdma-core this machine has; without one, the typed error is the subject.

use ibv_sys::{LoadError, efadv, mlx5dv, verbs, versions};

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
