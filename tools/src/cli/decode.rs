//! `ibv decode`: arguments and output. What dumps and traces say is module `decode`'s.

use super::output;
use crate::{
    Failure,
    decode::{self, Device, Entry, Format, Kind},
};
use clap::Args;
use std::path::PathBuf;

/// What help ends with.
pub(super) const EXAMPLES: &str = "\
Every field is printed with its place, its bytes, the name that the vendor's header gives it and what it says;
what is wrong with an entry follows it, and the exit code is 6. Entries are printed as they are read.

A dump is what xxd, hexdump -C, od -tx1 or a debugger (x/64xb) prints, plain hexadecimal in the order of memory, or
the bytes themselves. A trace that software devices wrote (cargo xtask softnic --trace FILE) is recognised by itself; a line that can not be read,
such as the last of a process that was killed, is named in its place, and the exit code is then 55.

Examples:
  xxd -p wqe.bin | ibv decode              send entries
  ibv decode --kind ring sq.hex            a send queue, with gaps and where it goes on
  ibv decode --kind cqe --slot 128 cq.bin  completions in slots of 128 bytes
  ibv decode --kind receive --slot 32 rq.bin
  ibv decode --device efa --kind cqe --slot 32 cq.bin
  ibv decode trace.jsonl                   what a program did to a device
";

#[derive(Debug, Args)]
pub(super) struct DecodeArgs {
    /// The dump or the trace [default: standard input]
    file: Option<PathBuf>,
    /// What a dump is of
    #[arg(long, value_enum, default_value = "wqe")]
    kind: Kind,
    /// Whose formats; a trace says it itself
    #[arg(long, value_enum, default_value = "mlx5")]
    device: Device,
    /// Bytes of a slot [default: completions mlx5 64, efa 16; receives mlx5 all, efa 16; requests efa 64]
    #[arg(long, value_name = "BYTES", value_parser = slot)]
    slot: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn slot(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if (16..=65536).contains(&bytes) && bytes % 16 == 0 => Ok(bytes),
        _ => Err(format!("{text} is no multiple of 16 between 16 and 65536")),
    }
}

/// Runs the command.
pub(super) fn run(args: &DecodeArgs) -> Result<(), Failure> {
    let format = Format { device: args.device, kind: args.kind, slot: args.slot };
    let file = args.file.as_deref();
    if !args.json {
        return decode::run(file, format, &mut |entry| output::write(&entry.text));
    }
    let mut object = Object { begun: false };
    match decode::run(file, format, &mut |entry| object.entry(entry)) {
        Err(Failure::NobodyReads) => Err(Failure::NobodyReads),
        ended => object.end().and(ended),
    }
}

/// One JSON object, `{"entries": [...]}`, that is printed entry by entry.
struct Object {
    begun: bool,
}

impl Object {
    fn entry(&mut self, entry: &Entry) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(entry).map_err(|e| Failure::output(e.into()))?;
        let before = if self.begun { "," } else { "{\n  \"entries\": [" };
        self.begun = true;
        output::write(&format!("{before}\n    {}", text.replace('\n', "\n    ")))
    }

    /// Where there was no entry there is no object either.
    fn end(&self) -> Result<(), Failure> {
        if self.begun { output::write("\n  ]\n}\n") } else { Ok(()) }
    }
}
