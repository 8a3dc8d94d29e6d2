//! Capabilities that are claimed and absent, or denied and there.

use ibv_core::{IbvQueuePair, Op, Payload, PostError, Support};

super::list! {
    /// Claims atomics and refuses them.
    atomics_claimed {
        enqueue: |qp, wr| match wr.op {
            Op::FetchAdd(_) | Op::CompareSwap { .. } => Err(PostError::Unsupported),
            _ => qp.inner.enqueue(wr),
        }
    }
    /// Claims the fence and refuses it.
    fence_claimed {
        enqueue: |qp, wr| {
            if wr.fence { Err(PostError::Unsupported) } else { qp.inner.enqueue(wr) }
        }
    }
    /// Claims more inline bytes than it takes.
    inline_claimed {
        caps: |_, caps| caps.max_inline += 64,
        enqueue: |qp, wr| match wr.local {
            Payload::Inline(data) if data.len() > 64 => Err(PostError::InlineTooLong),
            _ => qp.inner.enqueue(wr),
        }
    }
    /// Claims more ranges than it takes.
    ranges_claimed {
        enqueue: |qp, wr| match wr.local {
            Payload::Sges([_, _, ..]) => Err(PostError::TooManySge),
            _ => qp.inner.enqueue(wr),
        }
    }
    /// Denies the events it reports.
    events_denied { caps: |_, caps| caps.events = Support::Absent }
    /// Claims something else every time it is asked.
    caps_vary {
        caps: |w, caps| {
            caps.max_inline += (w.tick() % 2) as u32;
        }
    }
    /// Splits by another size than it says.
    max_msg_size_lies { max_msg_size: |len| len / 2 }
    /// Claims ordered completions on a device that shuffles them.
    completions_in_order_claimed {
        shuffled: true,
        caps: |_, caps| {
            caps.completions_in_order = true;
        }
    }
    /// Claims ordered messages on a device that shuffles them.
    messages_in_order_claimed {
        shuffled: true,
        caps: |_, caps| {
            caps.messages_in_order = true;
        }
    }
    /// Claims ordered bytes on a device that shuffles them.
    bytes_in_order_claimed {
        shuffled: true,
        caps: |_, caps| {
            caps.bytes_in_order = true;
        }
    }
}
