//! `ibv perf` and perftest on the same software ConnectX with the same settings: what a message costs the
//! client, in instructions and in time. How a profile is read is `perf/profile.rs`'s.
//!
//! Both clients poll while the device works, and how often they do that in vain is chance. So the count is of
//! the measuring loop alone, and empty polls are taken off: of perftest, which spins, instruction by
//! instruction, because its many empty rounds stand out from what a message can need; of `ibv perf`, which
//! yields, by what two runs of as many messages differ by. Then the leaner runs of two lengths are compared,
//! for both alike: (I(n₂) - I(n₁)) / (n₂ - n₁).

mod profile;

use crate::sh::{Result, cargo, debian_packages, run, target};
use profile::Profile;
use std::{
    fs,
    io::Read,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Messages of the two lengths whose instructions are compared; whole lists and whole moderations.
const LENGTHS: [u64; 2] = [800, 2400];
/// Runs of each length, so that an empty poll's cost can be told.
const RUNS: usize = 2;
/// Messages and runs by the clock; the two programs take turns.
const TIMED: (u64, usize) = (20_000, 3);
/// For one run, however slow the machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A setting that both are run with.
struct Case {
    op: &'static str,
    size: u64,
    post_list: u64,
    cq_mod: u64,
}

const fn case(op: &'static str, size: u64, post_list: u64, cq_mod: u64) -> Case {
    Case { op, size, post_list, cq_mod }
}

const CASES: [Case; 5] = [
    case("write", 8, 1, 100),
    case("write", 8, 16, 16),
    case("write", 8, 1, 1),
    case("read", 8, 1, 100),
    case("send", 8, 1, 100),
];

struct Row<'c> {
    case: &'c Case,
    /// Instructions a message: ours, perftest's.
    instructions: [f64; 2],
    /// Messages a second, the median of the runs, likewise.
    rate: [f64; 2],
}

/// Whose client.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    Ibv,
    Perftest,
}

const PROGRAMS: [Program; 2] = [Program::Ibv, Program::Perftest];

/// Compares and prints; fails where `ibv perf` needs more instructions than perftest.
pub(super) fn compare(json: bool) -> Result<()> {
    debian_packages(&["ibverbs-providers", "perftest", "valgrind"])?;
    run(&mut cargo(["build", "--quiet", "--release", "--package", "ibv-tools", "--package", "softnic"]))?;
    let mut rows = Vec::new();
    for case in &CASES {
        let mut instructions = [0.0; 2];
        for (program, value) in PROGRAMS.into_iter().zip(&mut instructions) {
            *value = counted(program, case)?;
        }
        rows.push(Row { case, instructions, rate: timed(case)? });
        if !json {
            print_row(&rows);
        }
    }
    if json {
        println!("[{}]", rows.iter().map(as_json).collect::<Vec<_>>().join(",\n "));
    }
    judge(&rows)
}

