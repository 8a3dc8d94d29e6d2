//! Bytes from a peer are an endpoint whose fields are in range, or a typed error; and what was read is
//! what would be written.
#![no_main]

use ibv_core::{IbvQpInfo, Transport, negotiate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match IbvQpInfo::from_bytes(bytes) {
        Ok(info) => {
            assert!(info.qp_num < 1 << 24 && info.psn < 1 << 24);
            assert_eq!(IbvQpInfo::from_bytes(&info.to_bytes()), Ok(info));
            let own = IbvQpInfo::new(Transport::RC, 1);
            assert_eq!(negotiate(&own, &info).is_ok(), negotiate(&info, &own).is_ok());
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
});
