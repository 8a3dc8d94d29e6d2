//! Why a library could not be had. Errors of the verbs themselves are errno values, as in C.

use core::fmt;
use std::path::PathBuf;

/// A library or a function of it could not be had, or is of another copy than libibverbs uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file could be opened as the library.
    #[error("{library} not found; tried {}; install rdma-core, or set {variable} to the file's path", Tried(.tried))]
    LibraryNotFound {
        /// The library's soname, `libibverbs.so.1`.
        library: &'static str,
        /// The environment variable that overrides where it is looked for.
        variable: &'static str,
        /// What was tried, in order.
        tried: Vec<Attempt>,
    },
    /// The library lacks a function that it needs to have.
    #[error("{library} at {} has no {symbol} of version {version}: a newer rdma-core is needed", .path.display())]
    SymbolMissing {
        /// The library's soname.
        library: &'static str,
        /// The file that was opened.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
        /// The symbol version that brought it, `IBVERBS_1.12`.
        version: &'static str,
    },
    /// Two copies of a provider library are in the process: they answer EOPNOTSUPP to each other's devices.
    #[error(
        "{library} was loaded from {}, but libibverbs uses the copy at {} for its devices: two copies do not know \
         each other's devices; set {variable} to the second path, or unset it", .loaded.display(), .plugin.display()
    )]
    PluginMismatch {
        /// The library's soname.
        library: &'static str,
        /// The environment variable that overrides where it is looked for.
        variable: &'static str,
        /// The file whose functions this crate has.
        loaded: PathBuf,
        /// The file that libibverbs loaded as its provider.
        plugin: PathBuf,
    },
}

/// One attempt to open a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What was asked for: a path, or a bare file name for the dynamic linker's own search.
    pub file: PathBuf,
    /// What the dynamic linker answered.
    pub answer: String,
}

struct Tried<'a>(&'a [Attempt]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Attempt { file, answer }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({answer})", file.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_every_attempt_and_the_way_out() {
        let tried = vec![
            Attempt { file: "/opt/a.so".into(), answer: "no such file".into() },
            Attempt { file: "libefa.so.1".into(), answer: "not found".into() },
        ];
        let error = LoadError::LibraryNotFound { library: "libefa.so.1", variable: "IBV_LIBEFA", tried };
        assert_eq!(
            error.to_string(),
            "libefa.so.1 not found; tried /opt/a.so (no such file), libefa.so.1 (not found); install rdma-core, or \
             set IBV_LIBEFA to the file's path"
        );
    }

    #[test]
    fn a_mismatch_names_both_paths() {
        let error = LoadError::PluginMismatch {
            library: "libmlx5.so.1",
            variable: "IBV_LIBMLX5",
            loaded: "/new/libmlx5.so.1".into(),
            plugin: "/usr/lib/libmlx5.so.1".into(),
        };
        let text = error.to_string();
        assert!(text.contains("/new/libmlx5.so.1") && text.contains("/usr/lib/libmlx5.so.1"), "{text}");
    }

    #[test]
    fn a_missing_symbol_names_the_version_that_brought_it() {
        let error = LoadError::SymbolMissing {
            library: "libibverbs.so.1",
            path: "/lib/libibverbs.so.1".into(),
            symbol: "ibv_reg_dmabuf_mr",
            version: "IBVERBS_1.12",
        };
        assert!(error.to_string().contains("ibv_reg_dmabuf_mr of version IBVERBS_1.12"), "{error}");
    }
}
