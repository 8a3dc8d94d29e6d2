//! What the help of each command ends with: what its output means, examples and exit codes.

use super::{decode, perf};
use crate::Failure;

/// Every exit code, which all commands share.
pub(super) fn exit_codes() -> String {
    let lines = Failure::CODES.map(|(code, meaning)| format!("  {code:>3}  {meaning}"));
    format!("Exit codes:\n{}", lines.join("\n"))
}

const COMMANDS: &str = "\
Examples:
  ibv devices                              what there is
  ibv doctor                               what is wrong with it
  ibv transfer FILE                        a file there and back; no hardware needed
  ibv perf write bw -a --loopback          bandwidth of every size
  ibv COMMAND --help                       more of each
";

const DEVICES: &str = "\
A device that is listed as not claimed is some other provider's, or has something that this one needs missing;
the reason follows. With --topology and --near distances are those of `nvidia-smi topo -m`.

Examples:
  ibv devices                              providers, ports, addresses and capabilities
  ibv devices --json | jq '.providers[].devices[].name'
  ibv devices --near gpu:0                 which one to use for the first GPU; numa:1, 0000:18:00.0
  ibv devices --topology                   every device against every GPU
  ibv devices --topology --root copy       of another machine, whose /sys was copied to copy/sys
";

const DOCTOR: &str = "\
Reads what the kernel and the libraries say, opens every device, and changes nothing. Each finding says what
was found, what is wanted and what to do; an error keeps every device from being used, a warning does not.

Examples:
  ibv doctor                               this machine
  ibv doctor --snapshot facts.json         and its facts, for somebody else
  ibv doctor --from facts.json             somebody else's machine
  ibv doctor --json | jq -r '.findings[].action'
";

const TRANSFER: &str = "\
The bytes go by put and get alone; checksums are compared at the peer and again after the bytes came back.
A received file appears whole under its name or not at all.

Examples:
  ibv transfer FILE                        both ends here, over the mock: no hardware needed
  ibv transfer FILE --provider verbs       both ends here, over a device
  ibv transfer copy.bin --listen 0.0.0.0:7000
                                           receive one file
  ibv transfer FILE --to server.example:7000 --chunk 4M --json
";

fn with_codes(text: &str) -> String {
    format!("{text}\n{}", exit_codes())
}

pub(super) fn commands() -> String {
    with_codes(COMMANDS)
}

pub(super) fn devices() -> String {
    with_codes(DEVICES)
}

pub(super) fn doctor() -> String {
    with_codes(DOCTOR)
}

pub(super) fn transfer() -> String {
    with_codes(TRANSFER)
}

pub(super) fn perf() -> String {
    with_codes(perf::EXAMPLES)
}

pub(super) fn decode() -> String {
    with_codes(decode::EXAMPLES)
}
