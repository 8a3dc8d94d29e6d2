//! A queue pair's configuration: every field with its unit and default, and the one place that checks
//! them. What the device made of it is read back from the queue pair.

use crate::{
    caps::Caps,
    error::{Error, ErrorKind},
    gid::{Gid, Mtu},
    post::MAX_SGE,
};

/// Which entry of the port's GID table a queue pair uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum GidChoice {
    /// The provider ranks the table's entries and can say why it took which.
    #[default]
    Auto,
    /// The entry with these bytes, wherever it stands: indices differ between nodes and boots.
    Exact(Gid),
    /// The entry at this index; an error where it is empty or beyond the table.
    Index(u32),
}

/// How a queue pair is created and connected. `Default` works on every provider.
///
/// Sizes that exceed the device's are refused with both numbers. What two ends have to agree on (MTU,
/// outstanding reads) is clamped to the smaller at `connect`; `Connected::config` tells the result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct IbvConfig {
    /// The device's port, from 1. Default 1.
    pub port_num: u8,
    /// Index into the port's partition key table. Default 0.
    pub pkey_index: u16,
    /// Source GID. Default [`GidChoice::Auto`].
    pub gid: GidChoice,
    /// Largest packet payload to use, bytes. Default 4096, clamped to the port's and the peer's.
    pub path_mtu: Mtu,
    /// Send-queue depth: work requests in flight at once. Default 128, at least 1.
    pub max_send_wr: u32,
    /// Receive-queue depth: receives posted at once. Default 128; 0 is allowed.
    pub max_recv_wr: u32,
    /// Ranges in one put, get or send. Default 1, at most 32.
    pub max_send_sge: u32,
    /// Ranges in one receive. Default 1, at most 32.
    pub max_recv_sge: u32,
    /// Bytes that may travel inside a work request. Default 0.
    pub max_inline: u32,
    /// Retries after a lost answer, 0 to 7. Default 7.
    pub retry_cnt: u8,
    /// Retries against a peer without a receive, 0 to 6; 7 retries for ever, so it has to be asked for.
    /// Default 6.
    pub rnr_retry: u8,
    /// Time to wait for an answer: 4.096 µs · 2^n, n from 0 (for ever) to 31. Default 14, about 67 ms.
    pub timeout: u8,
    /// The pause this end asks for when it has no receive: the spec's code 0 to 31, where 0 is the
    /// longest (655.36 ms) and 1 the shortest (0.01 ms). Default 12, 0.64 ms.
    pub min_rnr_timer: u8,
    /// Gets and atomics this end may have outstanding. Default 16, clamped to the device and the peer.
    pub max_rd_atomic: u8,
    /// Gets and atomics the peer may have outstanding here. Default 16, clamped likewise.
    pub max_dest_rd_atomic: u8,
    /// First packet sequence number, 24 bits. Default `None`: drawn anew for every queue pair.
    pub psn: Option<u32>,
    /// Traffic class of the global route header (its upper six bits are the DSCP). Default 0.
    pub traffic_class: u8,
    /// Service level, 0 to 15. Default 0.
    pub service_level: u8,
    /// Flow label of the global route header, 20 bits. Default 0.
    pub flow_label: u32,
    /// Hop limit of the global route header. Default 64.
    pub hop_limit: u8,
    /// Queue key, for datagram transports. Default `None`: drawn anew for every queue pair.
    pub qkey: Option<u32>,
    /// Operations that the flight recorder keeps (feature `recorder`). Default 0: none; at most 65536.
    pub flight_recorder: u32,
}

impl Default for IbvConfig {
    fn default() -> Self {
        Self {
            port_num: 1,
            pkey_index: 0,
            gid: GidChoice::Auto,
            path_mtu: Mtu::B4096,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            retry_cnt: 7,
            rnr_retry: 6,
            timeout: 14,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            psn: None,
            traffic_class: 0,
            service_level: 0,
            flow_label: 0,
            hop_limit: 64,
            qkey: None,
            flight_recorder: 0,
        }
    }
}

impl IbvConfig {
    /// Checks every field against the specification and against `caps`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the field, its value and what is allowed.
    pub fn validate(&self, caps: &Caps) -> Result<(), Error> {
        within("port_num", self.port_num.into(), 1, 255)?;
        within("max_send_wr", self.max_send_wr.into(), 1, caps.max_send_wr.into())?;
        within("max_recv_wr", self.max_recv_wr.into(), 0, caps.max_recv_wr.into())?;
        let sge = |most: u32| u64::from(most).clamp(1, MAX_SGE as u64);
        within("max_send_sge", self.max_send_sge.into(), 1, sge(caps.max_send_sge))?;
        within("max_recv_sge", self.max_recv_sge.into(), 1, sge(caps.max_recv_sge))?;
        within("max_inline", self.max_inline.into(), 0, caps.max_inline.into())?;
        within("retry_cnt", self.retry_cnt.into(), 0, 7)?;
        within("rnr_retry", self.rnr_retry.into(), 0, 7)?;
        within("timeout", self.timeout.into(), 0, 31)?;
        within("min_rnr_timer", self.min_rnr_timer.into(), 0, 31)?;
        within("psn", self.psn.unwrap_or(0).into(), 0, 0xff_ffff)?;
        within("service_level", self.service_level.into(), 0, 15)?;
        within("flow_label", self.flow_label.into(), 0, 0xf_ffff)?;
        within("flight_recorder", self.flight_recorder.into(), 0, 1 << 16)
    }

