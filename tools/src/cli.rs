//! Arguments, output and exit codes. What a command does is in the module of its name.

use crate::{
    Failure, conformance, devices, doctor, listen, topology,
    transfer::{self, Settings, Watch},
};
use choice::{Chosen, one_end};
use clap::{Arg, ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use ibv::{Registry, topology::Place};
use indicatif::{ProgressBar, ProgressStyle};
use output::show;
use std::{
    ffi::OsString,
    io,
    net::{TcpListener, TcpStream, ToSocketAddrs},
    num::IntErrorKind,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

mod choice;
mod decode;
mod help;
mod output;
mod perf;

/// RDMA put and get through whichever provider the host has.
#[derive(Debug, Parser)]
#[command(name = "ibv", version, after_long_help = help::commands())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every provider and its devices, or why it has none
    #[command(after_long_help = help::devices())]
    Devices(DevicesArgs),
    /// Say what keeps RDMA from working on this machine, or on one whose facts a file has, and what to do
    #[command(after_long_help = help::doctor())]
    Doctor(DoctorArgs),
    /// Put a file into a peer's registered memory, get it back, and compare checksums
    #[command(after_long_help = help::transfer(), args_override_self = true)]
    Transfer(TransferArgs),
    /// Measure bandwidth and latency of write, read and send, as perftest does
    #[command(after_long_help = help::perf())]
    Perf(perf::PerfArgs),
    /// Say in words what a dump of a queue, or a trace of software devices, holds, and what is wrong with it
    #[command(after_long_help = help::decode())]
    Decode(decode::DecodeArgs),
    /// Certify providers: run the conformance suite on them
    #[command(disable_help_flag = true)]
    Conformance {
        /// The providers efa and verbs split puts and gets into work requests of at most BYTES, so that cases
        /// about splitting run on devices that take longer ones; comes before the suite's arguments
        #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
        max_msg_size: Option<u32>,
        /// Arguments of the suite; see `ibv conformance --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        args: Vec<String>,
    },
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("distances").args(["near", "topology"])))]
struct DevicesArgs {
    /// List devices by their distance from PLACE instead, nearest first: gpu:N, numa:N or a PCI address
    #[arg(long, value_name = "PLACE")]
    near: Option<Place>,
    /// Print how far each device is from each GPU instead
    #[arg(long)]
    topology: bool,
    /// With --near or --topology: read the `sys` folder below DIR, such as a copy of another machine's
    #[arg(long, value_name = "DIR", default_value = "/", requires = "distances")]
    root: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// Also write the facts to FILE, for --from elsewhere; they name devices, addresses and paths of this host
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Judge the facts in FILE instead of this machine's
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot")]
    from: Option<PathBuf>,
    /// Print one JSON object: usable, findings, snapshot
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct TransferArgs {
    /// The file to send; with --listen, the file to write
    file: PathBuf,
    /// Run this end only, and wait at ADDR (host:port; 0.0.0.0 is every address, port 0 picks one) for the sender
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["to", "peer_device"], value_parser = address)]
    listen: Option<String>,
    /// Run this end only, and send to who listens at ADDR
    #[arg(long, value_name = "ADDR", conflicts_with = "peer_device", value_parser = address)]
    to: Option<String>,
    /// The provider; both ends here default to mock, one end to the first that has a device
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// This end's device [default: the provider's first]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The other end's device, where it is in this process [default: another of a mock, else the same]
    #[arg(long, value_name = "NAME")]
    peer_device: Option<String>,
    /// Bytes in one work request, at most the device's largest message; K, M, G and T are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = size, conflicts_with = "listen")]
    chunk: usize,
    /// Work requests in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "listen")]
    depth: u32,
    /// Work requests that one doorbell publishes, at most
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "listen")]
    batch: u32,
    /// With --listen, how long to wait for the sender; strangers that connect are passed over [default: for ever]
    #[arg(long, value_name = "SECONDS", requires = "listen", value_parser = perf::seconds)]
    wait: Option<Duration>,
    /// How long nothing at all may happen
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = perf::seconds)]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A remark that changes nothing.
fn note(what: String) {
    eprintln!("{what}");
}

fn address(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err(format!("{text} is not host:port, such as server.example:7000 or [::1]:7000")),
    }
}

fn size(text: &str) -> Result<usize, String> {
    let shift = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    let number = match digits.parse::<usize>() {
        Ok(number) => number.checked_mul(1 << shift),
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => None,
        Err(_) => return Err(format!("{text} is not a size such as 65536, 64K or 1M")),
    };
    match number {
        Some(0) => Err("no bytes never get anywhere".into()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("{text} is more than memory has addresses")),
    }
}

