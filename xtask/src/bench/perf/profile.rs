//! Reads a profile as callgrind writes it, with `--dump-instr=yes --compress-pos=no`: how often each instruction
//! was executed, and calls by function. The format is valgrind's "Callgrind Format Specification"; names are
//! given once, with a number that stands for them from then on.

use std::collections::{HashMap, HashSet};

/// Instructions and calls by function.
#[derive(Debug, Default)]
pub(super) struct Profile {
    functions: HashMap<u32, Function>,
    /// Caller and callee: how often, and what the calls cost with all they called.
    calls: HashMap<(u32, u32), (u64, u64)>,
}

#[derive(Debug, Default)]
struct Function {
    name: String,
    object: String,
    own: u64,
    /// Executions by address.
    counts: HashMap<u64, u64>,
}

impl Profile {
    /// What `text` says; lines of no interest are passed over.
    pub(super) fn parse(text: &str) -> Self {
        let mut profile = Self::default();
        let (mut objects, mut object, mut callee_object) = (HashMap::new(), String::new(), None);
        let (mut function, mut callee, mut calls) = (0, 0, None::<u64>);
        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=') {
                match key {
                    "ob" => object = named(&mut objects, value).1,
                    "cob" => callee_object = Some(named(&mut objects, value).1),
                    "fn" => function = profile.function(value, &object),
                    "cfn" => {
                        let of = callee_object.take().unwrap_or_else(|| object.clone());
                        callee = profile.function(value, &of);
                    }
                    "calls" => calls = value.split(' ').next().and_then(|n| n.parse().ok()),
                    _ => {}
                }
            } else if let Some((address, cost)) = cost(line) {
                match calls.take() {
                    Some(count) => {
                        let edge: &mut (u64, u64) = profile.calls.entry((function, callee)).or_default();
                        *edge = (edge.0 + count, edge.1 + cost);
                    }
                    None => {
                        let function = profile.functions.entry(function).or_default();
                        function.own += cost;
                        *function.counts.entry(address).or_default() += cost;
                    }
                }
            }
        }
        profile
    }

    fn function(&mut self, value: &str, object: &str) -> u32 {
        let (number, name) = split(value);
        let function = self.functions.entry(number).or_default();
        if let Some(name) = name {
            (function.name, function.object) = (name.into(), object.into());
        }
        number
    }

    /// The function whose name ends so.
    pub(super) fn named(&self, name: &str) -> Option<u32> {
        self.functions.iter().find(|(_, f)| f.name.ends_with(name)).map(|(number, _)| *number)
    }

    /// The function of an object that executes most instructions itself.
    pub(super) fn busiest(&self, object: &str) -> Option<u32> {
        let all = self.functions.iter().filter(|(_, f)| f.object.ends_with(object));
        all.max_by_key(|(_, f)| f.own).map(|(number, _)| *number)
    }

    /// Instructions of a function and of all it called; it does not call itself.
    pub(super) fn inclusive(&self, function: u32) -> u64 {
        let own = self.functions.get(&function).map_or(0, |f| f.own);
        own + self.calls.iter().filter(|((from, _), _)| *from == function).map(|(_, (_, c))| c).sum::<u64>()
    }

    /// Instructions of a function and of those it called, but for what waiting repeated. No instruction is
    /// executed more than `useful` times to any use, so one that is has been repeated; those whose counts
    /// are as close to each other as that took part in the same rounds, and the fewest of them is the rounds'
    /// number, which each of them loses. `None` where nothing was repeated.
    pub(super) fn without_waiting(&self, function: u32, useful: u64) -> Option<u64> {
        let reached = self.reached(function);
        let functions = reached.iter().filter_map(|f| self.functions.get(f));
        let mut counts: Vec<u64> = functions.flat_map(|f| f.counts.values().copied()).collect();
        counts.sort_unstable();
        let (mut work, mut rounds, mut last) = (0, None, 0);
        for count in counts {
            if count <= useful {
                work += count;
                continue;
            }
            let of = rounds.filter(|_| count - last <= useful).unwrap_or(count);
            work += count - of;
            (rounds, last) = (Some(of), count);
        }
        rounds.map(|_| work)
    }

    /// A function and all that it calls, directly or not.
    fn reached(&self, function: u32) -> HashSet<u32> {
        let (mut reached, mut next) = (HashSet::new(), vec![function]);
        while let Some(caller) = next.pop() {
            if reached.insert(caller) {
                next.extend(self.calls.keys().filter(|(from, _)| *from == caller).map(|(_, to)| *to));
            }
        }
        reached
    }
}

/// "(number) name", or "(number)" once the name is known.
fn split(value: &str) -> (u32, Option<&str>) {
    let inside = value.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let (number, name) = inside.unwrap_or(("", value));
    let name = name.trim_start();
    (number.parse().unwrap_or(u32::MAX), (!name.is_empty()).then_some(name))
}

fn named(known: &mut HashMap<u32, String>, value: &str) -> (u32, String) {
    let (number, name) = split(value);
    if let Some(name) = name {
        known.insert(number, name.into());
    }
    (number, known.get(&number).cloned().unwrap_or_default())
}

/// A line of address, source line and cost: the first and the last.
fn cost(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split(' ');
    let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    Some((address, words.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
positions: instr line
events: Ir
ob=(1) /usr/bin/ib_write_bw
fl=(1) ???
fn=(1) main
0x10 0 7
cfn=(2) run_iter_bw
calls=1 0x20 0
0x11 0 250035
fn=(2)
0x20 0 10
0x21 0 50010
cob=(2) /lib/libmlx5.so.1
cfn=(3) mlx5_poll_cq
calls=50010 0x30 0
0x22 0 200015
fn=(1)
0x12 0 3
ob=(2)
fn=(3)
0x30 0 50010
0x31 0 100005
0x32 0 50000
fn=(4) never_called
0x40 0 9
summary: 1142
";

    #[test]
    fn functions_calls_and_objects_are_told_apart() {
        let profile = Profile::parse(TEXT);
        let run = profile.busiest("ib_write_bw").unwrap();
        assert_eq!(run, profile.named("iter_bw").unwrap());
        assert_eq!(profile.inclusive(run), 50020 + 200_015);
        assert_eq!((profile.named("nothing"), profile.busiest("nothing")), (None, None));
    }

    #[test]
    fn what_is_repeated_in_vain_is_taken_off_instruction_by_instruction() {
        let profile = Profile::parse(TEXT);
        // 50,000 empty rounds and 10 full ones; one instruction runs twice in each empty one, 5 times more,
        // and what is executed twice as often as anything else is waiting all the same.
        let run = profile.named("iter_bw").unwrap();
        assert_eq!(profile.without_waiting(run, 1000), Some(10 + 10 + 10));
        assert_eq!(profile.without_waiting(run, 1_000_000), None);
    }
}
