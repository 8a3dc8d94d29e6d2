//! What is measured and how: the settings, which of them both ends must share, and what a device can not
//! do. Pure; the rows that come of it are `steps.rs`'s.

use crate::Failure;
use ibv::{Caps, IbvDeviceInfo, Mtu};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// RDMA write: put
    Write,
    /// RDMA read: get
    Read,
    /// Send, into a receive of the peer's
    Send,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        })
    }
}

/// What is asked about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Bandwidth: as many messages in flight as the queue holds
    Bw,
    /// Latency: one message at a time
    Lat,
    /// Bandwidth, then latency
    All,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bw => "bandwidth",
            Self::Lat => "latency",
            Self::All => "bandwidth and latency",
        })
    }
}

/// How long each row takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// So many messages a queue pair.
    Iterations(u64),
    /// So long.
    Duration(Duration),
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iterations(n) => write!(f, "{n} iterations"),
            Self::Duration(time) => write!(f, "{} s", time.as_secs_f64()),
        }
    }
}

/// Why a write's latency can not be told.
const UNORDERED: &str = "write latency is told by a message's last byte, which says nothing on a device that orders nothing (capability messages_in_order)";

/// Everything that can be set. The defaults are perftest's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Write, read or send.
    pub operation: Operation,
    /// Bandwidth, latency or both.
    pub measure: Measure,
    /// Bytes in a message. Default `None`: 65536 for bandwidth, 2 for latency.
    pub size: Option<usize>,
    /// Every power of two from 2 to 2^23 bytes that both devices take, one row each.
    pub all: bool,
    /// Messages or time for each row.
    pub extent: Extent,
    /// Bandwidth in both directions at once.
    pub bidirectional: bool,
    /// Whether the bytes that arrived last are compared with those that were sent.
    pub verify: bool,
    /// Queue pairs, for bandwidth.
    pub qps: u32,
    /// Work requests that one doorbell publishes.
    pub post_list: u32,
    /// Work requests in flight on a queue pair.
    pub tx_depth: u32,
    /// Receives posted on a queue pair, for sends.
    pub rx_depth: u32,
    /// Every how many work requests one asks for a completion. Default `None`: 100 up to 8192 bytes, else
    /// 1; the post list where that is longer than 1; 1 where requests complete out of order.
    pub cq_mod: Option<u32>,
    /// Largest message that travels inside its work request, bytes. Default `None`: 0 for bandwidth, for
    /// latency what perftest has (write 220, send 236) as far as the device takes it.
    pub inline: Option<u32>,
    /// The device's port.
    pub port_num: u8,
    /// Index into the port's GID table. Default `None`: the best entry.
    pub gid_index: Option<u32>,
    /// Largest packet payload. Default `None`: the port's.
    pub mtu: Option<Mtu>,
    /// How long nothing at all may happen.
    pub timeout: Duration,
}

impl Settings {
    /// perftest's defaults.
    pub fn new(operation: Operation, measure: Measure) -> Self {
        Self {
            operation,
            measure,
            size: None,
            all: false,
            extent: Extent::Iterations(1000),
            bidirectional: false,
            verify: false,
            qps: 1,
            post_list: 1,
            tx_depth: 128,
            rx_depth: 512,
            cq_mod: None,
            inline: None,
            port_num: 1,
            gid_index: None,
            mtu: None,
            timeout: Duration::from_secs(30),
        }
    }

    /// Inline bytes that rows of this kind use on a device with `caps`.
    pub(super) fn inline(&self, latency: bool, caps: &Caps) -> usize {
        let default = match (latency, self.operation) {
            (true, Operation::Write) => 220,
            (true, Operation::Send) => 236,
            _ => 0,
        };
        self.inline.unwrap_or(caps.max_inline.min(default)) as usize
    }

    /// Every how many requests one is signaled, for messages of `size` bytes.
    pub(super) fn cq_mod(&self, size: usize, caps: &Caps) -> u32 {
        const LARGE: usize = 8192;
        let default = match () {
            () if !caps.completions_in_order => 1,
            () if self.post_list > 1 => self.post_list,
            () if size > LARGE => 1,
            () => 100,
        };
        self.cq_mod
            .unwrap_or(default.min(self.tx_depth.saturating_sub(self.post_list).saturating_add(1)).max(1))
    }

