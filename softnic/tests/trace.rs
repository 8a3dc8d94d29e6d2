//! The trace: the same bytes for the same seed, and enough in them to follow every request.

mod peer;
mod rig;

use std::path::PathBuf;

use ibv_sys::*;
use rig::*;
use softnic::fault::Fault;
use softnic::trace::Format;
use softnic::{Config, Softnic};

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("softnic-test-{name}-{}", std::process::id()))
}

/// Runs a small program with a fault; answers the JSON lines and the text.
fn traced(seed: u64, name: &str) -> Option<[String; 2]> {
    let paths = [file(&format!("{name}.json")), file(&format!("{name}.txt"))];
    let traces = vec![(Format::Json, paths[0].clone()), (Format::Text, paths[1].clone())];
    let mut rig = Rig::start(Config { traces, ..Config::steps(seed) })?;
    let (a, b) = rig.pair(Shape::default());
    rig.nic.inject(Fault::DropRequest { nth: 2 });
    b.recv(50, &[(4096, 64)]);
    for id in 0..4 {
        a.post(&a.request(id, IBV_WR_RDMA_WRITE, 0, 64, &b, 64 * id as usize));
    }
    a.post(&a.request(4, IBV_WR_SEND, 0, 64, &b, 0));
    for id in 0..5 {
        rig.expect(a.cq, id, IBV_WC_SUCCESS);
    }
    rig.expect(b.cq, 50, IBV_WC_SUCCESS);
    drop((a, b, rig));
    Some(paths.map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    }))
}

#[test]
fn a_seed_gives_the_same_bytes_each_time() {
    let Some(first) = traced(7, "first") else { return };
    assert_eq!(traced(7, "again").as_ref(), Some(&first));
    assert_ne!(traced(8, "other").as_ref(), Some(&first));
}

#[test]
fn another_process_writes_the_same_bytes() {
    let Some([here, _]) = traced(7, "here") else { return };
    let path = file("elsewhere");
    let mut other = peer::Peer::start("trace", path.to_str().unwrap(), &[]);
    assert!(other.wait().success(), "{}", other.noise);
    let there = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(here == there, "{} bytes here, {} there", here.len(), there.len());
}

/// Not a test of its own: what a peer runs. Alone, it shows that no role is set.
#[test]
fn the_other_process() {
    match peer::role() {
        None => assert_eq!(std::env::var("SOFTNIC_TEST_ROLE").ok(), None),
        Some((role, path)) if role == "trace" => {
            let [json, _] = traced(7, "other-process").expect("the parent has libibverbs too");
            std::fs::write(path, json).unwrap();
        }
        Some((role, _)) => panic!("no role {role}"),
    }
}

#[test]
fn every_request_can_be_followed_from_its_entry_to_its_completion() {
    let Some([json, text]) = traced(7, "follow") else { return };
    let lines: Vec<serde_json::Value> = json.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines[0]["softnic_trace"], 1);
    let count = |event: &str, key: &str, value: &str| {
        lines.iter().filter(|l| l["event"] == event && (key.is_empty() || l[key] == value)).count()
    };
    assert_eq!((count("wqe", "queue", "send"), count("wqe", "queue", "receive")), (5, 1));
    assert_eq!(count("cqe", "status", "SUCCESS"), 6);
    assert_eq!(count("packet", "action", "lost"), 1);
    assert!(count("packet", "what", "write") >= 9, "four left, one was lost and left again, five arrived");
    assert!(count("sent", "", "") >= 6 && count("state", "state", "Rts") == 2);
    let send = lines.iter().find(|l| l["event"] == "wqe").unwrap();
    assert_eq!(send["bytes"].as_str().unwrap().len(), 96, "three segments of 16 bytes");
    let completion = lines.iter().find(|l| l["event"] == "cqe").unwrap();
    assert_eq!(completion["bytes"].as_str().unwrap().len(), 128);
    assert_eq!(text.lines().count(), lines.len());
}

#[test]
fn a_file_that_can_not_be_opened_is_named() {
    let traces = vec![(Format::Json, PathBuf::from("/nonexistent/trace"))];
    let error = Softnic::start(Config { traces, ..Config::steps(1) }).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/trace"), "{error}");
}
