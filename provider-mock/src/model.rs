//! The transport's rule-book: what a reliable connection grants, refuses, retries, orders and reports.
//! Pure functions of plain values; no bytes, no memory, no clock, no queue. The fabric here and software
//! devices elsewhere share it.
//!
//! Rules cite the InfiniBand Architecture Specification, volume 1, by section.

mod access;
mod order;
mod packet;
mod receive;
mod retry;
mod state;

pub use access::{Denied, Range, Region, Want, check, denied_status, key, key_index, next_tag};
pub use order::{Start, flushes, reports, send_opcode, start, update};
pub use packet::{Packets, packets};
pub use receive::{Refused, accept, consumes_receive, recv_opcode};
pub use retry::{Retry, ack_timeout, on_no_answer, on_not_ready, rnr_timer};
pub use state::{may_change, takes_receives, takes_sends, works};
