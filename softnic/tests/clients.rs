//! Unmodified middleware on the devices: UCX and libfabric, two processes each, on the system's rdma-core and on a newer one.
//! What of theirs can't run, and why, is in the `README.md`.
//!
//! Where the packages are missing, the tests say so and pass; `IBV_REQUIRE=softnic-tools` makes that a failure.

mod programs;

use programs::*;

/// Runs a test of `ucx_perftest` on each rdma-core; it must do all its iterations.
fn ucx(transport: &str, test: &str, options: &[&str]) {
    if !has("ucx_perftest") {
        return;
    }
    let _turn = turn();
    for core in rdma_cores() {
        let line = ["ucx_perftest", "-d", "mlx5_0:1", "-x", transport, "-t", test, "-n", "100", "-w", "10"];
        let line = [&line[..], options].concat();
        let (_, client) = run_pair(&core, &line, &[]);
        let done = client.lines().find_map(|l| l.strip_prefix("Final:"));
        let count = done.and_then(|l| l.split_whitespace().next());
        assert_eq!(count, Some("100"), "{line:?} on {}: {client}", core.name);
    }
}

#[test]
fn ucx_on_reliable_connections() {
    ucx("rc_verbs", "am_lat", &["-D", "short"]);
    ucx("rc_verbs", "am_bw", &["-D", "bcopy", "-s", "1000"]);
    ucx("rc_verbs", "put_lat", &["-D", "short"]);
    ucx("rc_verbs", "put_bw", &["-D", "zcopy", "-s", "4096"]);
    ucx("rc_verbs", "get", &["-D", "zcopy", "-s", "4096"]);
    ucx("rc_verbs", "fadd", &["-s", "8"]);
}

#[test]
fn ucx_on_datagrams() {
    ucx("ud_verbs", "am_lat", &["-D", "short"]);
    ucx("ud_verbs", "am_bw", &["-D", "bcopy", "-s", "1000"]);
}

#[test]
fn libfabric_on_datagrams() {
    if !has("fi_pingpong") {
        return;
    }
    let _turn = turn();
    for core in rdma_cores() {
        let port = free_port().to_string();
        // `-p` is the provider: reliable messages over verbs' datagrams; `-c` checks the bytes.
        let line = ["fi_pingpong", "-p", "verbs;ofi_rxd", "-e", "rdm", "-I", "10", "-c"];
        let server = [&line[..], &["-B", &port]].concat();
        let client = [&line[..], &["-P", &port, "127.0.0.1"]].concat();
        let (server, client) = run_both(&core, &server, &client, &port, &[]);
        for printed in [server, client] {
            for size in ["64 ", "64k ", "1m "] {
                let row = printed.lines().find(|l| l.starts_with(size));
                assert!(row.is_some_and(|l| l.contains("10 ")), "{size}: {printed}");
            }
        }
    }
}
