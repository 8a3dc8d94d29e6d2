//! A place of a machine by the name that people give it. Whether there is such a one is `Topology`'s to say.

use crate::pci::PciAddress;
use std::{fmt, str::FromStr};

/// `gpu:0`, `numa:1` or a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A GPU by its place among [`Topology::gpus`](crate::Topology::gpus).
    Gpu(usize),
    /// A NUMA node by number.
    Numa(u32),
    /// A GPU or an RDMA device by address.
    Pci(PciAddress),
}

/// A text that names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of gpu:N, numa:N and a PCI address such as 0000:3b:00.0")]
pub struct NotAPlace(String);

impl FromStr for Place {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Self, NotAPlace> {
        let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok());
        let place = match text.split_once(':') {
            Some(("gpu", n)) => number(n).flatten().map(|n: u32| Self::Gpu(n as usize)),
            Some(("numa", n)) => number(n).flatten().map(Self::Numa),
            _ => text.parse().ok().map(Self::Pci),
        };
        place.ok_or_else(|| NotAPlace(text.into()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(n) => write!(f, "gpu:{n}"),
            Self::Numa(n) => write!(f, "numa:{n}"),
            Self::Pci(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_written() {
        for text in ["gpu:0", "gpu:15", "numa:1", "0000:3b:00.0"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_names_no_place_is_quoted_with_what_would() {
        for bad in ["", "gpu", "gpu:", "gpu:-1", "gpu:+1", "cpu:0", "numa:x", "gpu:99999999999", "3b"] {
            let e = bad.parse::<Place>().unwrap_err().to_string();
            assert!(e.contains(&format!("{bad:?}")) && e.contains("gpu:N"), "{e}");
        }
    }
}
