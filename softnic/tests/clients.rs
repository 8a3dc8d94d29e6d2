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
}

#[test]
fn ucx_in_the_peers_memory() {
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
    if !has("fi_pingpong") || !has("stdbuf") {
        return;
    }
    let _turn = turn();
    for core in rdma_cores() {
        let (session, port) = (session(), free_port().to_string());
        // `-p` is the provider: reliable messages over verbs' datagrams; `-c` checks the bytes.
        let line = ["stdbuf", "-oL", "fi_pingpong", "-p", "verbs;ofi_rxd", "-e", "rdm"];
        let line = [&line[..], &["-I", "10", "-c", "-S", "65536"]].concat();
        let start =
            |more: &[&str]| Reaped(on_device(&core, &[&line, more].concat(), &session, &[]).spawn().unwrap());
        let mut server = start(&["-B", &port]);
        wait_until_listening(&port, &mut server.0, "fi_pingpong");
        let mut client = start(&["-P", &port, "127.0.0.1"]);
        // Its reliable layer has no farewell: the side that ends last may wait for an answer of the one that is gone, so
        // neither's end is waited for.
        for program in [&mut server, &mut client] {
            let lines = lines_of(program.0.stdout.take().unwrap());
            wait_for(&lines, "64k     10      =10");
        }
    }
}
