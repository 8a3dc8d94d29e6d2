//! What the types forbid does not compile, and says why.
//!
//! The text of a compiler's error changes from release to release, so the `.stderr` files are those of one
//! release, named here, and are compared under that release alone. Under any other, the same mistakes are
//! still held to account by the `compile_fail` examples in the documentation, which need no text. To renew
//! the files after a new release: `TRYBUILD=overwrite cargo test -p ibv-core --test compile_fail`.
#[path = "compile_fail/done_right/mod.rs"]
mod done_right;
use std::process::Command;

/// The release whose texts the `.stderr` files hold.
const RELEASE: &str = "rustc 1.95.";

#[test]
fn what_the_types_forbid_does_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let version = Command::new(rustc).arg("-V").output().expect("the compiler that built this test runs");
    let version = String::from_utf8_lossy(&version.stdout);
    if version.starts_with(RELEASE) {
        trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
    } else {
        println!("skipped: the .stderr files are of {RELEASE}x, this is {}", version.trim());
    }
}
