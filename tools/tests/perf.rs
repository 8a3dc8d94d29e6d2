//! `ibv perf`: what it measures and counts, what it refuses, what it does when a peer goes wrong. By counts
//! and bytes, never by how fast anything was.

mod posing;

use assert_cmd::Command;
use ibv::mock::{Fabric, FabricConfig, Schedule, Verb};
use ibv_tools::{
    Failure,
    perf::{self, Extent, Measure, Operation, Report, Settings},
    run,
};
use posing::{Posing, number};
use serde_json::Value;
use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const OPERATIONS: [Operation; 3] = [Operation::Write, Operation::Read, Operation::Send];

fn perf(line: &str) -> Command {
    let mut command = Command::cargo_bin("ibv").unwrap();
    command.arg("perf").args(line.split_whitespace());
    command
}

fn json(line: &str) -> Value {
    let out = perf(&format!("{line} --json")).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn code(line: &str) -> (i32, String) {
    let out = perf(line).output().unwrap();
    assert!(out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stdout));
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
}

/// Both ends over `fabric`, by the library.
fn over(fabric: &Fabric, settings: &Settings) -> Result<Report, Failure> {
    let open = |device| Posing::on(fabric).open(device).unwrap();
    perf::loopback(&open("mock0"), &open("mock1"), settings, &mut ())
}

fn settings(operation: Operation, measure: Measure, change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::new(operation, measure);
    (settings.extent, settings.verify) = (Extent::Iterations(100), true);
    settings.timeout = Duration::from_secs(20);
    change(&mut settings);
    settings
}

#[test]
fn every_operation_moves_every_message_and_its_bytes() {
    for operation in ["write", "read", "send"] {
        let report = json(&format!("{operation} all --provider mock --loopback --verify -n 300"));
        assert_eq!((&report["provider"], &report["verified"]), (&"mock".into(), &true.into()));
        let [bandwidth, latency] = [&report["rows"][0], &report["rows"][1]];
        assert_eq!((&bandwidth["bytes"], &bandwidth["messages"]), (&65536.into(), &300.into()));
        assert!(bandwidth["bandwidth"]["gigabits_per_second"].as_f64().unwrap() > 0.0);
        assert_eq!((&latency["bytes"], &latency["messages"]), (&2.into(), &300.into()));
        let l = &latency["latency"];
        let of = |name: &str| l[name].as_f64().unwrap();
        let rising = ["min", "p50", "p90", "p99", "p99_9", "max"].map(of);
        assert!(rising.is_sorted() && rising[0] > 0.0, "{l}");
        let bars = l["histogram"].as_array().unwrap();
        assert_eq!(bars.iter().map(|bar| bar[1].as_u64().unwrap()).sum::<u64>(), 300);
    }
}

#[test]
fn queue_pairs_lists_moderation_inline_and_both_directions_lose_nothing() {
    for operation in OPERATIONS {
        for (qps, list, cq_mod, depth, bidirectional) in [
            (1, 1, Some(7), 9, false),
            (3, 4, None, 16, true),
            (2, 5, Some(3), 8, true),
            (4, 1, None, 1, false),
        ] {
            let s = settings(operation, Measure::Bw, |s| {
                (s.qps, s.post_list, s.cq_mod, s.tx_depth) = (qps, list, cq_mod, depth);
                (s.bidirectional, s.size, s.rx_depth) = (bidirectional, Some(33), 8);
                s.inline = (operation != Operation::Read).then_some(40);
            });
            let row = &over(&Fabric::default(), &s).unwrap().rows[0];
            let ways = if bidirectional { 2 } else { 1 };
            assert_eq!(row.messages, 100 * u64::from(qps) * ways, "{operation} {qps} {list} {cq_mod:?}");
        }
    }
}

#[test]
fn all_sizes_are_a_row_each_up_to_what_the_device_takes() {
    let s = settings(Operation::Send, Measure::All, |s| (s.all, s.extent) = (true, Extent::Iterations(3)));
    let config = FabricConfig { max_send_size: 3000, ..FabricConfig::default() };
    let rows = over(&Fabric::new(config), &s).unwrap().rows;
    let sizes: Vec<_> = rows.iter().map(|row| row.bytes).collect();
    let powers: Vec<_> = (1..12).map(|n| 1 << n).collect();
    assert_eq!(sizes, [&powers[..], &powers].concat());
}