    /// Fills in what `None` leaves to chance and clamps what the device bounds: the configuration that
    /// a queue pair is created with.
    pub(crate) fn resolve(mut self, caps: &Caps) -> Self {
        let draw = |bits: u32| (random() >> (64 - bits)) as u32;
        self.psn = self.psn.or_else(|| Some(draw(24)));
        // The top bit marks a controlled queue key, which only privileged users may use.
        self.qkey = self.qkey.or_else(|| Some(draw(31)));
        self.max_rd_atomic = self.max_rd_atomic.min(caps.max_rd_atomic);
        self.max_dest_rd_atomic = self.max_dest_rd_atomic.min(caps.max_rd_atomic);
        self
    }
}

fn within(field: &str, value: u64, min: u64, max: u64) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let detail = format!("IbvConfig::{field} is {value}; this device takes {min} to {max}");
    Err(Error::new(ErrorKind::InvalidConfig, "create_qp", detail))
}

/// 64 bits that differ from call to call: enough for a first sequence number, not for a secret.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Caps {
        Caps {
            max_send_wr: 1024,
            max_recv_wr: 512,
            max_send_sge: 4,
            max_recv_sge: 2,
            max_inline: 64,
            max_rd_atomic: 8,
            ..Caps::default()
        }
    }

    #[test]
    fn the_default_is_valid_on_the_smallest_device() {
        let smallest = Caps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, ..Caps::default() };
        IbvConfig::default().validate(&smallest).unwrap();
    }

    /// Sets one field to a value; the value is too large by one.
    type Break = (&'static str, fn(&mut IbvConfig));

    #[test]
    fn each_field_out_of_range_is_named_with_its_value() {
        let cases: [Break; 13] = [
            ("port_num is 0", |c| c.port_num = 0),
            ("max_send_wr is 0", |c| c.max_send_wr = 0),
            ("max_send_wr is 1025; this device takes 1 to 1024", |c| c.max_send_wr = 1025),
            ("max_recv_wr is 513", |c| c.max_recv_wr = 513),
            ("max_send_sge is 5", |c| c.max_send_sge = 5),
            ("max_recv_sge is 3", |c| c.max_recv_sge = 3),
            ("max_inline is 65", |c| c.max_inline = 65),
            ("retry_cnt is 8", |c| c.retry_cnt = 8),
            ("rnr_retry is 8", |c| c.rnr_retry = 8),
            ("timeout is 32", |c| c.timeout = 32),
            ("min_rnr_timer is 32", |c| c.min_rnr_timer = 32),
            ("psn is 16777216", |c| c.psn = Some(1 << 24)),
            ("service_level is 16", |c| c.service_level = 16),
        ];
        for (text, damage) in cases {
            let mut config = IbvConfig::default();
            damage(&mut config);
            let e = config.validate(&caps()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidConfig);
            assert!(e.to_string().contains(text), "{e} does not say {text}");
        }
        let e = IbvConfig { flow_label: 1 << 20, ..IbvConfig::default() }.validate(&caps()).unwrap_err();
        assert!(e.to_string().contains("flow_label is 1048576"));
        let e = IbvConfig { flight_recorder: 65537, ..IbvConfig::default() }.validate(&caps()).unwrap_err();
        assert!(e.to_string().contains("flight_recorder is 65537"));
    }

    #[test]
    fn ranges_are_cut_on_the_stack_so_there_is_a_limit_whatever_the_device_takes() {
        let caps = Caps { max_send_sge: 100, ..caps() };
        IbvConfig { max_send_sge: 32, ..IbvConfig::default() }.validate(&caps).unwrap();
        let e = IbvConfig { max_send_sge: 33, ..IbvConfig::default() }.validate(&caps).unwrap_err();
        assert!(e.to_string().contains("max_send_sge is 33; this device takes 1 to 32"), "{e}");
    }

    #[test]
    fn what_chance_decides_is_in_range_and_differs() {
        let drawn: Vec<_> = (0..64).map(|_| IbvConfig::default().resolve(&caps())).collect();
        for c in &drawn {
            c.validate(&caps()).unwrap();
            assert!(c.psn.is_some() && c.qkey.is_some_and(|k| k < 1 << 31));
        }
        assert!(drawn.iter().any(|c| c.psn != drawn[0].psn));
        assert!(drawn.iter().any(|c| c.qkey != drawn[0].qkey));
    }

    #[test]
    fn what_is_set_stays_and_reads_are_clamped_to_the_device() {
        let set = IbvConfig { psn: Some(7), qkey: Some(9), max_rd_atomic: 200, ..IbvConfig::default() };
        let c = set.resolve(&caps());
        assert_eq!((c.psn, c.qkey, c.max_rd_atomic, c.max_dest_rd_atomic), (Some(7), Some(9), 8, 8));
    }
}
