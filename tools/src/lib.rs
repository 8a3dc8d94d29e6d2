//! The `ibv` command line as a library: [`run`] takes arguments and a list of providers, so that
//! somebody with a provider of their own gets the same commands from a three-line `main`. What moves the
//! bytes is [`transfer`]; nothing here is needed by another crate of the project.
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     ibv_tools::run(std::env::args_os(), &|| ibv::registry() /* .with(Mine) */)
//! }
//! ```
#![forbid(unsafe_code)]

// The standard library's panics where standard error can not be written to.
macro_rules! eprintln {
    ($($what:tt)*) => {{
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr().lock(),
            format_args!("{}\n", format_args!($($what)*)),
        );
    }};
}

mod cli;
mod conformance;
mod decode;
mod devices;
mod doctor;
mod failure;
mod file;
mod listen;
mod memory;
pub mod perf;
mod topology;
pub mod transfer;
mod wire;

pub use cli::run;
pub use failure::Failure;
