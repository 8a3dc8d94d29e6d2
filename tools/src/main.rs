//! The `ibv` command with the providers that this build has. Everything else is in the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ibv_tools::run(std::env::args_os(), &ibv::registry)
}
