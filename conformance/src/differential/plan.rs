//! A generated program made unambiguous: whatever a provider may legally do with it, the bytes and the
//! completions are the same. Pure.

use ibv_core::Caps;

/// Slots of each region; a request uses one on either side.
pub(super) const SLOTS: usize = 6;
/// How many lengths there are; see [`Plan::length`].
pub(super) const LENGTHS: usize = 12;
/// Send queue depth: small, so that programs meet a full one.
pub(super) const DEPTH: u32 = 12;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    PutWithImm,
    Get,
    Send,
    FetchAdd,
    CompareSwap,
    /// A get, and a fenced put of what it fetched to the next slot.
    Forward,
}

/// How a request is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    WrongRemoteKey,
    BeyondRemoteEnd,
    DeadRemoteRegion,
    WrongLocalKey,
    DeadLocalRegion,
}

/// One step, generated and planned alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Post { kind: Kind, local: usize, remote: usize, length: usize, fault: Fault, unsignaled: bool },
    Ring,
    DropBatch,
    Drain,
}

/// A program that has one meaning.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Bytes of a slot.
    pub(super) slot: usize,
    max_msg: usize,
}

/// What requests since the last drain do with a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// Source of a put or send.
    Source,
    /// Destination of a put.
    Written,
    /// Source or target of something that answers: a get, an atomic.
    Answering,
    /// Destination of a get or an atomic.
    Filled,
}

struct Planner<'c> {
    caps: &'c Caps,
    steps: Vec<Step>,
    local: [Use; SLOTS],
    remote: [Use; SLOTS],
}

impl Plan {
    pub(super) fn of(program: &[Step], caps: &Caps) -> Self {
        let free = [Use::Free; SLOTS];
        let mut planner = Planner { caps, steps: Vec::new(), local: free, remote: free };
        program.iter().for_each(|step| planner.step(*step));
        planner.step(Step::Ring);
        planner.step(Step::Drain);
        // Splitting is part of it where it costs little; every drain compares all slots.
        let max_msg = caps.max_msg_size;
        let slot = if max_msg <= 2 << 10 { 2 * max_msg + 64 } else { 4096 }.next_multiple_of(64);
        Self { steps: planner.steps, slot, max_msg }
    }

    /// Bytes of a request of length class `class`: around nothing, a word, a packet, a work request.
    pub(super) fn length(&self, class: usize, kind: Kind, fault: Fault, max_send: usize) -> usize {
        let m = self.max_msg;
        let wanted = [1, 8, 0, 63, 64, 65, 255, 1000, m - 1, m, m + 1, 2 * m + 3][class % LENGTHS];
        match (kind, fault) {
            (Kind::FetchAdd | Kind::CompareSwap, _) => 8,
            // Of several pieces more than one could fail, and nothing of no bytes has to.
            (_, Fault::WrongRemoteKey | Fault::BeyondRemoteEnd | Fault::DeadRemoteRegion) => {
                wanted.clamp(1, 64.min(m))
            }
            (_, Fault::WrongLocalKey | Fault::DeadLocalRegion) => wanted.clamp(1, 64.min(m)),
            (Kind::Send, _) => wanted.min(self.slot).min(max_send),
            _ => wanted.min(self.slot),
        }
    }
}

