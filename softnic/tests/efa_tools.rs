//! Unmodified programs on software EFA devices: `ibv_devinfo`, perftest over SRD, libfabric's `efa` provider; two processes each,
//! on the system's rdma-core and on a newer one. WRITE needs both a newer rdma-core and the perftest that
//! `cargo xtask rdma-core` builds beside it.
//!
//! Where packages are missing, the tests say so and pass; `IBV_REQUIRE=softnic-tools` makes that a failure.

mod programs;

use std::path::PathBuf;

use programs::*;

const EFA: (&str, &str) = ("SOFTNIC_DEVICE", "efa");

/// A perftest tool for an rdma-core: the system's for the system's own, and the newer one for a newer one.
fn tool(core: &RdmaCore, name: &str) -> Option<String> {
    if core.build.is_none() {
        return has(name).then(|| name.to_owned());
    }
    let folder = target_folder()?.join("perftest");
    let built: Vec<PathBuf> = std::fs::read_dir(folder)
        .map(|dir| dir.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.join(".built").is_file()).collect())
        .unwrap_or_default();
    if built.is_empty() {
        // A newer rdma-core may have been built before there was anything to build beside it.
        println!("skipped: no newer perftest is built: cargo xtask rdma-core");
    }
    built.iter().max().map(|folder| folder.join(name).display().to_string())
}

/// Runs a perftest tool on these rdma-cores; the client's table must have these rows.
fn perftest_on(cores: &[RdmaCore], line: &str, expected: &[(u64, u64)]) {
    let (name, options) = line.split_once(' ').unwrap();
    for core in cores {
        let Some(tool) = tool(core, name) else { continue };
        let words: Vec<&str> = std::iter::once(tool.as_str()).chain(options.split(' ')).collect();
        let (server, client) = perftest_pair(core, &words, &[EFA]);
        assert_eq!(rows(&client), expected, "{line} on {}: {client}", core.name);
        assert!(server.contains("remote address"), "{server}");
    }
}

fn newer() -> Vec<RdmaCore> {
    rdma_cores().into_iter().filter(|core| core.build.is_some()).collect()
}

#[test]
fn ibv_devinfo_describes_the_device() {
    if !has("ibv_devinfo") {
        return;
    }
    let _turn = turn();
    for core in rdma_cores() {
        let printed = run_alone(&core, &["ibv_devinfo", "-v"], &[EFA]);
        for part in [
            "rdmap0s6",
            "SOFTNIC_EFA",
            "0x1d0f",
            "PORT_ACTIVE (4)",
            "fe80:0000:0000:0000:0efa:0000:00aa:bb00",
        ] {
            assert!(printed.contains(part), "{part} on {}: {printed}", core.name);
        }
    }
}

#[test]
fn perftest_sends_over_srd() {
    let _turn = turn();
    let cores = rdma_cores();
    perftest_on(&cores, "ib_send_bw -c SRD -x 0 -n 100 -s 4096", &[(4096, 100)]);
    perftest_on(&cores, "ib_send_lat -c SRD -x 0 -n 100 -I 0", &[(2, 100)]);
}

#[test]
fn an_unmodified_program_s_doorbells_are_counted() {
    if !has("ib_send_bw") || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let _turn = turn();
    let trace = std::env::temp_dir().join(format!("softnic-doorbells-{}.jsonl", std::process::id()));
    let env = [EFA, ("SOFTNIC_COUNT_DOORBELLS", "1"), ("SOFTNIC_TRACE", trace.to_str().unwrap())];
    for list in [1, 10] {
        let line = format!("ib_send_bw -c SRD -x 0 -n 100 -s 4096 -l {list}");
        let words: Vec<&str> = line.split(' ').collect();
        perftest_pair(&rdma_cores()[0], &words, &env);
        let lines = std::fs::read_to_string(&trace).unwrap();
        std::fs::remove_file(&trace).unwrap();
        let rung = lines.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        let rung = rung.filter(|l| l["event"] == "rung" && l["queue"] == "send");
        let times: u64 = rung.map(|l| l["times"].as_u64().unwrap()).sum();
        assert_eq!(times, 100 / list, "100 messages, {list} posted at once");
    }
}

