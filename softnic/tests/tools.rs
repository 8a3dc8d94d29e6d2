//! Unmodified programs on the devices: the tools of ibverbs-utils and perftest, two processes each, on the system's rdma-core
//! and on a newer one. Each with its own exit status and checked output.
//!
//! Where the packages are missing, the tests say so and pass; `IBV_REQUIRE=softnic-tools` makes that a failure.

mod programs;

use programs::*;

/// All sizes of `-a`: 2 bytes to 8 MiB.
fn all_sizes(iterations: u64) -> Vec<(u64, u64)> {
    (1..=23).map(|n| (1 << n, iterations)).collect()
}

#[test]
fn ibv_devices_lists_them() {
    if has("ibv_devices") {
        let _turn = turn();
        for core in rdma_cores() {
            let printed = run_alone(&core, &["ibv_devices"], &[("SOFTNIC_COUNT", "3")]);
            for i in 0..3 {
                assert!(printed.contains(&format!("mlx5_{i}")), "{printed}");
                assert!(printed.contains(&format!("0c42a10300aabb0{i}")), "{printed}");
            }
        }
    }
}

#[test]
fn ibv_devinfo_describes_both_links() {
    if has("ibv_devinfo") {
        let _turn = turn();
        for core in rdma_cores() {
            let ib = run_alone(&core, &["ibv_devinfo", "-v"], &[]);
            for part in [
                "SOFTNIC_MLX5",
                "PORT_ACTIVE (4)",
                "InfiniBand",
                "4096 (5)",
                "fe80:0000:0000:0000:0c42:a103:00aa:bb00",
            ] {
                assert!(ib.contains(part), "{part}: {ib}");
            }
            let roce = run_alone(&core, &["ibv_devinfo", "-v"], &[("SOFTNIC_LINK", "roce")]);
            for part in ["Ethernet", "RoCE v2", "::ffff:192.0.2.1"] {
                assert!(roce.contains(part), "{part}: {roce}");
            }
        }
    }
}

/// Runs a pingpong of ibverbs-utils on each rdma-core, strictly; `-c` lets each side check the bytes that it receives.
fn pingpong(tool: &str, options: &[&str], env: &[(&str, &str)]) {
    if !has(tool) {
        return;
    }
    let _turn = turn();
    let env = [env, &[("SOFTNIC_STRICT", "1")]].concat();
    for core in rdma_cores() {
        let line = [&[tool, "-n", "300"], options].concat();
        let (server, client) = run_pair(&core, &line, &env);
        for printed in [server, client] {
            assert!(printed.contains("300 iters in"), "{line:?}: {printed}");
            assert!(
                !printed.contains("softnic:") && !printed.contains("invalid data"),
                "{line:?}: {printed}"
            );
        }
    }
}

#[test]
fn ibv_rc_pingpong_plays() {
    for options in [&[][..], &["-e"], &["-c"]] {
        pingpong("ibv_rc_pingpong", options, &[]);
    }
}

#[test]
fn ibv_uc_ud_and_srq_pingpong_play() {
    for tool in ["ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        pingpong(tool, &[], &[]);
    }
}

#[test]
fn ibv_uc_ud_and_srq_pingpong_play_by_events() {
    for tool in ["ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        pingpong(tool, &["-c", "-e"], &[]);
    }
}

#[test]
fn pingpong_plays_on_ethernet() {
    let roce = [("SOFTNIC_LINK", "roce")];
    for (tool, gid) in [("ibv_ud_pingpong", "0"), ("ibv_ud_pingpong", "3"), ("ibv_uc_pingpong", "1")] {
        pingpong(tool, &["-c", "-g", gid], &roce);
    }
}

/// Every kind of queue on one generation of the interface.
fn pingpong_on(abi: &str) {
    for tool in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        pingpong(tool, &["-c", "-e"], &[("SOFTNIC_ABI", abi)]);
    }
}

#[test]
fn the_middle_generation_of_the_interface_serves_every_kind_of_queue() {
    pingpong_on("invoke");
}

#[test]
fn the_oldest_generation_of_the_interface_serves_every_kind_of_queue() {
    pingpong_on("write");
    pingpong("ibv_ud_pingpong", &["-c", "-g", "3"], &[("SOFTNIC_ABI", "write"), ("SOFTNIC_LINK", "roce")]);
}

/// Late enough for a program on a busy machine to be watching.
const EVENTFUL: &str = r#"
[[device]]
name = "mlx5_0"
[[device.port]]
link = "roce"
gids = [{ gid = "192.0.2.1" }]
[[event]]
at = 4_000_000
device = "mlx5_0"
what = { port-down = 1 }
[[event]]
at = 4_200_000
device = "mlx5_0"
what = { port-up = 1 }
[[event]]
at = 4_400_000
device = "mlx5_0"
what = { gid-change = { port = 1, index = 0, entry = { gid = "192.0.2.9" } } }
[[event]]
at = 4_600_000
device = "mlx5_0"
what = "device-fatal"
"#;

