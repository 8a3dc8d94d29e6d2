//! The three libraries, each opened once and its table kept. Does not say how a library is opened (`dynamic` and
//! `linked` do) or which devices to use, and closes nothing: objects of the libraries may outlive any handle.
//!
//! # Safety
//!
//! Opening a library runs its initialisers; rdma-core's only set up tables. Every address is that of the symbol
//! version whose signature the table declares, so a frozen older version of a name is never bound.

#[cfg(not(feature = "link"))]
#[path = "load/dynamic.rs"]
mod open;
#[cfg(feature = "link")]
#[path = "load/linked.rs"]
mod open;

use core::ffi::c_void;
use core::ops::Deref;
use core::ptr::NonNull;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::LoadError;
#[cfg(feature = "link")]
use crate::table::Linked as Origin;
#[cfg(not(feature = "link"))]
use crate::table::Table as Origin;
use crate::table::{Symbol, Table};
use crate::{Efadv, Mlx5dv, Verbs, plugin};

/// A table that can be loaded, with what is particular to each library.
pub trait Loadable: Origin + Table {
    /// The environment variable that overrides where the library is looked for.
    const VARIABLE: &'static str;
    /// What the file name of libibverbs' plugin with this code in it begins with; `None` for libibverbs itself.
    const PLUGIN: Option<&'static str>;

    fn cell() -> &'static OnceLock<Result<Library<Self>, LoadError>>;
}

macro_rules! loadable {
    ($table:ident, $variable:literal, $plugin:expr) => {
        impl Loadable for $table {
            const VARIABLE: &'static str = $variable;
            const PLUGIN: Option<&'static str> = $plugin;

            fn cell() -> &'static OnceLock<Result<Library<Self>, LoadError>> {
                static CELL: OnceLock<Result<Library<$table>, LoadError>> = OnceLock::new();
                &CELL
            }
        }
    };
}

loadable!(Verbs, "IBV_LIBIBVERBS", None);
loadable!(Mlx5dv, "IBV_LIBMLX5", Some("libmlx5"));
loadable!(Efadv, "IBV_LIBEFA", Some("libefa"));

/// A loaded library: its table of functions, and where they came from.
#[derive(Debug, Clone)]
pub struct Library<T> {
    table: T,
    path: PathBuf,
    absent: Vec<&'static Symbol>,
}

impl<T> Deref for Library<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.table
    }
}

/// libibverbs, opened on the first call.
///
/// # Errors
///
/// [`LoadError::LibraryNotFound`] or [`LoadError::SymbolMissing`]; the same on every later call.
pub fn verbs() -> Result<&'static Library<Verbs>, LoadError> {
    load()
}

/// libmlx5, opened on the first call from the file that libibverbs uses for its mlx5 devices.
///
/// # Errors
///
/// As [`verbs`], whose own error this gives if libibverbs can not be had; [`LoadError::PluginMismatch`] if
/// `IBV_LIBMLX5` names another file than libibverbs uses.
pub fn mlx5dv() -> Result<&'static Library<Mlx5dv>, LoadError> {
    load()
}

/// libefa, opened on the first call from the file that libibverbs uses for its EFA devices.
///
/// # Errors
///
/// As [`mlx5dv`], with `IBV_LIBEFA`.
pub fn efadv() -> Result<&'static Library<Efadv>, LoadError> {
    load()
}

fn load<T: Loadable>() -> Result<&'static Library<T>, LoadError> {
    T::cell().get_or_init(open::open::<T>).as_ref().map_err(Clone::clone)
}

fn mismatch<T: Loadable>(loaded: &Path, plugin: &Path) -> LoadError {
    LoadError::PluginMismatch {
        library: T::SONAME,
        variable: T::VARIABLE,
        loaded: loaded.to_owned(),
        plugin: plugin.to_owned(),
    }
}

