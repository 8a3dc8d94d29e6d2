//! Fixtures that come with the suite. Hardware providers bring their own, in their own crates.

pub mod mock;