#[test]
fn time_ends_a_row_whoever_posts() {
    for (operation, bidirectional) in [
        (Operation::Write, false),
        (Operation::Read, true),
        (Operation::Send, false),
        (Operation::Send, true),
    ] {
        let time = Extent::Duration(Duration::from_millis(50));
        let s = settings(operation, Measure::Bw, |s| {
            (s.extent, s.bidirectional, s.size, s.qps) = (time, bidirectional, Some(100), 2);
        });
        let row = over(&Fabric::default(), &s).unwrap().rows.remove(0);
        assert!(row.messages >= 2 && row.seconds >= 0.05, "{row:?}");
    }
    for operation in OPERATIONS {
        let time = Extent::Duration(Duration::from_millis(20));
        let s = settings(operation, Measure::Lat, |s| s.extent = time);
        assert!(over(&Fabric::default(), &s).unwrap().rows[0].messages >= 1);
    }
}

/// As SRD is: requests complete in any order, bytes arrive in any order.
#[test]
fn an_unordered_device_measures_all_but_write_latency_and_says_why() {
    let schedule = Schedule::Unordered { seed: 3, chunk: 16 };
    let fabric = || Fabric::new(FabricConfig { schedule, ..FabricConfig::default() });
    for operation in OPERATIONS {
        let s = settings(operation, Measure::Bw, |s| (s.qps, s.post_list, s.size) = (2, 4, Some(100)));
        assert_eq!(over(&fabric(), &s).unwrap().rows[0].messages, 200);
    }
    for operation in [Operation::Read, Operation::Send] {
        over(&fabric(), &settings(operation, Measure::Lat, |s| s.size = Some(100))).unwrap();
    }
    let refused = over(&fabric(), &settings(Operation::Write, Measure::Lat, |_| {})).unwrap_err();
    assert!(refused.code() == 31 && refused.to_string().contains("measure send latency"), "{refused}");
    let report = over(&fabric(), &settings(Operation::Write, Measure::All, |_| {})).unwrap();
    assert_eq!(report.rows.iter().map(|row| row.measure).collect::<Vec<_>>(), ["bandwidth"]);
    let why = report.left_out.clone().unwrap();
    assert!(why.starts_with("latency: ") && why.contains("capability messages_in_order"), "{why}");
    assert!(report.to_string().contains(&why) && report.html().contains("left out"));
    let refused = over(&fabric(), &settings(Operation::Write, Measure::Bw, |s| s.cq_mod = Some(4)));
    assert!(refused.unwrap_err().to_string().contains("completions_in_order"));
}

#[test]
fn a_failing_device_is_reported_by_its_cause() {
    let fabric = Fabric::default();
    let _ = fabric.faults().on(1).fail_always(Verb::RegMr, 12);
    let failed = over(&fabric, &settings(Operation::Write, Measure::Bw, |_| {})).unwrap_err();
    assert!(matches!(failed, Failure::Rdma(_)), "{failed}");
    let fabric = Fabric::default();
    let _ = fabric.faults().swallow_requests(1000);
    let s = settings(Operation::Write, Measure::Bw, |s| s.timeout = Duration::from_secs(1));
    assert_eq!(over(&fabric, &s).unwrap_err().code(), 24);
}