fn print_row(rows: &[Row<'_>]) {
    if rows.len() == 1 {
        println!("instructions a message, and messages a second; `time` is perftest's over ours");
        println!(
            "{:24} {:>9} {:>9} {:>6}  {:>9} {:>9} {:>6}",
            "", "ibv perf", "perftest", "ratio", "ibv perf", "perftest", "time"
        );
    }
    let Some(Row { case, instructions: [i, p], rate: [ri, rp] }) = rows.last() else { return };
    let Case { op, size, post_list, cq_mod } = case;
    let name = format!("{op} -s {size} -l {post_list} -Q {cq_mod}");
    println!("{name:24} {i:9.1} {p:9.1} {:6.2}  {ri:9.0} {rp:9.0} {:6.2}", i / p, ri / rp);
}

fn as_json(row: &Row<'_>) -> String {
    let Row { case: Case { op, size, post_list, cq_mod }, instructions: [i, p], rate: [ri, rp] } = row;
    format!(
        r#"{{"op":"{op}","bytes":{size},"post_list":{post_list},"cq_mod":{cq_mod},"ours":{i:.1},"peer":"perftest","theirs":{p:.1},"ratio":{:.3},"ours_per_second":{ri:.0},"theirs_per_second":{rp:.0},"time_ratio":{:.3}}}"#,
        i / p,
        ri / rp
    )
}

fn judge(rows: &[Row<'_>]) -> Result<()> {
    for Row { case, instructions: [ours, theirs], .. } in rows {
        // Not a number is above the limit too.
        if !(*ours > 0.0 && ours <= theirs) {
            let Case { op, post_list, cq_mod, .. } = case;
            return Err(format!(
                "{op} -l {post_list} -Q {cq_mod}: {ours:.1} instructions a message, perftest {theirs:.1}"
            )
            .into());
        }
    }
    Ok(())
}

/// No instruction of perftest's loop is executed more often than this for a message.
const USEFUL: u64 = 4;

/// One run: messages, instructions in the loop, and the empty polls that are among them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Count {
    messages: u64,
    instructions: u64,
    empty: u64,
}

/// Instructions a message.
fn counted(program: Program, case: &Case) -> Result<f64> {
    let mut counts = Vec::new();
    for messages in LENGTHS {
        for _ in 0..RUNS {
            counts.push(count(program, case, messages)?);
        }
    }
    Ok(each(&counts))
}

/// What a message costs, where an empty poll's cost is what runs of as many messages differ by.
fn each(counts: &[Count]) -> f64 {
    let empty = |c: &Count| c.empty as f64;
    let (mut over, mut under) = (0.0, 0.0);
    for (i, a) in counts.iter().enumerate() {
        for b in counts[..i].iter().filter(|b| b.messages == a.messages) {
            let (di, dp) = (a.instructions as f64 - b.instructions as f64, empty(a) - empty(b));
            (over, under) = (over + di * dp, under + dp * dp);
        }
    }
    let poll = if under > 0.0 { over / under } else { 0.0 };
    let least = |messages: u64| {
        let of = counts.iter().filter(|c| c.messages == messages);
        of.map(|c| c.instructions as f64 - poll * empty(c)).fold(f64::INFINITY, f64::min)
    };
    (least(LENGTHS[1]) - least(LENGTHS[0])) / (LENGTHS[1] - LENGTHS[0]) as f64
}

fn count(program: Program, case: &Case, messages: u64) -> Result<Count> {
    let file = target().join("perf-profile");
    let printed = pair(program, case, messages, Some(&file))?;
    // The thread that measures is the program's first; the device has one of its own.
    let first = PathBuf::from(format!("{}-01", file.display()));
    let profile = Profile::parse(&fs::read_to_string(first)?);
    let (instructions, empty) = match program {
        Program::Ibv => {
            let (loop_, wait) = ("perf::bandwidth::run", "perf::pace::Pace<L>::wait");
            let waited = profile.named(wait).map_or(0, |wait| profile.inclusive(wait));
            let ran = profile.named(loop_).ok_or("no measuring loop in the profile of ibv perf")?;
            (profile.inclusive(ran) - waited, number_after(&printed, "\"empty_polls\":")? as u64)
        }
        Program::Perftest => {
            let ran = profile.busiest(&format!("ib_{}_bw", case.op)).ok_or("no function of perftest's")?;
            let work = profile.without_waiting(ran, messages * USEFUL);
            (work.ok_or("perftest hardly ever polled in vain, so its loop can not be told from its work")?, 0)
        }
    };
    Ok(Count { messages, instructions, empty })
}

/// Messages a second, ours and perftest's: medians of alternating runs.
fn timed(case: &Case) -> Result<[f64; 2]> {
    let (messages, runs) = TIMED;
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (program, rates) in PROGRAMS.into_iter().zip(&mut rates) {
            let printed = pair(program, case, messages, None)?;
            rates.push(match program {
                Program::Ibv => number_after(&printed, "\"million_messages_per_second\":")? * 1e6,
                Program::Perftest => last_number(&printed, case.size)? * 1e6,
            });
        }
    }
    Ok(rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }))
}

fn number_after(text: &str, name: &str) -> Result<f64> {
    let rest = text.split_once(name).ok_or_else(|| format!("no {name} in {text}"))?.1.trim_start();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(rest.len());
    Ok(rest[..end].parse()?)
}

/// The message rate is the last column of the row of that size.
fn last_number(table: &str, size: u64) -> Result<f64> {
    let row = table.lines().map(str::split_whitespace).find_map(|mut words| {
        (words.next() == Some(&*size.to_string())).then(|| words.last().map(str::to_owned)).flatten()
    });
    Ok(row.ok_or_else(|| format!("no row of {size} bytes in {table}"))?.parse()?)
}