    /// Largest message of this operation on a device with `caps`, bytes.
    pub(super) fn limit(&self, caps: &Caps) -> usize {
        if self.operation == Operation::Send { caps.max_send_size } else { caps.max_msg_size }
    }

    /// Whether rows of this kind are asked for.
    pub(super) fn has(&self, latency: bool) -> bool {
        self.measure == Measure::All || (self.measure == Measure::Lat) == latency
    }

    /// Whether latency is asked for that can not be told, where messages arrive in order or not.
    fn latency_says_nothing(&self, in_order: bool) -> bool {
        self.has(true) && self.operation == Operation::Write && !in_order
    }

    /// Rows that are asked for and left out, and why, where both devices deliver messages in order or not.
    pub(super) fn left_out(&self, in_order: bool) -> Option<String> {
        self.latency_says_nothing(in_order).then(|| format!("latency: {UNORDERED}"))
    }

    /// Refuses what makes no sense, and what a device with `caps` can not do.
    ///
    /// # Errors
    /// `Setting` for a value that can not be used, `Refused` for what the device lacks.
    pub(crate) fn check(&self, device: &IbvDeviceInfo, caps: &Caps) -> Result<(), Failure> {
        if let Some(why) = self.nonsense() {
            return Err(Failure::Setting(why));
        }
        if let Some(why) = self.absent(caps) {
            return Err(Failure::Refused(format!("{}: {why}", device.name)));
        }
        let wrong = self.excess(&device.name, caps).or_else(|| self.elsewhere(device));
        wrong.map_or(Ok(()), |why| Err(Failure::Setting(why)))
    }

    /// What no device could do.
    fn nonsense(&self) -> Option<String> {
        let Self { qps, post_list, tx_depth, .. } = *self;
        let cq_mod = self.cq_mod.unwrap_or(1);
        let counts =
            [("--qp", qps), ("--post-list", post_list), ("--tx-depth", tx_depth), ("--cq-mod", cq_mod)];
        if let Some((option, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return Some(format!("{option} 0: must be at least 1"));
        }
        let several =
            [("--qp", qps > 1), ("--post-list", post_list > 1), ("--bidirectional", self.bidirectional)];
        if let Some((option, _)) = several.iter().find(|(_, set)| *set && self.has(true)) {
            return Some(format!(
                "{option}: latency is of one message at a time; leave it out, or measure bw"
            ));
        }
        if post_list > tx_depth {
            return Some(format!("--post-list {post_list}: must be 1 to --tx-depth, which is {tx_depth}"));
        }
        let longest = tx_depth - post_list + 1;
        (cq_mod > longest).then(|| {
            let depths = format!("--post-list {post_list} and --tx-depth {tx_depth}");
            format!("--cq-mod {cq_mod}: must be 1 to {longest} with {depths}, or the queue fills before anything completes")
        })
    }

    /// What the device lacks.
    fn absent(&self, caps: &Caps) -> Option<String> {
        let offers =
            [(Operation::Write, caps.write), (Operation::Read, caps.read), (Operation::Send, caps.send)];
        let (has, lacks): (Vec<_>, Vec<_>) = offers.into_iter().partition(|(_, s)| s.present());
        if lacks.iter().any(|(op, _)| *op == self.operation) {
            let has: Vec<_> = has.iter().map(|(op, _)| op.to_string()).collect();
            let has = if has.is_empty() { "no other".into() } else { has.join(", ") };
            return Some(format!("has no {}; it has {has}; `ibv doctor` says why", self.operation));
        }
        let untold = self.measure == Measure::Lat && self.latency_says_nothing(caps.messages_in_order);
        untold.then(|| format!("{UNORDERED}; measure send latency, or write bandwidth"))
    }

    /// What is more than the device takes.
    fn excess(&self, device: &str, caps: &Caps) -> Option<String> {
        let inline = self.inline.unwrap_or(0);
        if inline > 0 && self.operation == Operation::Read {
            return Some(format!("--inline {inline}: nothing of a read can travel inside its work request"));
        }
        if let Some(n) = self.cq_mod.filter(|n| *n > 1 && !caps.completions_in_order) {
            let why = "requests complete in any order there (capability completions_in_order)";
            return Some(format!("--cq-mod {n}: {device} takes 1 alone, because {why}"));
        }
        let receives = if self.operation == Operation::Send { self.rx_depth } else { 0 };
        let size = self.size.unwrap_or(1) as u64;
        let each = u64::from(self.tx_depth) + u64::from(receives);
        let limits = [
            ("--inline", inline.into(), 0, caps.max_inline.into()),
            ("--tx-depth", self.tx_depth.into(), 1, caps.max_send_wr.into()),
            ("--rx-depth", receives.into(), 1, caps.max_recv_wr.into()),
            ("--size", size, 1, self.limit(caps) as u64),
            // All of them report to one completion queue.
            ("--qp", self.qps.into(), 1, u64::from(caps.max_cqe) / each),
        ];
        let over = limits.into_iter().find(|(_, value, _, most)| value > most);
        over.map(|(option, value, least, most)| {
            let with = if option == "--qp" {
                format!(" with {each} requests in flight on each")
            } else {
                String::new()
            };
            format!("{option} {value}: {device} takes {least} to {most}{with}")
        })
    }

    /// A port or an address that the device does not have. Some devices' are only known to who drives them.
    fn elsewhere(&self, device: &IbvDeviceInfo) -> Option<String> {
        let list = |numbers: Vec<String>| numbers.join(", ");
        let name = &device.name;
        let Some(port) = device.port(self.port_num) else {
            let ports = list(device.ports.iter().map(|port| port.port_num.to_string()).collect());
            return (!ports.is_empty()).then(|| format!("--ib-port {}: {name} has {ports}", self.port_num));
        };
        let index = self.gid_index.filter(|index| !port.gids.iter().any(|gid| gid.index == *index))?;
        let gids = list(port.gids.iter().map(|gid| gid.index.to_string()).collect());
        (!gids.is_empty())
            .then(|| format!("--gid-index {index}: port {} of {name} has {gids}", self.port_num))
    }

    /// What the other end has to have set likewise.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            operation: self.operation,
            measure: self.measure,
            size: self.size.map(|size| size as u64),
            all: self.all,
            extent: self.extent,
            bidirectional: self.bidirectional,
            verify: self.verify,
            qps: self.qps,
        }
    }
}

