//! The cases across a connection: end b behind TCP, here in another thread because the mock's fabric lives
//! in one process. What peers say is untrusted.

use conformance::{DynFixture, Options, Report, StopKind, cli, fixtures::mock::Mock, run};
use ibv_core::IbvDomainImpl;
use provider_mock::{Drive, Fabric, FabricConfig, Schedule};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::ExitCode,
    thread,
};

fn fabric(schedule: Schedule) -> Fabric {
    let (max_msg_size, max_send_size) = (4096, 1024);
    let drive = Drive::Manual;
    Fabric::new(FabricConfig { schedule, drive, max_msg_size, max_send_size, ..FabricConfig::default() })
}

fn across<D: IbvDomainImpl>(fixture: impl Fn() -> Mock<D>, filter: &[&str]) -> Report {
    let (near, far) = (fixture(), fixture());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = Options::default();
    options.peer = Some(listener.local_addr().unwrap().to_string());
    options.filter = filter.iter().map(|f| (*f).to_owned()).collect();
    thread::scope(|s| {
        let serving = s.spawn(|| far.serve(&listener));
        let report = run(&near, &options);
        serving.join().unwrap().unwrap();
        report
    })
}

#[test]
fn every_case_but_those_of_one_process_runs_across() {
    let fabric = fabric(Schedule::InOrder);
    let report = across(|| Mock::new(Schedule::InOrder).on(fabric.clone()), &[]);
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= 180, "{report}");
    let text = report.to_string();
    assert!(
        text.contains("objects_outlive_their_domains_handle (lifecycle): needs both ends in one process"),
        "{text}"
    );
    let peer = report.providers[0].peer_versions.as_ref().unwrap();
    assert!(peer.device.starts_with("mock1") && !peer.suite.is_empty(), "{peer:?}");
}

#[test]
fn erased_and_unordered_ends_run_across_too() {
    let fabric = fabric(Schedule::Unordered { seed: 3, chunk: 128 });
    let fixture = || Mock::new(Schedule::InOrder).on(fabric.clone()).erased();
    let report = across(fixture, &["write", "read", "immediate", "errors", "root_cause"]);
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= 40, "{report}");
}

#[test]
fn the_mock_refuses_two_processes_and_says_why() {
    let mock = Mock::new(Schedule::InOrder);
    // Nobody listens there and nobody comes: it is refused before.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = Options::default();
    options.peer = Some("127.0.0.1:1".into());
    let report = run(&mock, &options);
    let served = mock.serve(&listener).unwrap_err();
    for stopped in [report.providers[0].stopped.clone().unwrap(), served, mock.can_serve().unwrap_err()] {
        assert_eq!(stopped.kind, StopKind::OneProcess);
        assert!(stopped.to_string().contains("mock can not join two processes"), "{stopped}");
    }
    assert_eq!((report.passed(), report.failed(), report.skipped()), (0, 1, 0), "{report}");
}

#[test]
fn nobody_at_the_address_is_said_once() {
    let fabric = fabric(Schedule::InOrder);
    for (address, kind) in [
        ("127.0.0.1:1", StopKind::Unreachable),
        ("127.0.0.1", StopKind::NoAddress),
        ("127.0.0.1:http", StopKind::NoAddress),
    ] {
        let mut options = Options::default();
        options.peer = Some(address.into());
        let report = run(&Mock::new(Schedule::InOrder).on(fabric.clone()), &options);
        assert_eq!(report.providers[0].stopped.as_ref().map(|s| s.kind), Some(kind), "{report}");
        assert_eq!((report.failed(), report.providers[0].cases.len()), (1, 0), "{report}");
        assert_eq!(report.to_string().matches(address).count(), 1, "{report}");
        assert!(report.to_junit().contains("<failure"), "{}", report.to_junit());
    }
}