#[test]
fn nonsense_is_refused_before_anything_is_opened() {
    for (line, status, words) in [
        ("write lat -q 2", 2, "--qp: latency is of one message at a time"),
        ("write bw -l 200", 2, "--post-list 200: must be 1 to --tx-depth, which is 128"),
        ("read bw -I 8", 2, "--inline 8: nothing of a read"),
        ("send bw -s 1M", 2, "--size 1048576: mock0 takes 1 to 65536"),
        ("write bw -t 100000", 2, "--tx-depth 100000: mock0 takes 1 to 4096"),
        ("write bw -t 4294967295", 2, "--tx-depth 4294967295: mock0 takes 1 to 4096"),
        (
            "write bw -q 100000000",
            2,
            "--qp 100000000: mock0 takes 1 to 512 with 128 requests in flight on each",
        ),
        ("write bw -i 9", 2, "--ib-port 9: mock0 has 1"),
        ("write bw -x 9", 2, "--gid-index 9: port 1 of mock0 has 0"),
        ("write bw --peer-device nosuch", 3, "nosuch"),
        ("write bw --html /nonexistent/x.html", 53, "can not be written"),
    ] {
        let (got, said) = code(&format!("{line} --provider mock --loopback"));
        assert!(got == status && said.contains(words), "{line}: {got} {said}");
    }
    for (line, words) in [
        ("write", "<MEASURE>"),
        ("copy bw", "'copy'"),
        ("write bw -s 0", "'--size <BYTES>'"),
        ("write bw -a -s 5", "--size"),
        ("write bw -n 5 -D 1", "--duration"),
        ("write bw -m 7", "7 is none of 256, 512"),
        ("write bw -q 0", "'0' for '--qp <N>': 0 is not in 1.."),
        ("write bw -t 0", "'0' for '--tx-depth <N>': 0 is not in 1.."),
        ("write bw -l 0", "'0' for '--post-list <N>': 0 is not in 1.."),
        ("write bw -r 0", "'0' for '--rx-depth <N>': 0 is not in 1.."),
        ("write bw -Q 0", "'0' for '--cq-mod <N>': 0 is not in 1.."),
        ("write bw -D 0", "0 is not more than 0 and at most 31536000"),
        ("write bw -n -5", "'-5' for '--iters <N>'"),
        ("write bw --timeout 0", "0 is not more than 0 and at most 31536000"),
        ("write bw --loopback --wait 5", "--wait"),
        ("write bw --loopback -p 5", "--port"),
        ("write bw localhost --wait 5", "--wait"),
    ] {
        let (status, said) = code(line);
        assert!(status == 2 && said.contains(words), "{line}: {status} {said}");
    }
    let (status, said) = code("write bw somewhere --provider mock");
    assert!(status == 30 && said.contains("--loopback"), "{said}");
}

#[test]
fn the_report_is_a_table_for_people_and_a_page_for_browsers() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let out = perf("write all -a -n 20 --provider mock --loopback --html").arg(&page).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    for words in ["BW average [MiB/s]", "msg rate [M/s]", "p99.9", "half of a round trip", "1048576"] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    let html = fs::read_to_string(page).unwrap();
    for words in
        ["Bandwidth by message size", "Latency percentiles", "Distribution", "mock0 here, mock1 there"]
    {
        assert!(html.contains(words), "no {words}");
    }
    // 20 sizes: two plots of bandwidth, one of percentiles, a histogram and a distribution for each.
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    assert_eq!(html.matches("<svg").count(), 3 + 2 * 20);
    assert!(!html.contains("NaN") && !html.contains("http") && !html.contains("<script"));
}

#[test]
fn a_report_that_fails_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let measure = |more: &str| {
        let mut command = perf(&format!("write bw -n 5 --provider mock --loopback {more} --html"));
        command.arg(&page).output().unwrap().status.code()
    };
    assert_eq!((measure("-i 9"), fs::read_dir(&folder).unwrap().count()), (Some(2), 0), "no empty report");
    fs::write(&page, "an older one").unwrap();
    assert_eq!((measure("-i 9"), fs::read_to_string(&page).unwrap()), (Some(2), "an older one".into()));
    assert_eq!((measure(""), fs::read_dir(&folder).unwrap().count()), (Some(0), 1));
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!"));
    assert_eq!(code("write bw -n 5 --provider mock --loopback --html /dev/full").0, 53);
}

