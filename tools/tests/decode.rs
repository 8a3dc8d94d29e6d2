//! `ibv decode`: dumps and traces in, words and exit codes out.

use assert_cmd::Command;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{self, Stdio},
};

/// A write of 10 bytes on queue pair 0x1234, as an mlx5 device fetches it.
const WRITE: &str = "00000708 00123403 00000008 00000000 00000000 00000099 00000005 00000000 \
                     0000000a 00000006 00000000 00001000";

fn decode(line: &str, input: &str) -> (i32, String, String) {
    let mut command = Command::cargo_bin("ibv").unwrap();
    command.arg("decode").args(line.split_whitespace()).write_stdin(input);
    let out = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

#[test]
fn a_request_is_printed_field_by_field() {
    let (code, text, _) = decode("", WRITE);
    assert_eq!(code, 0);
    for words in
        ["WQE RDMA_WRITE, index 7, queue pair 0x1234", "opmod_idx_opcode", "raddr", "byte_count", "CQ_UPDATE"]
    {
        assert!(text.contains(words), "no {words} in {text}");
    }
    let (_, json, _) = decode("--json", WRITE);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let entry = &json["entries"][0];
    assert_eq!((&entry["at"], &entry["faults"]), (&0.into(), &serde_json::json!([])));
    assert!(
        entry["fields"].as_array().unwrap().iter().any(|f| f["name"] == "rkey" && f["bytes"] == "00000005")
    );
}

#[test]
fn what_is_wrong_is_said_behind_the_entry_and_by_the_exit_code() {
    let (code, text, said) = decode("", &WRITE.replace("00000708", "01000708"));
    assert!(code == 6 && said.starts_with("error: 1 thing"), "{said}");
    assert!(text.contains("wrong: opcode modifier 0x01"), "{text}");
    let (code, text, _) = decode("--kind cqe", &"00".repeat(60));
    assert!(code == 6 && text.contains("64 bytes are needed and the dump ends after 60"), "{text}");
}

#[test]
fn rings_completions_and_receives_are_cut_into_their_slots() {
    let block = format!("{WRITE} {}", "00".repeat(16));
    let ring = format!(
        "{}\n{}\n{}",
        block.replace("00000708", "00000008"),
        block.replace("00000708", "00000108"),
        "00".repeat(128)
    );
    let (code, text, _) = decode("--kind ring", &ring);
    assert!(code == 0 && text.contains("send queue of 4 basic blocks"), "{text}");
    assert!(text.contains("index 1,") && text.contains("2 empty blocks from slot 2 on"), "{text}");
    let (code, text, _) = decode("--kind ring", &ring.replacen("00000108", "00000308", 1));
    assert!(code == 6 && text.contains("wrong: index 3 in slot 1 of 4"), "{text}");
    // A success of 256 bytes, then an entry that nobody wrote.
    let cqe = format!("{}00000100{}10001234000700{:02x}", "00".repeat(44), "00".repeat(8), 1);
    let (code, text, _) = decode("--kind cqe", &format!("{cqe}\n{}", "ff".repeat(64)));
    assert!(
        code == 0 && text.contains("CQE REQ, queue pair 0x1234, counter 7, 256 bytes, owner 1"),
        "{text}"
    );
    assert!(text.contains("never written"), "{text}");
    let (_, text, _) = decode("--kind cqe --slot 128", &format!("{}{cqe}", "00".repeat(64)));
    assert!(text.contains("0x0040: CQE REQ"), "{text}");
    let receive = "00000005 00000001 00000000 00000010 00000000 00000100 00000000 00000000";
    let (code, text, _) = decode("--kind receive --slot 32", &format!("{receive}\n{receive}"));
    assert!(code == 0 && text.matches("receive of 1 ranges, 5 bytes").count() == 2, "{text}");
}

#[test]
fn a_trace_is_recognised_and_its_entries_decoded() {
    let wqe = WRITE.replace(' ', "");
    let trace = format!(
        concat!(
            "{{\"softnic_trace\":1,\"slot\":0,\"devices\":[\"mlx5_0\"]}}\n",
            "{{\"t\":10,\"slot\":0,\"event\":\"doorbell\",\"qpn\":4660,\"record\":8}}\n",
            "{{\"t\":20,\"slot\":0,\"event\":\"wqe\",\"device\":\"mlx5\",\"qpn\":4660,\"queue\":\"send\",\"index\":7,\"bytes\":\"{}\"}}\n",
            "{{\"t\":30,\"slot\":0,\"event\":\"cqe\",\"device\":\"mlx5\",\"cqn\":1,\"qpn\":4660,\"counter\":7,\"status\":\"SUCCESS\",\"bytes\":\"{}\"}}\n",
            "{{\"t\":40,\"slot\":0,\"event\":\"wqe\",\"device\":\"later\",\"qpn\":1,\"queue\":\"send\",\"index\":0,\"bytes\":\"00\"}}\n",
        ),
        wqe,
        "ff".repeat(64)
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    fs::write(&path, trace).unwrap();
    let (code, text, said) = decode(&path.display().to_string(), "");
    assert_eq!(code, 0, "{said}");
    for words in [
        "0.000000010 doorbell qpn 0x1234 record 8",
        "WQE RDMA_WRITE, index 7",
        "never written",
        "can not read",
    ] {
        assert!(text.contains(words), "no {words} in {text}");
    }
}

#[test]
fn efa_entries_are_read_by_their_own_names() {
    let request =
        format!("0500801c 03000100 00000000 07000000 09000000 {}{}", "00".repeat(12), "00".repeat(32));
    let (code, text, said) = decode("--device efa", &request);
    assert!(code == 0 && text.contains("EFA request SEND, id 5, to queue pair 0x3"), "{text}{said}");
    let (code, text, _) = decode("--device efa --kind cqe", "01000813 09000000 00000000 00000000");
    assert!(code == 0 && text.contains("REMOTE_ERROR_ABORT"), "{text}");
    let trace = "{\"t\":1,\"slot\":0,\"event\":\"cqe\",\"device\":\"efa\",\"bytes\":\"01000813090000000000000000000000\"}";
    assert!(decode("", trace).1.contains("EFA completion of request 1, queue pair 0x9"));
}

#[test]
fn what_is_no_dump_has_its_own_exit_codes() {
    assert_eq!(decode("/nonexistent/dump", "").0, 10);
    let (code, _, said) = decode("", "hello world");
    assert!(code == 54 && said.contains("line 1: \"hello\" is no hexadecimal"), "{said}");
    assert_eq!(decode("", "").0, 54);
    assert_eq!(decode("--slot 7", WRITE).0, 2);
    assert!(decode("--help", "").1.contains("Examples:"));
}

/// A doorbell, as software devices trace it.
const DOORBELL: &str = "{\"t\":10,\"slot\":0,\"event\":\"doorbell\",\"qpn\":4660,\"record\":8}";

#[test]
fn a_cut_trace_is_printed_up_to_there_and_has_an_exit_code_of_its_own() {
    let cut = format!("{DOORBELL}\n{DOORBELL}\n{}", &DOORBELL[..30]);
    let (code, text, said) = decode("", &cut);
    assert_eq!((code, text.matches("doorbell qpn 0x1234").count()), (55, 2), "{text}{said}");
    assert!(text.contains("line 3 can not be read: ends in its middle"), "{text}");
    assert!(said.contains("standard input: 1 line(s) can not be read") && said.contains("line 3"), "{said}");
    let (code, json, _) = decode("--json", &cut);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let entries = json["entries"].as_array().unwrap();
    assert_eq!((code, entries.len(), entries[2]["at"].as_u64()), (55, 3, Some(3)));
    assert!(entries[2]["faults"][0].as_str().unwrap().contains("ends in its middle"));
    // Of lines behind one that is none, nothing is lost either; and a fault of an entry says more.
    let wrong = "{\"t\":1,\"event\":\"cqe\",\"device\":\"efa\",\"bytes\":\"0100\"}";
    let (code, text, _) = decode("", &format!("{DOORBELL}\nnonsense\n{wrong}\n{DOORBELL}\n"));
    assert_eq!((code, text.matches("doorbell").count()), (6, 2), "{text}");
    assert_eq!(decode("", &DOORBELL[..30]).0, 54, "nothing of it is a trace");
}

/// The command with an input that has not ended.
fn while_input_lasts(args: &[&str], test: impl FnOnce(&mut process::Child)) -> Option<i32> {
    let mut command = process::Command::new(assert_cmd::cargo::cargo_bin("ibv"));
    let command = command.arg("decode").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    test(&mut child);
    child.wait().unwrap().code()
}

#[test]
fn an_entry_is_printed_as_soon_as_its_line_came() {
    for (args, first) in [(&[][..], "doorbell"), (&["--json"], "{")] {
        let code = while_input_lasts(args, |child| {
            writeln!(child.stdin.as_ref().unwrap(), "{DOORBELL}").unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains(first), "{line}");
            child.stdin = None;
        });
        // The reader above went away with what it had buffered.
        assert_eq!(code, Some(0));
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_decoding_of_a_long_input() {
    let code = while_input_lasts(&[], |child| {
        child.stdout = None;
        // It ends before its input does, which a pipe says by breaking.
        while writeln!(child.stdin.as_ref().unwrap(), "{DOORBELL}").is_ok() {}
    });
    assert_eq!(code, Some(141));
}
