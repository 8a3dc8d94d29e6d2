//! The exported functions with the symbol version each has in the newest libraries, read from the libraries
//! themselves. Holds which of them every supported rdma-core has.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::Command;

use super::model::{Function, Library};

impl Library {
    /// The file name that the dynamic linker knows the library by.
    pub fn soname(self) -> &'static str {
        match self {
            Self::Verbs => "libibverbs.so.1",
            Self::Mlx5dv => "libmlx5.so.1",
            Self::Efadv => "libefa.so.1",
        }
    }

    /// The newest symbol version that every rdma-core since the merged tree (2016; libefa: 2019) has.
    fn baseline(self) -> (&'static str, u32) {
        match self {
            Self::Verbs => ("IBVERBS_1", 1),
            Self::Mlx5dv => ("MLX5_1", 2),
            Self::Efadv => ("EFA_1", 1),
        }
    }
}

/// A function with what the loader must know of it.
#[derive(Debug, Clone)]
pub struct Symbol {
    pub function: Function,
    pub version: String,
    pub required: bool,
    pub absent: Absent,
}

/// How a function says that it does not exist here, in its own convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// Returns the error number.
    Code,
    /// Returns −1.
    MinusOne,
    /// Returns the negated error number.
    Negated,
    /// Returns null, false, zero or nothing.
    Nothing,
}

impl Absent {
    pub fn name(self) -> &'static str {
        match self {
            Self::Code => "Code",
            Self::MinusOne => "MinusOne",
            Self::Negated => "Negated",
            Self::Nothing => "Nothing",
        }
    }

    /// By the result type, but for the functions whose man page says otherwise.
    fn of(function: &Function) -> Self {
        const MINUS_ONE: [&str; 15] = [
            "ibv_close_device",
            "ibv_get_device_index",
            "ibv_query_gid",
            "ibv_query_pkey",
            "ibv_get_pkey_index",
            "ibv_get_async_event",
            "ibv_get_cq_event",
            "ibv_init_ah_from_wc",
            "ibv_rate_to_mult",
            "ibv_rate_to_mbps",
            "ibv_dm_export_dmabuf_fd",
            "ibv_export_buf_dmabuf_fd",
            "mlx5dv_devx_get_event",
            "mlx5dv_devx_uar_export_dmabuf_fd",
            "ibv_read_sysfs_file",
        ];
        const NEGATED: [&str; 4] = [
            "_ibv_query_gid_table",
            "efadv_get_max_sq_depth",
            "efadv_get_max_rq_depth",
            "mlx5dv_vfio_get_events_fd",
        ];
        match (function.name.as_str(), function.result.as_deref()) {
            (name, _) if MINUS_ONE.contains(&name) => Self::MinusOne,
            (name, _) if NEGATED.contains(&name) => Self::Negated,
            (_, Some("c_int")) => Self::Code,
            _ => Self::Nothing,
        }
    }
}

/// The declared functions that each library exports, with the default version of each.
pub fn symbols(
    functions: &[Function],
    libraries: &Path,
) -> Result<BTreeMap<Library, Vec<Symbol>>, Box<dyn Error>> {
    let mut symbols = BTreeMap::new();
    for library in Library::ALL {
        let all = default_versions(&libraries.join(library.soname()))?;
        // A private version names one release: such a function is between the library and its own providers.
        let (private, versions): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|(_, version)| version.contains("PRIVATE"));
        let symbol = |function: &Function| {
            let version = versions.get(&function.name)?.clone();
            let required = at_baseline(library, &version);
            Some(Symbol { absent: Absent::of(function), function: function.clone(), version, required })
        };
        let of_library = functions.iter().filter(|function| Library::of(&function.name) == library);
        let (exported, rest): (Vec<_>, Vec<_>) =
            of_library.partition(|function| versions.contains_key(&function.name));
        if let Some(missing) = rest.iter().find(|function| !private.contains_key(&function.name)) {
            return Err(format!(
                "{} does not export {}, which its header declares",
                library.soname(),
                missing.name
            )
            .into());
        }
        symbols.insert(library, exported.into_iter().filter_map(symbol).collect());
    }
    Ok(symbols)
}

fn at_baseline(library: Library, version: &str) -> bool {
    let (family, newest) = library.baseline();
    let minor = version.strip_prefix(family).and_then(|rest| rest.strip_prefix('.'));
    minor.and_then(|minor| minor.parse::<u32>().ok()).is_some_and(|minor| minor <= newest)
}

/// Default (`@@`) version of every function that a shared library defines.
fn default_versions(library: &Path) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let out =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output()?;
    if !out.status.success() {
        return Err(format!("nm {}: {}", library.display(), String::from_utf8_lossy(&out.stderr)).into());
    }
    let text = String::from_utf8(out.stdout)?;
    let default = |line: &str| {
        let (name, version) = line.split_whitespace().nth(2)?.split_once("@@")?;
        Some((name.to_owned(), version.to_owned()))
    };
    Ok(text.lines().filter_map(default).collect())
}

/// Fails if an older library has a function at another default version: such a function changed its ABI.
pub fn check_older(symbols: &BTreeMap<Library, Vec<Symbol>>, libraries: &Path) -> Result<(), Box<dyn Error>> {
    for (library, symbols) in symbols {
        let versions = default_versions(&libraries.join(library.soname()))?;
        for symbol in symbols {
            match versions.get(&symbol.function.name) {
                Some(version) if *version != symbol.version => {
                    let name = &symbol.function.name;
                    return Err(format!(
                        "{name} is {version} in {} but {} in the newest",
                        libraries.display(),
                        symbol.version
                    )
                    .into());
                }
                None if symbol.required => {
                    return Err(format!(
                        "{} lacks {}, called required",
                        libraries.display(),
                        symbol.function.name
                    )
                    .into());
                }
                _ => {}
            }
        }
    }
    Ok(())
}