/// Runs a server and its client; what the client printed. With a `profile`, under callgrind.
fn pair(program: Program, case: &Case, messages: u64, profile: Option<&PathBuf>) -> Result<String> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let line = line(program, case, messages, port);
    let mut server = Running(on_device(&line).spawn()?);
    server.listening(port)?;
    let mut line = [line, vec!["127.0.0.1".into()]].concat();
    if let Some(file) = profile {
        let file = format!("--callgrind-out-file={}", file.display());
        let valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--separate-threads=yes"];
        let shape = ["--dump-instr=yes", "--compress-pos=no", &file];
        line = [valgrind.map(str::to_owned).to_vec(), shape.map(str::to_owned).to_vec(), line].concat();
    }
    let printed = Running(on_device(&line).spawn()?).finish("the client")?;
    server.finish("the server")?;
    Ok(printed)
}

/// The same settings in either program's words. perftest without its peak rate, which costs it time stamps.
fn line(program: Program, case: &Case, messages: u64, port: u16) -> Vec<String> {
    let Case { op, size, post_list, cq_mod } = case;
    let ibv = target().join("release/ibv");
    let text = match program {
        Program::Ibv => format!("{} perf {op} bw --provider mlx5 --json", ibv.display()),
        Program::Perftest => format!("ib_{op}_bw -F -N"),
    };
    let settings = format!(" -s {size} -n {messages} -l {post_list} -Q {cq_mod} -t 128 -r 512 -p {port}");
    let settings = if program == Program::Perftest && *op != "send" {
        settings.replace(" -r 512", "")
    } else {
        settings
    };
    (text + &settings).split(' ').map(str::to_owned).collect()
}

fn on_device(line: &[String]) -> Command {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("LD_PRELOAD", target().join("release/libsoftnic.so")).env("SOFTNIC_PRELOAD", "1");
    command.env("SOFTNIC_SESSION", format!("xtask-perf-{}", std::process::id()));
    command
}

/// A process that does not outlive this value.
struct Running(Child);

impl Running {
    fn listening(&mut self, port: u16) -> Result<()> {
        let (start, local) = (Instant::now(), format!(":{port:04X}"));
        while start.elapsed() < LIMIT && self.0.try_wait()?.is_none() {
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
            // Local address, remote address, state: 0A is LISTEN.
            let listens = |line: &str| {
                let words: Vec<_> = line.split_whitespace().take(4).collect();
                words.len() == 4 && words[1].ends_with(&local) && words[3] == "0A"
            };
            if tables.iter().flatten().any(|table| table.lines().any(listens)) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        Err(format!("the server never listened: {}", self.said()).into())
    }

    fn finish(&mut self, name: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            match self.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    let _ = self.0.kill();
                    return Err(format!("waited {} s for {name}: {}", LIMIT.as_secs(), self.said()).into());
                }
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        let said = self.said();
        if status.success() { Ok(said) } else { Err(format!("{name}: {status}: {said}").into()) }
    }

    /// All it wrote; it has ended, and wrote less than a pipe holds.
    fn said(&mut self) -> String {
        let mut text = String::new();
        let _ = self.0.stdout.take().map(|mut out| out.read_to_string(&mut text));
        let _ = self.0.stderr.take().map(|mut out| out.read_to_string(&mut text));
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_polls_do_not_count_whatever_they_cost() {
        // 50 for the start, 200 a message, 30 an empty poll.
        let run = |messages: u64, empty: u64| Count {
            messages,
            instructions: 50 + 200 * messages + 30 * empty,
            empty,
        };
        let [short, long] = LENGTHS;
        let counts = [run(short, 77), run(short, 5000), run(long, 901), run(long, 12)];
        assert!((each(&counts) - 200.0).abs() < 1e-6);
    }

    #[test]
    fn more_than_perftest_or_nothing_at_all_is_a_failure() {
        let row = |ours| Row { case: &CASES[0], instructions: [ours, 300.0], rate: [1.0, 1.0] };
        assert!(judge(&[row(300.0)]).is_ok());
        assert!(
            judge(&[row(300.1)]).is_err() && judge(&[row(f64::NAN)]).is_err() && judge(&[row(0.0)]).is_err()
        );
    }

    #[test]
    fn numbers_are_found_in_both_programs_output() {
        let json = "{\"rows\": [{\"polls\": 42,\n \"x\": 1}]}";
        assert_eq!(number_after(json, "\"polls\":").unwrap(), 42.0);
        let table = " #bytes  #iterations\n 8          2000      0.00     0.09   \t\t   0.011678\n";
        assert_eq!(last_number(table, 8).unwrap(), 0.011_678);
        assert!(last_number(table, 9).is_err() && number_after(json, "nothing").is_err());
    }
}