/// Runs the command line `args` with the providers that `registry` lists, prints, and says how it ended:
/// one of [`Failure::CODES`]. `registry` is asked anew whenever a command needs a list of its own.
pub fn run(args: impl IntoIterator<Item = OsString>, registry: &dyn Fn() -> Registry) -> ExitCode {
    let ended = match parse(args) {
        Ok(Command::Conformance { max_msg_size, args }) => return conformance::run(args, max_msg_size),
        Ok(Command::Devices(args)) => devices(&args, registry),
        Ok(Command::Doctor(args)) => doctor(&args, registry),
        Ok(Command::Transfer(args)) => transfer(&args, registry()),
        Ok(Command::Perf(args)) => perf::run(&args, registry()),
        Ok(Command::Decode(args)) => decode::run(&args),
        Err(said) => match output::answer(&said) {
            Ok(code) => return ExitCode::from(code),
            Err(failure) => Err(failure),
        },
    };
    let Err(failure) = ended else { return ExitCode::SUCCESS };
    if !matches!(failure, Failure::NobodyReads) {
        eprintln!("error: {failure}");
    }
    ExitCode::from(failure.code())
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    // A negative number is a wrong value of its option, and no option that nobody knows.
    let number = |arg: Arg| match arg.get_action().takes_values() && !arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    let command = Cli::command();
    let names: Vec<_> = command.get_subcommands().map(|each| each.get_name().to_owned()).collect();
    let apply = |command: clap::Command, name| command.mut_subcommand(name, |each| each.mut_args(number));
    let mut command = names.into_iter().fold(command, apply);
    let mut matches = command.try_get_matches_from_mut(args)?;
    let cli = Cli::from_arg_matches_mut(&mut matches).map_err(|e| e.format(&mut command))?;
    Ok(cli.command)
}

fn devices(args: &DevicesArgs, registry: &dyn Fn() -> Registry) -> Result<(), Failure> {
    if let Some(place) = args.near {
        return show(&topology::Ranking::of(&topology::read(&args.root)?, place)?, args.json);
    }
    if args.topology {
        return show(&topology::Matrix::of(topology::read(&args.root)?), args.json);
    }
    show(&devices::Listing::of(registry), args.json)
}

fn doctor(args: &DoctorArgs, registry: &dyn Fn() -> Registry) -> Result<(), Failure> {
    let report = match &args.from {
        Some(file) => doctor::Report::from_file(file)?,
        None => doctor::Report::of_this_machine(registry),
    };
    if let Some(file) = &args.snapshot {
        report.write_snapshot(file)?;
    }
    show(&report, args.json)?;
    report.verdict()
}

fn transfer(args: &TransferArgs, registry: Registry) -> Result<(), Failure> {
    let settings =
        Settings { chunk: args.chunk, depth: args.depth, batch: args.batch, timeout: args.timeout };
    let mut bar = Bar::default();
    let report = match (&args.listen, &args.to) {
        (Some(addr), _) => listen(args, registry, addr, &settings, &mut bar),
        (None, Some(addr)) => send_to(args, registry, addr, &settings, &mut bar),
        (None, None) => both_ends(args, registry, &settings, &mut bar),
    };
    drop(bar);
    show(&report?, args.json)
}

fn both_ends(
    args: &TransferArgs,
    registry: Registry,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<transfer::Report, Failure> {
    crate::file::Source::open(&args.file)?;
    let mock = args.device.is_none().then_some("mock");
    let chosen = Chosen::new(registry, args.provider.as_deref().or(mock), args.device.as_deref(), |_| true)?;
    let near = chosen.open(&chosen.device.name)?;
    let opposite = args.peer_device.clone().unwrap_or_else(|| chosen.opposite());
    let far = chosen.open(&opposite)?;
    let report = transfer::both_ends(&near, &far, &args.file, settings, watch)?;
    let peer_device = Some(far.device_info().name.clone());
    Ok(transfer::Report { provider: chosen.provider.into(), peer_device, ..report })
}

fn listen(
    args: &TransferArgs,
    registry: Registry,
    addr: &str,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<transfer::Report, Failure> {
    let (chosen, domain) = one_end(args.provider.as_deref(), args.device.as_deref(), registry)?;
    settings.check(&domain.device_info().name, &domain.caps())?;
    crate::file::Destination::create(&args.file)?;
    let unreachable = |source| Failure::Unreachable { addr: addr.into(), source };
    let listener = TcpListener::bind(addr).map_err(unreachable)?;
    eprintln!("listening on {}", listener.local_addr().map_err(unreachable)?);
    let link = listen::accept(&listener, transfer::MAGIC, args.wait, &mut note)?;
    let report = transfer::receive(&domain, link, Some(&args.file), settings, watch)?;
    Ok(transfer::Report { provider: chosen.into(), ..report })
}

fn send_to(
    args: &TransferArgs,
    registry: Registry,
    addr: &str,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<transfer::Report, Failure> {
    crate::file::Source::open(&args.file)?;
    let (chosen, domain) = one_end(args.provider.as_deref(), args.device.as_deref(), registry)?;
    settings.check(&domain.device_info().name, &domain.caps())?;
    let link = connect(addr, settings.timeout)
        .map_err(|source| Failure::Unreachable { addr: addr.into(), source })?;
    let report = transfer::send(&domain, link, &args.file, settings, watch)?;
    Ok(transfer::Report { provider: chosen.into(), ..report })
}

fn connect(addr: impl ToSocketAddrs, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address of that name");
    for addr in addr.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, timeout) {
            Ok(link) => return link.set_nodelay(true).map(|()| link),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The progress bar; it draws on standard error, and only where that is a terminal.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Watch for Bar {
    fn phase(&mut self, name: &'static str, bytes: u64) {
        self.clear();
        let shape = "{msg:8} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec}";
        let style = ProgressStyle::with_template(shape).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.0 = Some(ProgressBar::new(bytes).with_style(style).with_message(name));
    }
    fn done(&mut self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(bytes);
        }
    }
}

impl Bar {
    fn clear(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
