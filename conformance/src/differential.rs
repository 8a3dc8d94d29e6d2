//! Generated programs on a provider and on the mock's model: the same bytes, the same completions, and the
//! same order where the capabilities promise one. Single properties have cases of their own.
//!
//! A program is a list of puts, gets, messages, atomics, rings, dropped batches and drains, with faults that
//! any provider can suffer: a wrong key, a range beyond its region, a region that is gone, a full queue.
//! `plan.rs` makes it unambiguous for what the provider promises, `execute.rs` runs it, and this file
//! compares. A difference is shrunk to a small program.

mod compare;
mod execute;
mod plan;

use crate::{
    fixture::{Fixture, Pair, Unavailable},
    fixtures::mock::Mock,
    harness::Options,
    report::Outcome,
    wait::Waiter,
};
use compare::difference;
use execute::{Observed, execute};
use ibv_core::Caps;
use plan::{Fault, Kind, Plan, Step};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};
use provider_mock::Schedule;

/// Runs `cases` generated programs on `fixture` and on the mock's model in its ordered form. The same seed
/// generates the same programs.
///
/// ```
/// # use conformance::{Outcome, differential, fixtures::mock::Mock};
/// # use provider_mock::Schedule;
/// let fixture = Mock::new(Schedule::Unordered { seed: 3, chunk: 16 });
/// assert_eq!(differential::run(&fixture, 4, 1), Outcome::Passed);
/// ```
pub fn run<F: Fixture + ?Sized>(fixture: &F, cases: u32, seed: u64) -> Outcome {
    let caps = match fixture.pair() {
        Ok(pair) => pair.a.caps(),
        Err(Unavailable::Skip(why)) => return Outcome::Skipped(format!("no device: {why}")),
        Err(Unavailable::Fail(why) | Unavailable::OneProcess(why)) => return Outcome::Failed(why),
    };
    if !caps.write.present() || !caps.read.present() {
        return Outcome::Skipped("needs capabilities write and read".into());
    }
    let mut bytes = [0; 32];
    bytes
        .chunks_exact_mut(8)
        .zip(0u64..)
        .for_each(|(b, i)| b.copy_from_slice(&(seed ^ i << 56).to_le_bytes()));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let verdict =
        runner.run(&programs(&caps), |program| one(fixture, &caps, &program).map_err(TestCaseError::fail));
    match verdict {
        Ok(()) => Outcome::Passed,
        Err(TestError::Fail(why, program)) => {
            let shown = Plan::of(&program, &caps);
            Outcome::Failed(format!("{why}; program, seed {seed}: {shown:?}"))
        }
        Err(TestError::Abort(why)) => Outcome::Failed(format!("no programs could be generated: {why}")),
    }
}

/// One program on both.
fn one<F: Fixture + ?Sized>(fixture: &F, caps: &Caps, program: &[Step]) -> Result<(), String> {
    let plan = Plan::of(program, caps);
    let model = observe(&model_of(caps), &plan).map_err(|e| format!("the model: {e}"))?;
    let provider = observe(fixture, &plan)?;
    difference(&plan, caps, &model, &provider).map_or(Ok(()), Err)
}

fn observe<F: Fixture + ?Sized>(fixture: &F, plan: &Plan) -> Result<Observed, String> {
    let Pair { a, b, progress } = fixture.pair().map_err(|e| e.reason().to_owned())?;
    let wait = Waiter { progress, deadline: Options::default().deadline };
    execute(plan, fixture.config(), &a, b, wait)
}

/// The model, with the limits of the provider that is compared with it.
fn model_of(caps: &Caps) -> Mock {
    Mock::new(Schedule::InOrder).configured(|c| {
        c.max_msg_size = caps.max_msg_size;
        c.max_send_size = caps.max_send_size;
        c.max_sge = caps.max_send_sge.max(caps.max_recv_sge);
        c.max_inline = caps.max_inline;
        c.max_wr = caps.max_send_wr.max(caps.max_recv_wr);
        c.max_rd_atomic = caps.max_rd_atomic;
    })
}

/// Programs of what `caps` offers.
fn programs(caps: &Caps) -> impl Strategy<Value = Vec<Step>> + use<> {
    let mut kinds = vec![Kind::Put, Kind::Put, Kind::Get];
    if caps.write_with_imm.present() {
        kinds.push(Kind::PutWithImm);
    }
    if caps.send.present() {
        kinds.push(Kind::Send);
    }
    if caps.atomics.present() {
        kinds.extend([Kind::FetchAdd, Kind::CompareSwap]);
    }
    if caps.fence.present() {
        kinds.push(Kind::Forward);
    }
    let faults = prop_oneof![
        24 => Just(Fault::None),
        1 => Just(Fault::WrongRemoteKey),
        1 => Just(Fault::BeyondRemoteEnd),
        1 => Just(Fault::DeadRemoteRegion),
        1 => Just(Fault::WrongLocalKey),
        1 => Just(Fault::DeadLocalRegion),
    ];
    let post = (
        prop::sample::select(kinds),
        0..plan::SLOTS,
        0..plan::SLOTS,
        0..plan::LENGTHS,
        faults,
        any::<bool>(),
    );
    let post = post.prop_map(|(kind, local, remote, length, fault, unsignaled)| Step::Post {
        kind,
        local,
        remote,
        length,
        fault,
        unsignaled,
    });
    let step =
        prop_oneof![8 => post, 3 => Just(Step::Ring), 1 => Just(Step::DropBatch), 1 => Just(Step::Drain)];
    prop::collection::vec(step, 1..60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibv_core::{PostError, WcStatus};
    use proptest::strategy::ValueTree;

    /// A comparison of programs that do nothing would always hold.
    #[test]
    fn generated_programs_reach_every_outcome() {
        let mock =
            Mock::new(Schedule::InOrder).configured(|c| (c.max_msg_size, c.max_send_size) = (128, 200));
        let caps = mock.pair().unwrap().a.caps();
        let mut runner =
            TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
        let (mut posts, mut statuses, mut received, mut causes) = (Vec::new(), Vec::new(), 0, 0);
        for _ in 0..60 {
            let program = programs(&caps).new_tree(&mut runner).unwrap().current();
            let seen = observe(&mock, &Plan::of(&program, &caps)).unwrap();
            posts.extend(seen.posts);
            for epoch in seen.epochs {
                statuses.extend(epoch.completions.iter().map(|(_, status)| *status));
                received += epoch.received.len();
                causes += usize::from(epoch.cause.is_some());
            }
        }
        for due in [Ok(1), Ok(2), Ok(3), Err(PostError::QueueFull)] {
            assert!(posts.contains(&due), "no post ended in {due:?}");
        }
        for due in
            [WcStatus::SUCCESS, WcStatus::REM_ACCESS_ERR, WcStatus::LOC_PROT_ERR, WcStatus::WR_FLUSH_ERR]
        {
            assert!(statuses.iter().filter(|s| **s == due).count() >= 5, "hardly a completion with {due:?}");
        }
        assert!(received >= 40 && causes >= 20, "{received} messages received, {causes} root causes kept");
    }
}
