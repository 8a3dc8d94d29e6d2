//! The cases across a connection: end b behind TCP, here in another thread because the mock's fabric lives
//! in one process. What peers say is untrusted.

use conformance::{DynFixture, Options, Report, cli, fixtures::mock::Mock, run};
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
    let (near, far) = (Mock::new(Schedule::InOrder), Mock::new(Schedule::InOrder));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = Options::default();
    options.peer = Some(listener.local_addr().unwrap().to_string());
    let serving = thread::spawn(move || far.serve(&listener));
    let report = run(&near, &options);
    let text = report.to_string();
    assert!(report.passed() == 0 && text.contains("fabric lives in one process"), "{text}");
    assert!(serving.join().unwrap().unwrap_err().contains("fabric lives in one process"));
}

/// What end b says to a peer that sends `bytes`.
fn greeted_with(bytes: &[u8]) -> String {
    let fabric = fabric(Schedule::InOrder);
    let far = Mock::new(Schedule::InOrder).on(fabric);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || far.serve(&listener));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    serving.join().unwrap().unwrap_err()
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
fn peers_that_speak_otherwise_are_turned_away() {
    for (bytes, why) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "announced a frame of"),
        (frame("{}"), "sent what is no frame"),
        (frame("\u{0}\u{1}"), "sent what is no frame"),
        (u32::MAX.to_be_bytes().to_vec(), "at most 1048576 are taken"),
        (vec![0, 0], "hung up"),
        (Vec::new(), "hung up"),
        (greeting(99, "mock"), "protocol version 99 at the other end, 1 here"),
        (greeting(1, "other"), "provider other at the other end, mock here"),
        (greeting(1, "mock"), "hung up"),
    ] {
        let said = greeted_with(&bytes);
        assert!(said.contains(why), "{said} does not say {why}");
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
    assert_eq!(code(&["--case", "put_writes_exactly", "--to", "127.0.0.1:1"]), ExitCode::FAILURE);
}