fn frame(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn greeting(version: u32, provider: &str) -> Vec<u8> {
    let versions = r#"{"suite":"","provider":"","library":"","kernel":"","firmware":"","device":""}"#;
    frame(&format!(
        r#"{{"magic":"ibv-conformance","version":{version},"provider":"{provider}","versions":{versions},"refusal":null}}"#
    ))
}

#[test]
fn strangers_and_other_releases_are_passed_over() {
    let fabric = fabric(Schedule::InOrder);
    let far = Mock::new(Schedule::InOrder).on(fabric.clone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || far.serve(&listener));
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame("{}"),
        frame("\u{0}\u{1}"),
        u32::MAX.to_be_bytes().to_vec(),
        vec![0, 0],
        Vec::new(),
        greeting(99, "mock"),
        greeting(1, "other"),
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        // By now it may have been passed over.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let mut options = Options::default();
    (options.peer, options.filter) = (Some(address.to_string()), vec!["put_writes_exactly".into()]);
    let report = run(&Mock::new(Schedule::InOrder).on(fabric), &options);
    assert_eq!((report.passed(), report.failed()), (1, 0), "{report}");
    serving.join().unwrap().unwrap();
}

#[test]
fn an_end_that_leaves_ends_the_run() {
    let far = Mock::new(Schedule::InOrder).on(fabric(Schedule::InOrder));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.write_all(&greeting(1, "mock")).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let stopped = far.serve(&listener).unwrap_err();
    assert_eq!((stopped.kind, stopped.why.as_str()), (StopKind::Vanished, "the other end hung up"));
}

/// Passes on what the two say to each other until end b has said `limit` bytes; then both are hung up on.
fn cut_off(a: TcpStream, b: TcpStream, limit: usize) {
    thread::scope(|s| {
        let (mut from, mut to) = (a.try_clone().unwrap(), b.try_clone().unwrap());
        s.spawn(move || std::io::copy(&mut from, &mut to));
        let (mut from, mut to, mut said, mut bytes) = (&b, &a, 0, [0; 4096]);
        while said < limit {
            let n = from.read(&mut bytes).unwrap();
            to.write_all(&bytes[..n]).unwrap();
            said += n;
        }
        let _ = (a.shutdown(std::net::Shutdown::Both), b.shutdown(std::net::Shutdown::Both));
    });
}

#[test]
fn an_end_that_goes_midway_is_no_failure_of_the_cases_that_are_left() {
    let fabric = fabric(Schedule::InOrder);
    let (far, near) =
        (Mock::new(Schedule::InOrder).on(fabric.clone()), Mock::new(Schedule::InOrder).on(fabric));
    let [there, between] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [served_at, met_at] = [&there, &between].map(|l| l.local_addr().unwrap());
    let mut options = Options::default();
    options.peer = Some(met_at.to_string());
    let (report, served) = thread::scope(|s| {
        let serving = s.spawn(|| far.serve(&there));
        s.spawn(|| cut_off(between.accept().unwrap().0, TcpStream::connect(served_at).unwrap(), 20_000));
        (run(&near, &options), serving.join().unwrap())
    });
    let provider = &report.providers[0];
    let stopped = provider.stopped.as_ref().unwrap();
    assert_eq!(
        (stopped.kind, served.unwrap_err().kind),
        (StopKind::Vanished, StopKind::Vanished),
        "{stopped}"
    );
    assert!(stopped.why.contains(" (during "), "{stopped}");
    assert!(!provider.cases.is_empty() && provider.passed > 0, "{report}");
    assert_eq!(report.failed(), 1, "that it ended, and no case: {report}");
    let ended = format!("ended after {} cases: {stopped}", provider.cases.len());
    assert!(report.to_string().contains(&ended), "{report}");
}

/// What end a makes of whoever listens there and answers with `bytes`.
fn met_by(bytes: &[u8]) -> StopKind {
    let near = Mock::new(Schedule::InOrder).on(fabric(Schedule::InOrder));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = Options::default();
    options.peer = Some(listener.local_addr().unwrap().to_string());
    thread::scope(|s| {
        s.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            // End a may have heard enough.
            let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let _ = stream.read_to_end(&mut Vec::new());
        });
        run(&near, &options).providers[0].stopped.as_ref().unwrap().kind
    })
}