impl<T: Loadable> Library<T> {
    /// # Safety
    ///
    /// That of [`Table::resolve`].
    unsafe fn resolve(
        file: &Path,
        mut lookup: impl FnMut(&'static Symbol) -> Option<NonNull<c_void>>,
    ) -> Result<Self, LoadError> {
        let mut absent = Vec::new();
        let mut found = None;
        let note = |symbol| {
            let address = lookup(symbol);
            match address {
                Some(_) => found = found.or(address),
                None => absent.push(symbol),
            }
            address
        };
        // SAFETY: the caller's promise.
        let table = unsafe { T::resolve(note) };
        let path = found.and_then(plugin::file_of).unwrap_or_else(|| file.to_owned());
        let library = Self { table, path, absent };
        match library.absent.iter().find(|symbol| symbol.required) {
            Some(symbol) => Err(library.missing(symbol)),
            None => Ok(library),
        }
    }

    /// The file that the functions came from, as the dynamic linker names it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The functions that this library lacks and that therefore answer EOPNOTSUPP.
    pub fn absent(&self) -> &[&'static Symbol] {
        &self.absent
    }

    /// Checks that the library has all of some functions.
    ///
    /// # Errors
    ///
    /// [`LoadError::SymbolMissing`] for the first that it lacks, with the version that brought it; a name that is
    /// not in the table counts as lacking, at version `unknown`.
    pub fn require(&self, names: &[&'static str]) -> Result<(), LoadError> {
        let lacking = |name: &&'static str| {
            let known = T::SYMBOLS.iter().find(|symbol| symbol.name == *name);
            let symbol = known.copied().unwrap_or(Symbol { name, version: "unknown", required: false });
            (known.is_none() || self.absent.contains(&&symbol)).then(|| self.missing(&symbol))
        };
        names.iter().find_map(lacking).map_or(Ok(()), Err)
    }

    fn missing(&self, symbol: &Symbol) -> LoadError {
        LoadError::SymbolMissing {
            library: T::SONAME,
            path: self.path.clone(),
            symbol: symbol.name,
            version: symbol.version,
        }
    }

    /// Checks that an open device is driven by the same copy of this provider library.
    ///
    /// A device of another provider passes: it is not this library's to judge.
    ///
    /// # Errors
    ///
    /// [`LoadError::PluginMismatch`] with both paths.
    ///
    /// # Safety
    ///
    /// `context` is an open device context.
    pub unsafe fn check_device(&self, context: *const crate::ibv_context) -> Result<(), LoadError> {
        let Some(prefix) = T::PLUGIN else { return Ok(()) };
        // SAFETY: the caller's promise.
        match unsafe { plugin::of_device(context, prefix) } {
            Some(plugin) if !plugin::same_file(&self.path, &plugin) => {
                Err(mismatch::<T>(&self.path, &plugin))
            }
            _ => Ok(()),
        }
    }

    fn version(&self) -> LibraryVersion {
        let file = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut symbol_versions: Vec<_> = T::SYMBOLS
            .iter()
            .filter(|symbol| !self.absent.contains(symbol))
            .map(|symbol| symbol.version)
            .collect();
        symbol_versions.sort_by_key(|version| version_key(version));
        symbol_versions.dedup();
        LibraryVersion {
            library: T::SONAME,
            path: self.path.clone(),
            file_version: name.split_once(".so.").map(|(_, version)| version.to_owned()),
            file,
            symbol_versions,
            absent: self.absent.iter().map(|symbol| symbol.name).collect(),
        }
    }
}

/// What was loaded for one library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryVersion {
    /// The library's soname, `libibverbs.so.1`.
    pub library: &'static str,
    /// The file as the dynamic linker names it.
    pub path: PathBuf,
    /// The file behind its symbolic links, `…/libibverbs.so.1.14.44.0`.
    pub file: PathBuf,
    /// The version in the file's name, `1.14.44.0`: rdma-core ends it with its own version.
    pub file_version: Option<String>,
    /// The known symbol versions that it has functions of, oldest first.
    pub symbol_versions: Vec<&'static str>,
    /// The known functions that it lacks.
    pub absent: Vec<&'static str>,
}

/// What is loaded now, for those of the three libraries that are; loads nothing.
pub fn versions() -> Vec<LibraryVersion> {
    [loaded::<Verbs>(), loaded::<Mlx5dv>(), loaded::<Efadv>()].into_iter().flatten().collect()
}

fn loaded<T: Loadable>() -> Option<LibraryVersion> {
    Some(T::cell().get()?.as_ref().ok()?.version())
}

/// `IBVERBS_1.10` sorts after `IBVERBS_1.9`.
fn version_key(version: &str) -> Vec<u32> {
    version.split(['_', '.']).filter_map(|part| part.parse().ok()).collect()
}
