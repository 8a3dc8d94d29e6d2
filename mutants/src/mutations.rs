//! The mutants, by what they get wrong. Each differs from the honest wrapper in one thing only.

use crate::hooks::{HONEST, Hooks};

mod atomics;
mod capabilities;
mod clients;
mod completions;
mod control;
mod memory;
mod receives;
mod requests;

/// A deliberately broken provider.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name, in words joined by underscores.
    pub name: &'static str,
    /// What it does wrong, as a sentence without its subject.
    pub does: &'static str,
    pub(crate) hooks: Hooks,
}

/// The wrapper without a mutation, over an ordered and a shuffling device. It has to pass every case, or
/// the verdicts mean nothing.
pub fn controls() -> [Mutant; 2] {
    [
        Mutant { name: "control", does: "Forwards everything.", hooks: HONEST },
        Mutant {
            name: "shuffled_control",
            does: "Forwards everything, over a device that shuffles.",
            hooks: Hooks { shuffled: true, ..HONEST },
        },
    ]
}

/// Every mutant, in a fixed order.
pub fn mutants() -> Vec<Mutant> {
    [
        requests::MUTANTS,
        atomics::MUTANTS,
        receives::MUTANTS,
        completions::MUTANTS,
        memory::MUTANTS,
        control::MUTANTS,
        capabilities::MUTANTS,
        clients::MUTANTS,
    ]
    .concat()
}

/// Lists mutants: what each does, its name, and the hooks in which it differs.
macro_rules! list {
    ($(#[doc = $does:literal] $name:ident { $($hook:ident: $with:expr),* $(,)? })*) => {
        pub(super) const MUTANTS: &[super::Mutant] = &[$(super::Mutant {
            name: stringify!($name),
            does: $does.trim_ascii(),
            hooks: crate::hooks::Hooks { $($hook: $with,)* ..crate::hooks::HONEST },
        }),*];
    };
}
use list;
