//! The loader against made-up libraries: symbol versions, absent functions, and two copies in one process.
//!
//! What a process has loaded stays, so each case runs in a process of its own: this test binary again, with the
//! environment that the case needs.
#![cfg(all(target_env = "gnu", not(feature = "link")))]

mod support;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use ibv_sys::{Mlx5dv, Symbol, Verbs, efadv, mlx5dv, verbs, versions};

/// Set in the processes that do the loading.
const CHILD: &str = "IBV_SYS_TEST_CHILD";

/// A shared library with functions of given names and versions, each returning a number.
#[derive(Default)]
struct MadeUp {
    code: String,
    versions: String,
    functions: usize,
}

impl MadeUp {
    /// All functions that a table requires, but for one.
    fn with_required(symbols: &[Symbol], but: &str) -> Self {
        let mut library = Self::default();
        for symbol in symbols.iter().filter(|symbol| symbol.required && symbol.name != but) {
            library.function(symbol.name, symbol.version, "@@", 0);
        }
        library
    }

    /// `kind` is `@@` for the default version of a name and `@` for an older one.
    fn function(&mut self, name: &str, version: &str, kind: &str, value: i64) {
        let (code, versions) = (&mut self.code, &mut self.versions);
        let number = self.functions;
        self.functions += 1;
        let _ = writeln!(code, "long f{number}(void) {{ return {value}; }}");
        let _ = writeln!(code, "__asm__(\".symver f{number}, {name}{kind}{version}\");");
        if !versions.contains(&format!("{version} ")) {
            let _ = writeln!(versions, "{version} {{ }};");
        }
    }

