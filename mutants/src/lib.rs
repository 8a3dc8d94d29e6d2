//! Deliberately broken providers, each of which the conformance suite must catch: a suite that lets one
//! pass is missing a case. They are made by wrapping the mock in a domain that forwards everything but
//! for one thing; what each gets wrong is in `mutations/`, how they are judged in `judge.rs`.
//!
//! Unsafe code is here only to forward unsafe functions: a crate of its own, so that `conformance` has none.
#![deny(unsafe_code)]

mod domain;
mod fixture;
mod hooks;
mod judge;
mod mutations;
mod queue_pair;
mod world;

pub use crate::{
    domain::{MutantDomain, MutantPoller, MutantRegistration},
    fixture::MutantFixture,
    judge::{Caught, Tally, Verdict, judge, judge_all},
    mutations::{Mutant, controls, mutants, of_gets_alone},
    queue_pair::MutantQueuePair,
};
