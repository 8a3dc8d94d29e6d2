//! What a queue pair's own end looks like to a peer: port, LID, GID. One discovery for connections and
//! datagrams; what two ends agree on is `crate::endpoint`'s.

use crate::{
    config::IbvConfig,
    endpoint::{IbvQpInfo, Transport},
    error::{Error, ErrorKind},
    gid::GidType,
    verbs::{
        device::{Port, mtu_of},
        gid::RankedGid,
        handles::Context,
        limits,
        rc::PathFacts,
    },
};

/// `IBV_QPF_GRH_REQUIRED` of `ibv_port_attr::flags` (libibverbs/verbs.h).
const GRH_REQUIRED: u8 = 1;

/// A queue pair's port and the GID it chose, as found when it was created.
#[derive(Clone, Debug)]
pub struct LocalEndpoint {
    port: Port,
    gid: Option<RankedGid>,
}

impl LocalEndpoint {
    /// Looks at the port that `config` names and chooses a GID by it.
    ///
    /// # Errors
    /// `InvalidConfig` for a port or GID that is not there, before any queue pair is made; else the
    /// device's.
    pub fn discover(context: &Context, config: &IbvConfig) -> Result<Self, Error> {
        let port = Port::query(context, config.port_num)?;
        let at = |e: Error| e.context(format!("{} port {}", context.name(), port.num));
        let gid = port.gids.choose(config.gid, port.link_layer()).map_err(at)?;
        if config.pkey_index >= port.attr.pkey_tbl_len && port.attr.pkey_tbl_len > 0 {
            let detail = format!(
                "IbvConfig::pkey_index is {}, and {} port {} has a table of {}",
                config.pkey_index,
                context.name(),
                port.num,
                port.attr.pkey_tbl_len
            );
            return Err(Error::new(ErrorKind::InvalidConfig, "query_pkey", detail));
        }
        Ok(Self { port, gid })
    }

    /// The port, as it was then.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The GID that was chosen, and why.
    pub fn gid(&self) -> Option<&RankedGid> {
        self.gid.as_ref()
    }

    /// What to tell a peer.
    pub fn info(&self, transport: Transport, qp_num: u32, config: &IbvConfig) -> IbvQpInfo {
        let mut info = IbvQpInfo::new(transport, qp_num);
        info.link_layer = self.port.link_layer();
        info.lid = self.port.attr.lid;
        info.gid = self.gid.as_ref().map(|g| g.entry.gid);
        info.gid_type = self.gid.as_ref().map_or(GidType::None, |g| g.entry.gid_type);
        info.psn = config.psn.unwrap_or(0);
        info.mtu = limits::path_mtu(config.path_mtu, mtu_of(self.port.attr.active_mtu));
        info.max_rd_atomic = config.max_rd_atomic;
        info.max_dest_rd_atomic = config.max_dest_rd_atomic;
        if transport == Transport::SRD {
            info.qkey = config.qkey.unwrap_or(0);
        }
        info
    }

    /// The facts about this end that connecting needs, as they are now. The peer was told the GID's
    /// bytes, so they decide: if the table has moved them, the new index counts.
    ///
    /// # Errors
    /// `InvalidState` where the GID has gone; else the device's.
    pub fn facts(&self, context: &Context) -> Result<PathFacts, Error> {
        let now = Port::query(context, self.port.num)?;
        let at = |e: Error| e.context(format!("{} port {}", context.name(), now.num));
        let gid = match &self.gid {
            Some(chosen) => Some((chosen.entry.gid, now.gids.relocate(&chosen.entry).map_err(at)?)),
            None => None,
        };
        let attr = &context.attr().orig_attr;
        Ok(PathFacts {
            link_layer: now.link_layer(),
            active_mtu: mtu_of(now.attr.active_mtu),
            active: now.is_active(),
            gid,
            grh_required: now.attr.flags & GRH_REQUIRED != 0,
            ports: context.ports(),
            pkeys: now.attr.pkey_tbl_len,
            gids: now.gids.len,
            max_dest_rd_atomic: u32::try_from(attr.max_qp_rd_atom).unwrap_or(0),
            max_rd_atomic: u32::try_from(attr.max_qp_init_rd_atom).unwrap_or(0),
        })
    }
}