    fn build(&self, file: &Path, soname: &str) {
        let folder = file.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        let (code, script) = (folder.join(format!("{soname}.c")), folder.join(format!("{soname}.map")));
        fs::write(&code, &self.code).unwrap();
        fs::write(&script, &self.versions).unwrap();
        let out = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-shared", "-fPIC", "-w", "-o"])
            .arg(file)
            .arg(&code)
            .arg(format!("-Wl,-soname,{soname},--version-script,{}", script.display()))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// A fresh folder for one case's libraries; `None`, with the reason printed, without a compiler.
fn folder(case: &str) -> Option<PathBuf> {
    if let Err(error) = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into())).arg("--version").output()
    {
        support::skip(&format!("no C compiler: {error}"));
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copies").join(case);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    Some(folder)
}

/// Runs this binary again for one case and gives what it printed after `answer: `.
fn child(case: &str, environment: &[(&str, &Path)]) -> Vec<String> {
    let out = Command::new(env::current_exe().unwrap())
        .args(["--exact", case, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    text.lines().filter_map(|line| Some(line.split_once("answer: ")?.1.to_owned())).collect()
}

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

#[test]
fn the_version_that_is_bound_is_called_and_no_other() {
    if is_child() {
        // SAFETY: the made-up functions take nothing and give a number.
        return println!("answer: {}", unsafe { verbs().unwrap().ibv_fork_init() });
    }
    let Some(folder) = folder("version") else { return };
    let mut library = MadeUp::with_required(Verbs::SYMBOLS, "ibv_fork_init");
    library.function("ibv_fork_init", "IBVERBS_1.0", "@", 10);
    library.function("ibv_fork_init", "IBVERBS_1.1", "@", 11);
    library.function("ibv_fork_init", "IBVERBS_1.99", "@@", 99);
    let file = folder.join("libibverbs.so.1");
    library.build(&file, "libibverbs.so.1");
    let case = "the_version_that_is_bound_is_called_and_no_other";
    assert_eq!(child(case, &[("IBV_LIBIBVERBS", &file)]), ["11"]);
}

#[test]
fn an_optional_function_that_is_absent_answers_unsupported() {
    if is_child() {
        let verbs = verbs().unwrap();
        // SAFETY: absent functions follow no pointer.
        let code = unsafe { verbs.ibv_set_ece(std::ptr::null_mut(), std::ptr::null_mut()) };
        let missing = verbs.require(&["ibv_set_ece"]).unwrap_err();
        println!("answer: {code} {missing}");
        return println!("answer: {:?}", versions()[0].symbol_versions);
    }
    let Some(folder) = folder("optional") else { return };
    let file = folder.join("libibverbs.so.1");
    let mut library = MadeUp::with_required(Verbs::SYMBOLS, "");
    library.function("ibv_reg_mr_iova2", "IBVERBS_1.8", "@@", 0);
    library.build(&file, "libibverbs.so.1");
    let said = child("an_optional_function_that_is_absent_answers_unsupported", &[("IBV_LIBIBVERBS", &file)]);
    assert!(said[0].starts_with(&format!("{} ", libc::EOPNOTSUPP)), "{said:?}");
    assert!(
        said[0].contains("ibv_set_ece of version IBVERBS_1.10")
            && said[0].contains("optional/libibverbs.so.1")
    );
    assert_eq!(said[1], "[\"IBVERBS_1.0\", \"IBVERBS_1.1\", \"IBVERBS_1.8\"]");
}

#[test]
fn a_required_function_that_is_absent_is_an_error() {
    if is_child() {
        return println!("answer: {}", verbs().unwrap_err());
    }
    let Some(folder) = folder("required") else { return };
    let file = folder.join("libibverbs.so.1");
    let mut library = MadeUp::with_required(Verbs::SYMBOLS, "ibv_alloc_pd");
    library.function("ibv_alloc_pd", "IBVERBS_1.0", "@", 0);
    library.build(&file, "libibverbs.so.1");
    let said = child("a_required_function_that_is_absent_is_an_error", &[("IBV_LIBIBVERBS", &file)]);
    assert!(said[0].contains("no ibv_alloc_pd of version IBVERBS_1.1"), "{said:?}");
}

#[test]
fn a_library_that_is_not_there_is_named_with_what_was_tried() {
    if is_child() {
        println!("answer: {}", verbs().unwrap_err());
        return println!("answer: {}", efadv().unwrap_err());
    }
    let said = child(
        "a_library_that_is_not_there_is_named_with_what_was_tried",
        &[("IBV_LIBIBVERBS", Path::new("/nonexistent/libibverbs.so.1"))],
    );
    assert!(
        said[0].starts_with("libibverbs.so.1 not found; tried /nonexistent/libibverbs.so.1 ("),
        "{said:?}"
    );
    assert!(said[0].contains("IBV_LIBIBVERBS"), "{said:?}");
    assert_eq!(said[0], said[1], "without libibverbs there is no device for libefa either");
}

/// libibverbs that opens `plugin` when its devices are listed, as the real one does with a driver's.
fn libibverbs_with_plugin(folder: &Path, plugin: &Path) -> PathBuf {
    let file = folder.join("libibverbs.so.1");
    let mut library = MadeUp::with_required(Verbs::SYMBOLS, "ibv_get_device_list");
    library.function("ibv_get_device_list", "IBVERBS_1.1", "@@", 0);
    let last = library.functions - 1;
    let list = format!("long f{last}(void) {{ return 0; }}");
    let opens = format!("long f{last}(void) {{ return dlopen(\"{}\", 2) ? 0 : 0; }}", plugin.display());
    library.code = format!("#include <dlfcn.h>\n{}", library.code.replace(&list, &opens));
    library.build(&file, "libibverbs.so.1");
    file
}

#[test]
fn libmlx5_comes_from_the_file_that_libibverbs_uses() {
    if is_child() {
        return println!("answer: {}", mlx5dv().unwrap().path().display());
    }
    let Some(folder) = folder("plugin") else { return };
    let plugin = folder.join("libmlx5-rdmav34.so");
    MadeUp::with_required(Mlx5dv::SYMBOLS, "").build(&plugin, "libmlx5.so.1");
    let library = libibverbs_with_plugin(&folder, &plugin);
    let said = child("libmlx5_comes_from_the_file_that_libibverbs_uses", &[("IBV_LIBIBVERBS", &library)]);
    assert_eq!(said, [plugin.display().to_string()]);
}

#[test]
fn two_copies_of_libmlx5_are_an_error_with_both_paths() {
    if is_child() {
        return println!("answer: {}", mlx5dv().unwrap_err());
    }
    let Some(folder) = folder("mismatch") else { return };
    let (plugin, other) = (folder.join("libmlx5-rdmav34.so"), folder.join("other/libmlx5.so.1"));
    for file in [&plugin, &other] {
        MadeUp::with_required(Mlx5dv::SYMBOLS, "").build(file, "libmlx5.so.1");
    }
    let library = libibverbs_with_plugin(&folder, &plugin);
    let environment = [("IBV_LIBIBVERBS", library.as_path()), ("IBV_LIBMLX5", other.as_path())];
    let said = child("two_copies_of_libmlx5_are_an_error_with_both_paths", &environment);
    assert!(
        said[0].contains(plugin.to_str().unwrap()) && said[0].contains(other.to_str().unwrap()),
        "{said:?}"
    );
}

#[test]
fn a_device_of_another_copy_is_told_from_one_of_ours() {
    if is_child() {
        let mlx5 = mlx5dv().unwrap();
        for variable in ["TEST_OURS", "TEST_OTHER"] {
            let context = context_driven_by(Path::new(&env::var_os(variable).unwrap()));
            // SAFETY: the context has one operation, and is only looked at.
            let judged = unsafe { mlx5.check_device(&context) };
            println!("answer: {}", judged.map_or_else(|error| error.to_string(), |()| "ours".into()));
        }
        return;
    }
    let Some(folder) = folder("device") else { return };
    let (plugin, other) = (folder.join("libmlx5-rdmav34.so"), folder.join("other/libmlx5-rdmav34.so"));
    for file in [&plugin, &other] {
        let mut library = MadeUp::with_required(Mlx5dv::SYMBOLS, "");
        library.function("poll_cq", "MLX5_1.0", "@@", 0);
        library.build(file, &format!("{}.so.1", if file == &plugin { "libmlx5" } else { "libmlx5other" }));
    }
    let library = libibverbs_with_plugin(&folder, &plugin);
    let environment =
        [("IBV_LIBIBVERBS", library.as_path()), ("TEST_OURS", &plugin), ("TEST_OTHER", other.as_path())];
    let said = child("a_device_of_another_copy_is_told_from_one_of_ours", &environment);
    assert_eq!(said[0], "ours");
    assert!(
        said[1].contains(plugin.to_str().unwrap()) && said[1].contains(other.to_str().unwrap()),
        "{said:?}"
    );
}

/// A device context whose operation lies in a library.
fn context_driven_by(library: &Path) -> ibv_sys::ibv_context {
    let name = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the library was made for this test and has no initialisers; the operation is never called.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        let poll_cq = libc::dlsym(handle, c"poll_cq".as_ptr());
        assert!(!poll_cq.is_null());
        let mut context = ibv_sys::ibv_context::default();
        type PollCq = unsafe extern "C" fn(*mut ibv_sys::ibv_cq, i32, *mut ibv_sys::ibv_wc) -> i32;
        context.ops.poll_cq = std::mem::transmute::<*mut libc::c_void, Option<PollCq>>(poll_cq);
        context
    }
}
