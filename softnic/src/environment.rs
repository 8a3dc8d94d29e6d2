//! The environment that `cargo xtask softnic` sets, as a configuration: each variable's value is one that is known, or an error
//! that says which are. What is done with them is in [`crate::machine`].

use crate::description::{Abi, Description, Kind, Link};
use crate::machine::{Config, Drive, StartError};
use crate::trace::Format;

/// Devices that a machine can have.
const MOST_DEVICES: u8 = 64;

impl Config {
    /// Reads the environment that `cargo xtask softnic` sets: `SOFTNIC_DEVICES` (a TOML file), or `SOFTNIC_DEVICE` (`mlx5` or
    /// `efa`), `SOFTNIC_LINK` (`ib` or `roce`) and `SOFTNIC_COUNT` (1 to 64); `SOFTNIC_SESSION`; `SOFTNIC_ABI` (`native`,
    /// `invoke` or `write`); `SOFTNIC_STRICT`, `SOFTNIC_COUNT_DOORBELLS`, `SOFTNIC_DEBUG` and `SOFTNIC_PRELOAD` (0 or 1);
    /// `SOFTNIC_TRACE` and `SOFTNIC_TRACE_TEXT` (files, or `-` for standard error). An empty one is as one that is not set.
    ///
    /// # Errors
    ///
    /// A variable's value can't be used; the message names it, and what can.
    pub fn from_environment() -> Result<Self, StartError> {
        let mut description = devices()?;
        let generations = [("native", Abi::Native), ("invoke", Abi::Invoke), ("write", Abi::Write)];
        if let Some(abi) = choice("SOFTNIC_ABI", &generations)? {
            description.abi = abi;
        }
        for read_elsewhere in ["SOFTNIC_DEBUG", "SOFTNIC_PRELOAD"] {
            flag(read_elsewhere)?;
        }
        let traces = [(Format::Json, "SOFTNIC_TRACE"), (Format::Text, "SOFTNIC_TRACE_TEXT")];
        let traces = traces.into_iter().filter_map(|(format, name)| Some((format, path(name)?.into())));
        Ok(Self {
            description,
            drive: Drive::Thread,
            session: Some(var("SOFTNIC_SESSION").unwrap_or_else(|| "default".to_owned())),
            strict: flag("SOFTNIC_STRICT")?,
            count_doorbells: flag("SOFTNIC_COUNT_DOORBELLS")?,
            record: false,
            traces: traces.collect(),
        })
    }
}

fn devices() -> Result<Description, StartError> {
    if let Some(file) = path("SOFTNIC_DEVICES") {
        let text = std::fs::read_to_string(&file).map_err(|e| {
            unusable("SOFTNIC_DEVICES", &file.to_string_lossy(), &format!("a file that can be read ({e})"))
        })?;
        return Description::parse(&text).map_err(|e| StartError::Description(file.into(), e));
    }
    let link = choice("SOFTNIC_LINK", &[("ib", Link::Ib), ("roce", Link::Roce)])?.unwrap_or(Link::Ib);
    let count = u16::from(count("SOFTNIC_COUNT", MOST_DEVICES)?);
    let kind = choice("SOFTNIC_DEVICE", &[("mlx5", Kind::Mlx5), ("efa", Kind::Efa)])?;
    Ok(match kind.unwrap_or_default() {
        Kind::Mlx5 => Description::standard(link, count),
        Kind::Efa => Description::efa(count),
    })
}

/// A variable that is set, and not empty.
fn var(name: &str) -> Option<String> {
    path(name).map(|value| value.to_string_lossy().into_owned())
}

fn path(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn unusable(name: &'static str, value: &str, can: &str) -> StartError {
    StartError::Environment { name, value: value.to_owned(), can: can.to_owned() }
}

/// What a variable chooses.
fn choice<T: Copy>(name: &'static str, known: &[(&str, T)]) -> Result<Option<T>, StartError> {
    let Some(value) = var(name) else { return Ok(None) };
    let found = known.iter().find(|(word, _)| *word == value).map(|(_, chosen)| *chosen);
    let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
    found.map(Some).ok_or_else(|| unusable(name, &value, &words.join(" or ")))
}

/// Whether a variable is 1; one that is not set is 0.
fn flag(name: &'static str) -> Result<bool, StartError> {
    choice(name, &[("0", false), ("1", true)]).map(Option::unwrap_or_default)
}

/// A number from 1 on; 1 by default.
fn count(name: &'static str, most: u8) -> Result<u8, StartError> {
    let Some(value) = var(name) else { return Ok(1) };
    let number = value.parse().ok().filter(|n| (1..=most).contains(n));
    number.ok_or_else(|| unusable(name, &value, &format!("a number from 1 to {most}")))
}

/// Whether a variable says that something is on, where nobody can be told that it says nothing: that was done by
/// [`Config::from_environment`].
pub(crate) fn is_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}
