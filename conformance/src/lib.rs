//! The suite that certifies an RDMA provider: about two hundred cases, each a sentence, that hold of every
//! provider which offers what the case needs. It names no hardware provider, and contains no unsafe code.
//!
//! A provider's own repository runs it in a few lines, by static and by run-time dispatch:
//!
//! ```
//! # use provider_mock::MockProvider as Mine;
//! mod by_static_dispatch {
//!     conformance::suite!(conformance::Devices::of(super::Mine::default()));
//! }
//! mod by_dyn_dispatch {
//!     conformance::suite!(conformance::Devices::of(super::Mine::default()).erased());
//! }
//! ```
//!
//! [`Devices`] is the fixture of any provider whose devices can be opened twice; [`Fixture`] is the trait
//! for everything else, such as a simulated fabric that has to be told to go on. There are three front ends
//! to one list of cases:
//!
//! - [`suite!`]: one `#[test]` for each case;
//! - [`main`]: a test binary of its own (`harness = false`), with `--require NAME`, `--json`, `--junit FILE`;
//! - [`run`]: a [`Report`], for libraries and command lines; [`cli::run`] is such a command line.
//!
//! [`differential::run`] generates programs and compares what the provider does with the mock's model.
//!
//! # What a result means
//!
//! Capabilities choose the cases: a case that needs what [`Caps`](ibv_core::Caps) does not offer is skipped,
//! and says which end lacks what. Cases about the transport, and not about one operation, need that bytes move:
//! they put where both ends can, else they get, else they send. Cases never assume an order that `Caps` does not promise, nor that a
//! completion at the sender makes bytes visible to the peer's processor at once. A device that is not
//! there skips; `--require NAME`, or `IBV_REQUIRE=NAME` for `suite!`, makes that a failure. What keeps every
//! case from running is said once: [`Stopped`]. Known failures
//! are listed as [`Expectation`]s with their reason, and an unexpected pass fails.
//!
//! Every wait has a deadline and says what it waited for. A provider's call that never returns can not be
//! ended from here: give the test process a time limit.
//!
//! # The list of cases is not a stable API
//!
//! Every release may add cases, and a provider that passed may fail the next. Pin the version, and quote it
//! with a result; reports carry it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// The standard library's panics where standard error can not be written to.
macro_rules! eprintln {
    ($($what:tt)*) => {{
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr().lock(),
            format_args!("{}\n", format_args!($($what)*)),
        );
    }};
}

mod case;
mod cases;
pub mod cli;
mod ctx;
pub mod differential;
mod expect;
mod fixture;
pub mod fixtures;
mod harness;
mod mimic;
mod pattern;
mod peer;
mod report;
mod stopped;
mod transfer;
mod wait;
mod whole;

pub use crate::{
    cli::DynFixture,
    expect::Expectation,
    fixture::{Devices, End, Fixture, Pair, Progress, Side, Unavailable, Versions},
    harness::{Options, check, list, run},
    mimic::main,
    report::{CaseReport, Outcome, ProviderReport, Report},
    stopped::{StopKind, Stopped},
};

// For the commands that this project's own programs have besides.
#[doc(hidden)]
pub use crate::whole::Whole;

/// The examples of the README compile and hold.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