/// `ibv perf` with the posing mock, in this process; the exit code.
fn end(fabric: &Fabric, line: &str) -> u8 {
    let args: Vec<OsString> =
        ["ibv", "perf"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
    number(run(args, &|| Posing::on(fabric)))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The exit code of a client once its server listens.
fn once_reachable(client: impl Fn() -> u8) -> u8 {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match client() {
            20 if Instant::now() < deadline => thread::yield_now(),
            code => return code,
        }
    }
}

/// Exit codes of a server and its client over TCP.
fn pair(server: &str, client: &str) -> (u8, u8) {
    let (fabric, port) = (Fabric::default(), free_port());
    thread::scope(|scope| {
        let served =
            scope.spawn(|| end(&fabric, &format!("{server} -p {port} --device mock1 --json --wait 20")));
        let client = || end(&fabric, &format!("{client} -p {port} --device mock0 --json localhost"));
        let measured = once_reachable(client);
        (served.join().unwrap(), measured)
    })
}

#[test]
fn two_ends_meet_over_tcp_and_differences_are_code_26_at_both() {
    assert_eq!(pair("write bw -n 50 --verify", "write bw -n 50 --verify"), (0, 0));
    assert_eq!(pair("send lat -n 50", "send lat -n 50"), (0, 0));
    assert_eq!(pair("write bw -n 50", "read bw -n 50"), (26, 26));
    assert_eq!(pair("write bw -n 50 -q 2", "write bw -n 51"), (26, 26));
}

/// What the server makes of a client that says this and goes away.
fn server_meets(words: &[u8]) -> u8 {
    let (fabric, port) = (Fabric::default(), free_port());
    thread::scope(|scope| {
        let served = scope.spawn(|| end(&fabric, &format!("write bw -p {port} --wait 1 --timeout 5")));
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut link = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(link) => break link,
                Err(e) => assert!(Instant::now() < deadline, "waited 10 s for the server: {e}"),
            }
        };
        link.write_all(words).unwrap();
        link.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = link.read_to_end(&mut Vec::new());
        served.join().unwrap()
    })
}

/// Each of the two commands knows the other for what it is.
#[test]
fn a_client_of_a_receiver_of_files_is_told_whom_it_met() {
    let (fabric, folder) = (Fabric::default(), tempfile::tempdir().unwrap());
    let (file, ports) = (folder.path().join("file"), [free_port(), free_port()]);
    fs::write(&file, "x").unwrap();
    let transfer = |line: &str| {
        let words = format!("ibv transfer {} {line}", file.display());
        number(run(words.split(' ').map(OsString::from), &|| Posing::on(&fabric)))
    };
    let perf = |line: &str| end(&fabric, &format!("write bw {line}"));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| transfer(&format!("--listen localhost:{} --wait 3", ports[0])));
        let server = scope.spawn(|| perf(&format!("-p {} --wait 3", ports[1])));
        assert_eq!(once_reachable(|| perf(&format!("-p {} localhost", ports[0]))), 21);
        assert_eq!(once_reachable(|| transfer(&format!("--to localhost:{}", ports[1]))), 21);
        assert_eq!([receiver, server].map(|end| end.join().unwrap()), [24, 24], "nobody else came");
    });
}

#[test]
fn a_server_that_can_not_do_it_waits_for_nobody() {
    let schedule = Schedule::Unordered { seed: 3, chunk: 16 };
    let (fabric, port) = (Fabric::new(FabricConfig { schedule, ..FabricConfig::default() }), free_port());
    assert_eq!(end(&fabric, &format!("write lat -p {port} --wait 20")), 31);
    assert_eq!(end(&fabric, &format!("read bw -p {port} --wait 20 -x 9")), 2);
    let reads = Fabric::new(FabricConfig { write: ibv::Support::Absent, ..FabricConfig::default() });
    assert_eq!(end(&reads, &format!("write bw -p {port} --wait 20")), 31);
    assert_eq!(end(&fabric, &format!("write lat -p {port} localhost")), 31, "nor looks for its server");
}

#[test]
fn a_server_outlives_strangers_and_tells_a_broken_client_from_another_release() {
    assert_eq!(server_meets(b"GET / HTTP/1.1\r\n\r\n"), 24, "nobody else came within --wait");
    assert_eq!(server_meets(b"ibvT\x01\0\0\0\0\0\0\0"), 24, "nor did a sender of files");
    assert_eq!(server_meets(b"ibvP\x01\0\0\0\0\0\0\0"), 22);
    assert_eq!(server_meets(b"ibvP\x02\0\0\0\xff\0\0\0"), 21);
    assert_eq!(server_meets(b"ibvP\x02\0\0\0"), 23);
}