#[test]
fn ibv_asyncwatch_sees_what_befalls_the_device() {
    if !has("ibv_asyncwatch") || !has("stdbuf") {
        return;
    }
    let _turn = turn();
    let path = std::env::temp_dir().join(format!("softnic-eventful-{}.toml", std::process::id()));
    std::fs::write(&path, EVENTFUL).unwrap();
    for core in rdma_cores() {
        let env = [("SOFTNIC_DEVICES", path.to_str().unwrap())];
        // It watches for ever, and prints line by line only if it is told to.
        let line = ["stdbuf", "-oL", "ibv_asyncwatch"];
        let mut watch = Reaped(on_device(&core, &line, &session(), &env).spawn().unwrap());
        let lines = lines_of(watch.0.stdout.take().unwrap());
        // Port down, up, address, fatal: the newer one has their names, the older one the numbers alone.
        for event in ["async event FD", "(10), port 1", "(9), port 1", "(18), port 1", "(8), port 0"] {
            wait_for(&lines, event);
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_dead_peer_ends_in_an_error_and_not_in_a_hang() {
    if !has("ib_write_bw") {
        return;
    }
    let _turn = turn();
    let core = &rdma_cores()[0];
    let (session, port) = (session(), free_port().to_string());
    let line = ["ib_write_bw", "-n", "100000000", "-p", &port];
    let mut server = Reaped(on_device(core, &line, &session, &[]).spawn().unwrap());
    wait_until_listening(&port, &mut server.0, "ib_write_bw");
    // Line by line, so that the table's head says when the traffic starts.
    let client_line: Vec<&str> = [&["stdbuf", "-oL"], &line[..], &["127.0.0.1"]].concat();
    let mut client = Reaped(on_device(core, &client_line, &session, &[]).spawn().unwrap());
    let lines = lines_of(client.0.stdout.take().unwrap());
    wait_for(&lines, "#iterations");
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let errors = lines_of(client.0.stderr.take().unwrap());
    wait_for(&errors, "Failed status 12");
    assert!(!client.0.wait().unwrap().success());
}

#[test]
fn perftest_write() {
    perftest("ib_write_bw -n 100", &[], &[(65536, 100)]);
    perftest("ib_write_lat -n 100", &[], &[(2, 100)]);
    perftest("ib_write_bw -n 50 -b", &[], &[(65536, 50)]);
    perftest("ib_write_bw -n 50 -q 8", &[], &[(65536, 400)]);
}

#[test]
fn perftest_read() {
    perftest("ib_read_bw -n 100", &[], &[(65536, 100)]);
    perftest("ib_read_lat -n 100", &[], &[(2, 100)]);
    perftest("ib_read_bw -n 50 -b", &[], &[(65536, 50)]);
    perftest("ib_read_bw -n 50 -q 8", &[], &[(65536, 400)]);
}

#[test]
fn perftest_send() {
    perftest("ib_send_bw -n 100", &[], &[(65536, 100)]);
    perftest("ib_send_lat -n 100", &[], &[(2, 100)]);
    perftest("ib_send_bw -n 50 -b", &[], &[(65536, 50)]);
    perftest("ib_send_bw -n 50 -q 8", &[], &[(65536, 400)]);
}

#[test]
fn perftest_send_by_events() {
    perftest("ib_send_bw -n 100 -e", &[], &[(65536, 100)]);
    perftest("ib_send_lat -n 100 -e", &[], &[(2, 100)]);
}

#[test]
fn perftest_atomic() {
    perftest("ib_atomic_bw -n 100", &[], &[(8, 100)]);
    perftest("ib_atomic_lat -n 100", &[], &[(8, 100)]);
    perftest("ib_atomic_bw -n 50 -q 8", &[], &[(8, 400)]);
}

#[test]
fn perftest_write_of_all_sizes() {
    perftest("ib_write_bw -a -n 5", &[], &all_sizes(5));
}

#[test]
fn perftest_write_latency_of_all_sizes() {
    perftest("ib_write_lat -a -n 5", &[], &all_sizes(5));
}

#[test]
fn perftest_read_of_all_sizes() {
    perftest("ib_read_bw -a -n 5", &[], &all_sizes(5));
}

#[test]
fn perftest_read_latency_of_all_sizes() {
    perftest("ib_read_lat -a -n 5", &[], &all_sizes(5));
}

#[test]
fn perftest_send_of_all_sizes() {
    perftest("ib_send_bw -a -n 5", &[], &all_sizes(5));
}

#[test]
fn perftest_send_latency_of_all_sizes() {
    perftest("ib_send_lat -a -n 5", &[], &all_sizes(5));
}

#[test]
fn perftest_roce() {
    let roce = [("SOFTNIC_LINK", "roce")];
    perftest("ib_write_bw -n 100 -x 3", &roce, &[(65536, 100)]);
    perftest("ib_send_lat -n 100 -x 1", &roce, &[(2, 100)]);
    perftest("ib_read_lat -n 100 -x 0", &roce, &[(2, 100)]);
    perftest("ib_atomic_bw -n 100 -x 2", &roce, &[(8, 100)]);
}

#[test]
fn perftest_on_unreliable_connections() {
    perftest("ib_send_bw -c UC -n 100", &[], &[(65536, 100)]);
    perftest("ib_send_lat -c UC -n 100", &[], &[(2, 100)]);
    perftest("ib_write_bw -c UC -n 100", &[], &[(65536, 100)]);
    perftest("ib_write_lat -c UC -n 100", &[], &[(2, 100)]);
}

#[test]
fn perftest_on_datagrams() {
    perftest("ib_send_bw -c UD -n 100", &[], &[(4096, 100)]);
    perftest("ib_send_lat -c UD -n 100", &[], &[(2, 100)]);
    perftest("ib_send_bw -c UD -n 100 -x 3", &[("SOFTNIC_LINK", "roce")], &[(4096, 100)]);
}

#[test]
fn perftest_shared_receives() {
    perftest("ib_send_bw --use-srq -q 4 -n 50", &[], &[(65536, 200)]);
    perftest("ib_send_lat --use-srq -n 100", &[], &[(2, 100)]);
    perftest("ib_send_bw -c UD --use-srq -n 100 -e", &[], &[(4096, 100)]);
}

#[test]
fn older_generations_of_the_interface_serve_the_tools_too() {
    for abi in ["invoke", "write"] {
        perftest("ib_write_bw -n 50", &[("SOFTNIC_ABI", abi)], &[(65536, 50)]);
    }
}
