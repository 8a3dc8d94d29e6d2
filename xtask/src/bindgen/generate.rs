//! One run of bindgen over verbs.h, mlx5dv.h and efadv.h for one target. Holds every choice that bindgen is
//! given; what becomes of its output is `model`'s.

use std::error::Error;

use bindgen::{Builder, EnumVariation, RustEdition, RustTarget};

use super::headers::{self, RdmaCore};
use crate::debian::Archive;

/// A Rust target that bindings are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Rust's and clang's name of the architecture.
    pub name: &'static str,
    /// Debian's.
    pub debian: &'static str,
}

/// The targets whose layouts are generated and compared.
pub const TARGETS: [Target; 2] =
    [Target { name: "x86_64", debian: "amd64" }, Target { name: "aarch64", debian: "arm64" }];

/// The headers that things are taken from; what these only mention comes along.
const ALLOWED: &str =
    r".*/infiniband/(verbs|ib_user_ioctl_verbs|mlx5dv|mlx5_user_ioctl_verbs|efadv|tm_types)\.h";

/// Types of the C library, which the libc crate has with the right layout for each target.
const FROM_LIBC: &str = "pthread_mutex_t|pthread_cond_t|timespec|ssize_t|FILE|_IO_FILE|__pthread.*|__ssize_t|__time_t|\
                         __syscall_slong_t|off_t|__off.*|_IO_.*|__atomic_wide_counter.*|__u?int[0-9]+_t";

/// Enums of which one value holds at a time: these become newtypes. The others are masks, or mixed with
/// integers by the headers themselves, and become integer constants.
const VALUES: &str = "ibv_(node_type|transport_type|atomic_cap|mtu|port_state|event_type|wc_status|wc_opcode|rate|\
                      srq_type|wq_type|wq_state|qp_type|qp_state|mig_state|wr_opcode|ops_wr_opcode|mw_type|gid_type|\
                      fork_status|flow_attr_type|counter_description|rereg_mr_err_code|comp_cntr_type|tph_mem_type)";

/// Runs bindgen for a target and gives what it wrote.
pub fn generate(archive: &Archive, target: Target, core: &RdmaCore) -> Result<String, Box<dyn Error>> {
    let [multiarch, include] = headers::c_headers(archive, target.debian)?;
    let bindings = builder()
        .clang_arg(format!("--target={}-unknown-linux-gnu", target.name))
        .clang_arg("-nostdlibinc")
        .clang_arg(format!("-I{}", core.include.display()))
        .clang_args([multiarch, include].iter().map(|path| format!("-isystem{}", path.display())))
        .generate()?;
    Ok(bindings.to_string())
}

fn builder() -> Builder {
    Builder::default()
        .header_contents(
            "ibv.h",
            "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n#include <infiniband/efadv.h>\n",
        )
        .allowlist_file(ALLOWED)
        .blocklist_type(FROM_LIBC)
        .default_enum_style(EnumVariation::Consts)
        .newtype_global_enum(VALUES)
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_default(true)
        .layout_tests(true)
        .wrap_unsafe_ops(true)
        .use_core()
        .rust_target(RustTarget::stable(88, 0).unwrap_or_else(|_| unreachable!("1.88 is a known target")))
        .rust_edition(RustEdition::Edition2024)
        .formatter(bindgen::Formatter::None)
}
