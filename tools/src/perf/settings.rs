//! What is measured and how: the settings, which of them both ends must share, and what a device can not
//! do. Pure; the rows that come of it are `steps.rs`'s.

use crate::Failure;
use ibv::{Caps, Mtu};
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
    pub(super) fn check(&self, device: &str, caps: &Caps) -> Result<(), Failure> {
        match self.objection(caps) {
            Some(why) => Err(Failure::Refused(format!("{device}: {why}"))),
            None => Ok(()),
        }
    }

    fn objection(&self, caps: &Caps) -> Option<String> {
        self.nonsense().or_else(|| self.absent(caps)).or_else(|| self.excess(caps))
    }

    fn nonsense(&self) -> Option<String> {
        let Self { qps, post_list, tx_depth, .. } = *self;
        if self.has(true) && (qps > 1 || post_list > 1 || self.bidirectional) {
            let lat = "latency is of one message at a time";
            return Some(format!("{lat}: leave out --qp, --post-list and --bidirectional"));
        }
        if qps == 0 || post_list == 0 || tx_depth == 0 || self.cq_mod == Some(0) {
            return Some("--qp, --post-list, --tx-depth and --cq-mod are at least 1".into());
        }
        if post_list > tx_depth {
            return Some(format!("--post-list {post_list} is longer than --tx-depth {tx_depth}"));
        }
        let longest = tx_depth - post_list + 1;
        let cq_mod = self.cq_mod.filter(|n| *n > longest)?;
        Some(format!(
            "--cq-mod {cq_mod} leaves lists of {post_list} in a queue of {tx_depth} waiting for ever; at most {longest}"
        ))
    }

    fn absent(&self, caps: &Caps) -> Option<String> {
        let offers =
            [(Operation::Write, caps.write), (Operation::Read, caps.read), (Operation::Send, caps.send)];
        let (has, lacks): (Vec<_>, Vec<_>) = offers.into_iter().partition(|(_, s)| s.present());
        if lacks.iter().any(|(op, _)| *op == self.operation) {
            let has: Vec<_> = has.iter().map(|(op, _)| op.to_string()).collect();
            return Some(format!("has no {}; it has {}", self.operation, has.join(", ")));
        }
        if self.measure == Measure::Lat && self.latency_says_nothing(caps.messages_in_order) {
            return Some(format!("{UNORDERED}; measure send latency, or write bandwidth"));
        }
        let cq_mod = self.cq_mod.filter(|n| *n > 1 && !caps.completions_in_order)?;
        Some(format!(
            "--cq-mod {cq_mod}: requests complete in any order here (capability completions_in_order), so each asks for its completion"
        ))
    }

    fn excess(&self, caps: &Caps) -> Option<String> {
        let inline = self.inline.unwrap_or(0);
        if inline > 0 && self.operation == Operation::Read {
            return Some("--inline: nothing of a read can travel inside its work request".into());
        }
        let over = |option: &str, value: u64, most: u64| {
            (value > most).then(|| format!("{option} {value}: this device takes at most {most}"))
        };
        over("--inline", inline.into(), caps.max_inline.into())
            .or_else(|| over("--tx-depth", self.tx_depth.into(), caps.max_send_wr.into()))
            .or_else(|| match self.operation {
                Operation::Send => over("--rx-depth", self.rx_depth.into(), caps.max_recv_wr.into()),
                _ => None,
            })
            .or_else(|| over("--size", self.size.unwrap_or(0) as u64, self.limit(caps) as u64))
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
    use ibv::Support;

    fn caps() -> Caps {
        let mut caps = Caps::default();
        (caps.write, caps.read, caps.send) = (Support::Native, Support::Native, Support::Native);
        (caps.completions_in_order, caps.messages_in_order) = (true, true);
        (caps.max_msg_size, caps.max_send_size, caps.max_inline) = (1 << 20, 4096, 64);
        (caps.max_send_wr, caps.max_recv_wr) = (1024, 1024);
        caps
    }

    fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::new(Operation::Write, Measure::Bw);
        change(&mut settings);
        settings
    }

    #[test]
    fn what_a_device_can_not_do_is_refused_by_name_and_number() {
        type Case = (&'static str, fn(&mut Settings), fn(&mut Caps));
        let cases: [Case; 12] = [
            ("has no write; it has read, send", |_| {}, |c| c.write = Support::Absent),
            ("messages_in_order", |s| s.measure = Measure::Lat, |c| c.messages_in_order = false),
            ("completions_in_order", |s| s.cq_mod = Some(2), |c| c.completions_in_order = false),
            ("--inline 65: this device takes at most 64", |s| s.inline = Some(65), |_| {}),
            ("nothing of a read", |s| (s.operation, s.inline) = (Operation::Read, Some(1)), |_| {}),
            ("--size 1048577", |s| s.size = Some((1 << 20) + 1), |_| {}),
            ("at most 4096", |s| (s.operation, s.size) = (Operation::Send, Some(4097)), |_| {}),
            ("--tx-depth 2000: this device takes at most 1024", |s| s.tx_depth = 2000, |_| {}),
            ("--tx-depth 4294967295: this device takes at most 1024", |s| s.tx_depth = u32::MAX, |_| {}),
            ("one message at a time", |s| (s.measure, s.qps) = (Measure::All, 2), |_| {}),
            ("--post-list 129 is longer", |s| s.post_list = 129, |_| {}),
            ("at most 1", |s| (s.post_list, s.cq_mod) = (128, Some(2)), |_| {}),
        ];
        for (words, change, damage) in cases {
            let mut caps = caps();
            damage(&mut caps);
            let refused = settings(change).check("dev0", &caps).unwrap_err();
            assert!(matches!(refused, Failure::Refused(_)));
            assert!(refused.to_string().contains(words), "{refused} does not say {words}");
        }
        settings(|_| {}).check("dev0", &caps()).unwrap();
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