impl Planner<'_> {
    fn step(&mut self, step: Step) {
        match step {
            Step::Post { .. } => self.post(step),
            Step::Ring | Step::DropBatch => self.steps.push(step),
            Step::Drain => self.drain(),
        }
    }

    fn drain(&mut self) {
        self.steps.extend([Step::Ring, Step::Drain]);
        (self.local, self.remote) = ([Use::Free; SLOTS], [Use::Free; SLOTS]);
    }

    fn post(&mut self, step: Step) {
        let Step::Post { kind, local, remote, length, mut fault, unsignaled } = step else { return };
        if kind == Kind::Send
            && matches!(fault, Fault::WrongRemoteKey | Fault::BeyondRemoteEnd | Fault::DeadRemoteRegion)
            || kind == Kind::Forward
        {
            // A send names no remote range; a forward is about its order alone.
            fault = Fault::None;
        }
        // Local memory that an answer can not go to is noticed before the request leaves, or when its answer comes: by
        // then an atomic has changed its word, and requests behind have been carried out.
        let unanswerable = matches!(fault, Fault::WrongLocalKey | Fault::DeadLocalRegion);
        if unanswerable && matches!(kind, Kind::FetchAdd | Kind::CompareSwap) {
            fault = Fault::None;
        }
        let alone = unanswerable && kind == Kind::Get;
        if alone || !self.fits(kind, local, remote) {
            self.drain();
        }
        self.mark(kind, local, remote);
        let unsignaled =
            unsignaled && self.caps.completions_in_order && fault == Fault::None && kind != Kind::Forward;
        self.steps.push(Step::Post { kind, local, remote, length, fault, unsignaled });
        if alone {
            self.drain();
        }
    }

    /// Whether the request's outcome does not depend on the order of those since the last drain. Only a put
    /// is ordered behind a put, and a get or atomic behind a put (IB specification vol. 1, 10.8.3.3);
    /// and only where messages are in order at all.
    fn fits(&self, kind: Kind, local: usize, remote: usize) -> bool {
        let (l, r) = (self.local[local], self.remote[remote]);
        let next = self.remote[(remote + 1) % SLOTS];
        let ordered = self.caps.messages_in_order;
        let behind_puts = |u: Use| u == Use::Free || ordered && u == Use::Written;
        let as_source = matches!(l, Use::Free | Use::Source);
        match kind {
            Kind::Put | Kind::PutWithImm => as_source && behind_puts(r),
            Kind::Send => as_source,
            Kind::Get | Kind::FetchAdd | Kind::CompareSwap => l == Use::Free && behind_puts(r),
            Kind::Forward => l == Use::Free && behind_puts(r) && behind_puts(next),
        }
    }

    fn mark(&mut self, kind: Kind, local: usize, remote: usize) {
        let (l, r) = match kind {
            Kind::Put | Kind::PutWithImm => (Use::Source, Use::Written),
            Kind::Send => (Use::Source, self.remote[remote]),
            Kind::Get | Kind::FetchAdd | Kind::CompareSwap | Kind::Forward => (Use::Filled, Use::Answering),
        };
        (self.local[local], self.remote[remote]) = (l, r);
        if kind == Kind::Forward {
            self.remote[(remote + 1) % SLOTS] = Use::Written;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibv_core::Support::Native;

    fn planned(steps: &[Step]) -> Vec<Step> {
        let mut caps = Caps::default();
        (caps.write, caps.read, caps.atomics, caps.max_msg_size) = (Native, Native, Native, 4096);
        (caps.messages_in_order, caps.completions_in_order) = (true, true);
        Plan::of(steps, &caps).steps
    }

    fn post(kind: Kind, slot: usize, fault: Fault) -> Step {
        Step::Post { kind, local: slot, remote: slot, length: 1, fault, unsignaled: false }
    }

    #[test]
    fn what_is_noticed_now_by_one_device_and_later_by_another_has_nothing_around_it() {
        let put = |slot| post(Kind::Put, slot, Fault::None);
        for fault in [Fault::WrongLocalKey, Fault::DeadLocalRegion] {
            let get = post(Kind::Get, 1, fault);
            let drain = [Step::Ring, Step::Drain];
            let want = [&[put(0)][..], &drain, &[get], &drain, &[put(2), Step::Ring], &drain].concat();
            assert_eq!(planned(&[put(0), get, put(2)]), want);
            for kind in [Kind::FetchAdd, Kind::CompareSwap] {
                let steps = planned(&[put(0), post(kind, 1, fault)]);
                assert_eq!(steps[..2], [put(0), post(kind, 1, Fault::None)]);
            }
            // A put's is noticed at once, by all.
            assert_eq!(
                planned(&[put(0), post(Kind::Put, 1, fault)])[..2],
                [put(0), post(Kind::Put, 1, fault)]
            );
        }
    }
}