/// The settings that both ends share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    operation: Operation,
    measure: Measure,
    size: Option<u64>,
    all: bool,
    extent: Extent,
    bidirectional: bool,
    verify: bool,
    qps: u32,
}

impl Terms {
    fn rows(&self) -> [(&'static str, String); 8] {
        let on = |set: bool| if set { "on" } else { "off" }.to_owned();
        [
            ("operation", self.operation.to_string()),
            ("measure", self.measure.to_string()),
            ("--size", self.size.map_or("the default".into(), |size| size.to_string())),
            ("--all", on(self.all)),
            ("--iters or --duration", self.extent.to_string()),
            ("--bidirectional", on(self.bidirectional)),
            ("--verify", on(self.verify)),
            ("--qp", self.qps.to_string()),
        ]
    }

    /// Both ends' values where they differ.
    pub(super) fn compare(&self, theirs: &Self) -> Result<(), Failure> {
        let rows = self.rows().into_iter().zip(theirs.rows());
        let unlike = rows.filter(|(ours, theirs)| ours != theirs);
        let said: Vec<_> = unlike.map(|((name, a), (_, b))| format!("{name} {a} here, {b} there")).collect();
        if said.is_empty() { Ok(()) } else { Err(Failure::Differ(said.join("; "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibv::{Gid, GidEntry, GidType, IbvPort, Support};

    fn caps() -> Caps {
        let mut caps = Caps::default();
        (caps.write, caps.read, caps.send) = (Support::Native, Support::Native, Support::Native);
        (caps.completions_in_order, caps.messages_in_order) = (true, true);
        (caps.max_msg_size, caps.max_send_size, caps.max_inline) = (1 << 20, 4096, 64);
        (caps.max_send_wr, caps.max_recv_wr, caps.max_cqe) = (1024, 1024, 2048);
        caps
    }

    fn device() -> IbvDeviceInfo {
        let mut info = IbvDeviceInfo::new("dev0");
        let gid = |index| GidEntry { index, gid: Gid([0; 16]), gid_type: GidType::Ib, netdev: None };
        info.ports = vec![IbvPort::new(1), IbvPort::new(2)];
        info.ports[0].gids = vec![gid(0), gid(3)];
        info
    }

    fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::new(Operation::Write, Measure::Bw);
        change(&mut settings);
        settings
    }

    #[test]
    fn what_a_device_can_not_do_is_refused_by_name_and_number() {
        type Case = (u8, &'static str, fn(&mut Settings), fn(&mut Caps));
        let cases: [Case; 20] = [
            (31, "dev0: has no write; it has read, send", |_| {}, |c| c.write = Support::Absent),
            (31, "messages_in_order", |s| s.measure = Measure::Lat, |c| c.messages_in_order = false),
            (2, "--cq-mod 2: dev0 takes 1 alone", |s| s.cq_mod = Some(2), |c| c.completions_in_order = false),
            (2, "--inline 65: dev0 takes 0 to 64", |s| s.inline = Some(65), |_| {}),
            (
                2,
                "--inline 1: nothing of a read",
                |s| (s.operation, s.inline) = (Operation::Read, Some(1)),
                |_| {},
            ),
            (2, "--size 1048577: dev0 takes 1 to 1048576", |s| s.size = Some((1 << 20) + 1), |_| {}),
            (2, "dev0 takes 1 to 4096", |s| (s.operation, s.size) = (Operation::Send, Some(4097)), |_| {}),
            (2, "--tx-depth 2000: dev0 takes 1 to 1024", |s| s.tx_depth = 2000, |_| {}),
            (2, "--tx-depth 4294967295: dev0 takes 1 to 1024", |s| s.tx_depth = u32::MAX, |_| {}),
            (2, "--rx-depth 2000: dev0", |s| (s.operation, s.rx_depth) = (Operation::Send, 2000), |_| {}),
            (2, "--qp 17: dev0 takes 1 to 16 with 128 requests", |s| s.qps = 17, |_| {}),
            (2, "--qp 4294967295: dev0 takes", |s| s.qps = u32::MAX, |_| {}),
            (2, "--qp: latency is of one", |s| (s.measure, s.qps) = (Measure::All, 2), |_| {}),
            (2, "--post-list 129: must be 1 to --tx-depth, which is 128", |s| s.post_list = 129, |_| {}),
            (2, "--cq-mod 2: must be 1 to 1 with", |s| (s.post_list, s.cq_mod) = (128, Some(2)), |_| {}),
            (2, "--qp 0: must be", |s| s.qps = 0, |_| {}),
            (2, "--cq-mod 0: must be", |s| s.cq_mod = Some(0), |_| {}),
            (2, "--ib-port 9: dev0 has 1, 2", |s| s.port_num = 9, |_| {}),
            (2, "--gid-index 7: port 1 of dev0 has 0, 3", |s| s.gid_index = Some(7), |_| {}),
            (2, "--tx-depth 0: must be", |s| s.tx_depth = 0, |_| {}),
        ];
        for (code, words, change, damage) in cases {
            let mut caps = caps();
            damage(&mut caps);
            let refused = settings(change).check(&device(), &caps).unwrap_err();
            assert_eq!(refused.code(), code, "{refused}");
            assert!(refused.to_string().contains(words), "{refused} does not say {words}");
        }
        settings(|s| s.gid_index = Some(3)).check(&device(), &caps()).unwrap();
        // A device that says nothing of its ports before it is opened may have any.
        settings(|s| (s.port_num, s.gid_index) = (9, Some(9)))
            .check(&IbvDeviceInfo::new("x"), &caps())
            .unwrap();
    }

    #[test]
    fn unset_moderation_follows_perftest_and_never_waits_for_ever() {
        let (caps, mut any_order) = (caps(), caps());
        any_order.completions_in_order = false;
        assert_eq!(settings(|_| {}).cq_mod(8, &caps), 100);
        assert_eq!(settings(|_| {}).cq_mod(8193, &caps), 1);
        assert_eq!(settings(|_| {}).cq_mod(8, &any_order), 1);
        assert_eq!(settings(|s| s.post_list = 16).cq_mod(8, &caps), 16);
        assert_eq!(settings(|s| s.post_list = 128).cq_mod(8, &caps), 1);
        assert_eq!(settings(|s| s.tx_depth = 1).cq_mod(8, &caps), 1);
    }

    #[test]
    fn ends_that_differ_hear_both_values_of_each_difference() {
        let ours = settings(|s| s.qps = 2).terms();
        let theirs = settings(|s| (s.verify, s.size) = (true, Some(9))).terms();
        let said = ours.compare(&theirs).unwrap_err().to_string();
        for words in ["--qp 2 here, 1 there", "--verify off here, on there", "the default here, 9 there"] {
            assert!(said.contains(words), "{said}");
        }
        ours.compare(&ours).unwrap();
    }
}