#[test]
fn listeners_that_speak_otherwise_have_their_kinds() {
    for (bytes, kind) in [
        (b"SSH-2.0-OpenSSH".to_vec(), StopKind::Stranger),
        (frame("{}"), StopKind::Stranger),
        (greeting(99, "mock"), StopKind::Version),
        (greeting(1, "other"), StopKind::Differs),
        (Vec::new(), StopKind::Vanished),
    ] {
        assert_eq!(met_by(&bytes), kind, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn commands_are_untrusted() {
    let range = |len: u64| format!(r#"{{"region":1,"at":18446744073709551615,"len":{len}}}"#);
    let config = "\"config\":{}";
    let commands = [
        r#"{"Alloc":{"len":18446744073709551615,"access":15}}"#.to_owned(),
        r#"{"Alloc":{"len":8,"access":4294967295}}"#.to_owned(),
        format!(r#"{{"Read":{{"range":{}}}}}"#, range(u64::MAX)),
        format!(r#"{{"Fill":{{"range":{},"seed":1}}}}"#, range(u64::MAX)),
        r#"{"Connect":{"qp":7,"info":[1,2,3]}}"#.to_owned(),
        r#"{"Poll":{"qp":7,"max":4294967295}}"#.to_owned(),
        r#"{"Deregister":{"region":4294967295}}"#.to_owned(),
        format!(r#"{{"CreateQp":{{{config},"channel":true}}}}"#),
    ];
    let fabric = fabric(Schedule::InOrder);
    let far = Mock::new(Schedule::InOrder).on(fabric);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || far.serve(&listener));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&greeting(1, "mock")).unwrap();
    answer(&mut stream);
    let early = ask(&mut stream, &commands[0]);
    assert!(early.contains("before the end was opened"), "{early}");
    assert!(ask(&mut stream, "\"Open\"").contains("Opened"));
    for command in &commands[..7] {
        let said = ask(&mut stream, command);
        assert!(said.starts_with(r#"{"Failed":"#), "{command}: {said}");
    }
    // Still alive, and of use.
    let said = ask(&mut stream, &commands[7]);
    assert!(said.starts_with(r#"{"Qp":"#), "{said}");
    assert_eq!(ask(&mut stream, "\"Bye\""), "\"Done\"");
    serving.join().unwrap().unwrap();
}

fn ask(stream: &mut TcpStream, command: &str) -> String {
    stream.write_all(&frame(command)).unwrap();
    answer(stream)
}

fn answer(stream: &mut TcpStream) -> String {
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut body = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

#[test]
fn the_command_line_knows_what_it_can_not_do() {
    let mock = Mock::new(Schedule::InOrder);
    let code = |args: &[&str]| {
        let args = std::iter::once("conformance").chain(args.iter().copied()).map(str::to_owned);
        cli::run(args, &[&mock])
    };
    assert_eq!(code(&["--list"]), ExitCode::SUCCESS);
    assert_eq!(code(&["--help"]), ExitCode::SUCCESS);
    for wrong in [
        &["--provider", "nobody"][..],
        &["--require", "nobody"],
        &["--dispatch", "dyn"],
        &["--case"],
        &["--listen", "nowhere"],
        &["--expect", "/no/such/file"],
        &["--no-such-flag"],
    ] {
        assert_eq!(code(wrong), ExitCode::from(2), "{wrong:?}");
    }
    assert_eq!(code(&["--provider", "mock", "--case", "put_writes_exactly", "--json"]), ExitCode::SUCCESS);
    assert_eq!(code(&["--case", "put_writes_exactly", "--differential", "3"]), ExitCode::SUCCESS);
    // The mock can not be in two processes, which comes before whether anybody is there.
    for (args, refused) in [
        (&["--case", "put_writes_exactly", "--to", "127.0.0.1:1"][..], 30),
        (&["--listen", "127.0.0.1:0"], 30),
        (&["--listen", "192.0.2.1:7471"], 20),
        (&["--to", "127.0.0.1"], 2),
        (&["--list", "--json"], 0),
    ] {
        assert_eq!(code(args), ExitCode::from(refused), "{args:?}");
    }
}

#[test]
fn an_expectation_of_what_is_not_there_is_an_error() {
    let mock = Mock::new(Schedule::InOrder);
    let file = std::env::temp_dir().join(format!("expectations-{}.json", std::process::id()));
    for (provider, case, code) in [
        ("nobody", "put_writes_exactly_the_bytes_named", 2),
        ("mock", "no_such_case", 2),
        ("mock", "no_such_*", 2),
        ("mock", "compare_swap_*", 0),
        ("mock", "generated_programs_agree_with_the_model", 0),
    ] {
        let known = format!(r#"[{{"provider": "{provider}", "case": "{case}", "reason": "r"}}]"#);
        std::fs::write(&file, known).unwrap();
        let args = ["conformance", "--case", "put_writes_exactly", "--expect", file.to_str().unwrap()];
        assert_eq!(cli::run(args.map(str::to_owned), &[&mock]), ExitCode::from(code), "{provider} {case}");
    }
    std::fs::remove_file(file).unwrap();
}
