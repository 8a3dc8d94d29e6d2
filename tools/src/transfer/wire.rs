//! What the two ends of a transfer tell each other; the frames are `crate::wire`'s. Endpoints travel inside
//! in their own versioned form.

use crate::{
    file::Sha256,
    wire::{Aside, Protocol},
};
use serde::{Deserialize, Serialize};

/// One message. The order of a transfer is: both `Hello`, `Offer` →, ← `Grant`, puts, `Placed` →,
/// ← `Verdict`, gets, `Returned` →, ← `Stored`; `Alive` and `Abort` at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Who speaks: an endpoint's byte form.
    Hello { endpoint: Vec<u8> },
    /// What will be put.
    Offer { bytes: u64, sha256: Sha256 },
    /// Where to put it.
    Grant { addr: u64, len: u64, rkey: u32 },
    /// Every put has completed; with `notified`, a receive completes behind them.
    Placed { notified: bool },
    /// What arrived.
    Verdict { sha256: Sha256 },
    /// It came back unchanged.
    Returned,
    /// The file has its name.
    Stored,
    /// Busy.
    Alive,
    /// The sender of this has given up.
    Abort { reason: String },
}

impl Protocol for Message {
    const MAGIC: [u8; 4] = *b"ibvT";
    const VERSION: u8 = 1;
    const COMMAND: &'static str = "ibv transfer";
    fn alive() -> Self {
        Self::Alive
    }
    fn abort(reason: String) -> Self {
        Self::Abort { reason }
    }
    fn aside(self) -> Aside<Self> {
        match self {
            Self::Alive => Aside::Alive,
            Self::Abort { reason } => Aside::Abort(reason),
            message => Aside::None(message),
        }
    }
    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Offer { .. } => "offer",
            Self::Grant { .. } => "grant",
            Self::Placed { .. } => "placed",
            Self::Verdict { .. } => "verdict",
            Self::Returned => "returned",
            Self::Stored => "stored",
            Self::Alive => "alive",
            Self::Abort { .. } => "abort",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, wire::Channel};
    use proptest::prelude::*;
    use std::{io::Write, os::unix::net::UnixStream, thread, time::Duration};

    fn pair() -> (Channel<UnixStream, Message>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Channel::new(here, Duration::from_millis(200)), there)
    }

    fn answer_to(bytes: &[u8]) -> Result<Message, Failure> {
        let (mut channel, mut peer) = pair();
        peer.write_all(bytes).unwrap();
        drop(peer);
        channel.receive("waited")
    }

    #[test]
    fn messages_arrive_as_sent_and_signs_of_life_are_passed_over() {
        let (mut channel, peer) = pair();
        let mut peer: Channel<_, Message> = Channel::new(peer, Duration::from_millis(200));
        let offer = Message::Offer { bytes: 7, sha256: Sha256([9; 32]) };
        channel.send(&Message::Alive).unwrap();
        channel.send(&offer).unwrap();
        assert_eq!(peer.receive("waited").unwrap(), offer);
    }

    #[test]
    fn a_stranger_is_told_from_a_newer_release_and_from_a_broken_peer() {
        assert_eq!(answer_to(b"GET / HTTP/1.1\r\n").unwrap_err().code(), 21);
        assert_eq!(answer_to(b"ib").unwrap_err().code(), 23);
        let e = answer_to(b"ibvT\x02").unwrap_err();
        assert!(matches!(e, Failure::PeerVersion { theirs: 2, ours: 1, .. }), "{e}");
        assert_eq!(answer_to(b"ibvT\x01\0\0\0\0\0\x10\x01").unwrap_err().code(), 21);
        assert_eq!(answer_to(b"ibvT\x01\0\0\0\0\0\0\x02\x06\x06").unwrap_err().code(), 21);
    }

    #[test]
    fn a_stranger_is_recognised_before_a_whole_header_came() {
        let (mut channel, mut peer) = pair();
        peer.write_all(b"hi").unwrap();
        assert_eq!(channel.receive("waited").unwrap_err().code(), 21);
    }

    #[test]
    fn a_silent_peer_costs_no_more_than_the_limit() {
        let (mut channel, _peer) = pair();
        let e = channel.receive("waited for its hello").unwrap_err();
        assert!(matches!(e, Failure::Silent { during: "waited for its hello", .. }), "{e}");
    }

    #[test]
    fn a_trickling_peer_costs_no_more_than_the_limit_either() {
        let (mut channel, mut peer) = pair();
        let trickle = thread::spawn(move || {
            let bytes = [b"ibvT\x01\0\0\0\0\0\x0f\0".as_slice(), &[0; 64]].concat();
            bytes.iter().all(|byte| {
                thread::sleep(Duration::from_millis(20));
                peer.write_all(&[*byte]).is_ok()
            })
        });
        assert_eq!(channel.receive("waited").unwrap_err().code(), 24);
        drop(channel);
        assert!(!trickle.join().unwrap(), "the reader read all of it");
    }

    #[test]
    fn a_reason_reaches_the_peer_without_its_control_characters() {
        let (mut channel, peer) = pair();
        let mut peer: Channel<_, Message> = Channel::new(peer, Duration::from_millis(200));
        channel.abort(&Failure::Garbage("a\x1b[2Jé".repeat(2000)));
        match peer.receive("waited").unwrap_err() {
            Failure::PeerFailed(reason) => assert!(!reason.contains('\x1b') && reason.contains('é')),
            e => panic!("{e}"),
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_message_or_a_failure(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let framed = [b"ibvT\x01\0\0\0".as_slice(), &(bytes.len() as u32).to_be_bytes(), &bytes].concat();
            if let Ok(message) = answer_to(&framed) {
                // Numbers have longer forms than the one written here.
                prop_assert!(postcard::to_stdvec(&message).unwrap().len() <= bytes.len());
            }
            let _ = answer_to(&bytes).unwrap_err();
        }
    }
}