#[test]
fn perftest_reads_over_srd() {
    let _turn = turn();
    let cores = rdma_cores();
    perftest_on(&cores, "ib_read_bw -c SRD -x 0 -n 100", &[(65536, 100)]);
    perftest_on(&cores, "ib_read_lat -c SRD -x 0 -n 100", &[(2, 100)]);
    perftest_on(&cores, "ib_read_bw -c SRD -x 0 -n 20 -q 4", &[(65536, 80)]);
}

#[test]
fn perftest_writes_over_srd() {
    let _turn = turn();
    let cores = newer();
    perftest_on(&cores, "ib_write_bw -c SRD -x 0 -n 100", &[(65536, 100)]);
    // This perftest asks for inline data without asking for a queue pair that takes it.
    perftest_on(&cores, "ib_write_lat -c SRD -x 0 -n 100 -I 0", &[(2, 100)]);
}

#[test]
fn perftest_sends_datagrams() {
    let _turn = turn();
    // libefa wants each request signalled, which perftest knows of SRD alone: hence the moderation of 1.
    perftest_on(&rdma_cores(), "ib_send_bw -c UD -x 0 -n 100 -s 1024 -Q 1", &[(1024, 100)]);
}

/// Runs libfabric's ping-pong over its `efa` provider on each rdma-core; both sides must do all sizes.
fn pingpong(endpoint: &str, sizes: &[&str]) {
    if !has("fi_pingpong") {
        return;
    }
    let _turn = turn();
    for core in rdma_cores() {
        let port = free_port().to_string();
        let line = ["fi_pingpong", "-p", "efa", "-e", endpoint, "-I", "20", "-c"];
        let server = [&line[..], &["-B", &port]].concat();
        let client = [&line[..], &["-P", &port, "127.0.0.1"]].concat();
        let (server, client) = run_both(&core, &server, &client, &port, &[EFA]);
        for printed in [server, client] {
            let done = |size: &&str| printed.lines().any(|l| l.starts_with(size) && l.contains("=20"));
            assert!(sizes.iter().all(done), "{endpoint} on {}: {printed}", core.name);
        }
    }
}

#[test]
fn libfabric_over_reliable_datagrams() {
    pingpong("rdm", &["64 ", "256 ", "1k ", "4k ", "64k ", "1m "]);
}

#[test]
fn libfabric_over_datagrams() {
    pingpong("dgram", &["64 ", "256 ", "1k ", "4k "]);
}

#[test]
fn a_dead_peer_ends_in_an_error_and_not_in_a_hang() {
    if !has("ib_read_bw") || !has("stdbuf") {
        return;
    }
    let _turn = turn();
    let core = &rdma_cores()[0];
    let (session, port) = (session(), free_port().to_string());
    let line = ["ib_read_bw", "-c", "SRD", "-x", "0", "-n", "100000000", "-p", &port];
    let mut server = Reaped(on_device(core, &line, &session, &[EFA]).spawn().unwrap());
    wait_until_listening(&port, &mut server.0, "ib_read_bw");
    let client_line: Vec<&str> = [&["stdbuf", "-oL"], &line[..], &["127.0.0.1"]].concat();
    let mut client = Reaped(on_device(core, &client_line, &session, &[EFA]).spawn().unwrap());
    let lines = lines_of(client.0.stdout.take().unwrap());
    wait_for(&lines, "#iterations");
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    // "Remote invalid RD request": there is no such queue pair any more.
    let errors = lines_of(client.0.stderr.take().unwrap());
    wait_for(&errors, "Failed status 15");
    assert!(!client.0.wait().unwrap().success());
}
