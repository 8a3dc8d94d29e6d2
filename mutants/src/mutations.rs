//! The mutants, by what they get wrong. Each differs from the honest wrapper in one thing only.

use crate::hooks::{HONEST, Hooks};

mod atomics;
mod capabilities;
mod clients;
mod completions;
mod control;
mod gets;
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

/// Mutants that show nothing where nobody puts: they get puts wrong, immediates of puts, atomics, or what only a put
/// tells of a fence, of order, and of the bytes of one message.
const ABOUT_PUTS: &[&str] = &[
    "lost_last_byte",
    "lost_first_byte",
    "chunk_off_by_one",
    "remote_offset_ignored",
    "fence_dropped",
    "published_at_once",
    "zero_length_is_two_gib",
    "immediate_dropped",
    "immediate_on_every_chunk",
    "put_takes_a_receive",
    "atomic_returns_the_new_value",
    "compare_swap_always_swaps",
    "compare_swap_never_swaps",
    "fetch_add_not_atomic",
    "fetch_add_repeated",
    "fetch_add_loses_carries",
    "completion_before_data",
    "opcode_of_receives_wrong",
    "immediate_before_data",
    "atomics_by_write_access",
    "atomics_claimed",
    "bytes_in_order_claimed",
    "client_waits_for_no_completion",
    "client_polls_the_last_byte",
];

impl Mutant {
    /// The same over a device that has gets and messages alone.
    #[must_use]
    pub fn without_puts(self) -> Self {
        Self { hooks: Hooks { read_only: true, ..self.hooks }, ..self }
    }

    /// The same over a device that has everything.
    #[must_use]
    pub fn with_puts(self) -> Self {
        Self { hooks: Hooks { read_only: false, ..self.hooks }, ..self }
    }

    /// Whether it can only show where there are puts.
    pub fn is_about_puts(&self) -> bool {
        ABOUT_PUTS.contains(&self.name)
    }

    /// What it runs on, to follow its name.
    pub fn device(&self) -> &'static str {
        if self.hooks.read_only { ", without puts" } else { "" }
    }
}

/// The wrapper without a mutation, over an ordered device, a shuffling one, and one that can not put. It has to pass every case, or
/// the verdicts mean nothing.
pub fn controls() -> [Mutant; 3] {
    [
        Mutant {
            name: "read_only_control",
            does: "Forwards everything, over a device that can not put.",
            hooks: Hooks { read_only: true, ..HONEST },
        },
        Mutant { name: "control", does: "Forwards everything.", hooks: HONEST },
        Mutant {
            name: "shuffled_control",
            does: "Forwards everything, over a device that shuffles.",
            hooks: Hooks { shuffled: true, ..HONEST },
        },
    ]
}

/// Every mutant, in a fixed order: over a device that has everything, and then what shows without puts over one that
/// has none, where the suite gets instead.
pub fn mutants() -> Vec<Mutant> {
    let mut all = over_everything();
    let shows = all.clone().into_iter().filter(|m| !m.is_about_puts()).map(Mutant::without_puts);
    all.extend(shows.chain(gets::MUTANTS.iter().copied()).collect::<Vec<_>>());
    all
}

/// The mutants of gets that no case sees where it can put: only those of devices that can not do run them.
pub fn of_gets_alone() -> &'static [Mutant] {
    gets::MUTANTS
}

fn over_everything() -> Vec<Mutant> {
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
