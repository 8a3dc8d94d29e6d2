//! States, endpoints, connecting and going away.

use ibv_core::{IbvConfig, IbvQueuePair, Mtu, QpState};

super::list! {
    /// Lets a connected queue pair connect again.
    second_connect_accepted {
        connect: |qp, info| {
            if qp.peer.is_some() { Ok(()) } else { qp.inner.connect(info) }
        }
    }
    /// Connects to a peer of another transport.
    transport_ignored {
        connect: |qp, info| {
            let mut info = *info;
            info.transport = qp.inner.get_qp_info()?.transport;
            qp.inner.connect(&info)
        }
    }
    /// Keeps its own MTU whatever the peer's.
    mtu_not_negotiated {
        connect: |qp, info| {
            let mut info = *info;
            info.mtu = Mtu::B4096;
            qp.inner.connect(&info)
        }
    }
    /// Answers with the state it saw first.
    state_cached {
        state: |qp, state| {
            if state == QpState::RESET { state } else { *qp.seen.get_or_insert(state) }
        }
    }
    /// Says RTS where the device says ERR.
    error_state_hidden {
        state: |_, state| {
            if state == QpState::ERR { QpState::RTS } else { state }
        }
    }
    /// Says RTS before it is connected.
    ready_before_connect {
        state: |_, state| {
            if state == QpState::ERR { state } else { QpState::RTS }
        }
    }
    /// Gives every queue pair the same first sequence number.
    psn_constant { config: |config| config.psn = Some(1) }
    /// Answers with another endpoint every time.
    endpoint_unstable {
        info: |qp, mut info| {
            info.psn = (info.psn + qp.ask()) & 0xff_ffff;
            info
        }
    }
    /// Gives its peer a wrong queue pair number.
    qp_num_of_nobody {
        info: |_, mut info| {
            info.qp_num ^= 0x80_0000;
            info
        }
    }
    /// Reads back defaults whatever was set.
    attributes_are_the_defaults {
        attributes: |mut attributes| {
            attributes.config = IbvConfig::default();
            attributes
        }
    }
    /// Stays connected when told to fail.
    closing_ignored { enter_error: |_| Ok(()) }
    /// Leaks a queue pair that is dropped.
    dropped_queue_pair_leaked { outlives_drop: true }
}
