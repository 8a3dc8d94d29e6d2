//! The facts about a machine that `ibv doctor` judges, and their file form. Neither how they are found nor
//! what they mean.
//!
//! A file may be anybody's: its size is limited, its version checked, and characters that would steer a
//! terminal become visible escapes.

use crate::{Failure, file::Whole};
use ibv::{DeviceKind, Gid, GidType, LinkLayer, PortState};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The version of the file form that this release reads and writes.
pub(crate) const VERSION: u32 = 1;
/// Bytes in a file at most; a host with 16 adapters of 256 GIDs each takes less than a quarter.
const LARGEST: u64 = 4 << 20;

/// Everything that is known of a machine. Absent facts are `None` or empty: they could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) version: u32,
    /// The release that looked.
    pub(crate) ibv: String,
    pub(crate) kernel: Kernel,
    pub(crate) libraries: Vec<Library>,
    /// Files of those libraries in the process that looked.
    pub(crate) mapped: Vec<String>,
    /// Of `/dev/infiniband`.
    pub(crate) nodes: Vec<Node>,
    pub(crate) user: User,
    pub(crate) hugepages: Vec<Hugepages>,
    /// Those that are set and change libmlx5's rings.
    pub(crate) ring_variables: Vec<Variable>,
    /// RDMA adapters on the PCI bus, with or without a driver.
    pub(crate) adapters: Vec<Adapter>,
    /// Those that belong to RDMA devices.
    pub(crate) netdevs: Vec<Netdev>,
    pub(crate) providers: Vec<Look>,
    pub(crate) devices: Vec<Device>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kernel {
    pub(crate) release: Option<String>,
    pub(crate) arch: String,
    pub(crate) modules: Vec<Module>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) state: ModuleState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModuleState {
    /// Loaded, or built into the kernel.
    Loaded,
    /// Installed for this kernel and not loaded.
    Available,
    /// Not among this kernel's modules.
    Absent,
    /// Not loaded; which modules this kernel has can not be read, as in most containers.
    NotLoaded,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Library {
    /// `libibverbs.so.1`.
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) state: LibraryState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum LibraryState {
    Loaded {
        path: String,
        /// Behind its symbolic links.
        file: String,
        /// rdma-core ends it with its own version.
        file_version: Option<String>,
        /// Known functions that it lacks.
        absent: Vec<String>,
    },
    NotFound {
        /// The environment variable that would name the file.
        variable: String,
        tried: Vec<Attempt>,
    },
    /// libibverbs uses another copy, and two copies do not know each other's devices.
    TwoCopies {
        variable: String,
        loaded: String,
        plugin: String,
    },
    Unusable {
        error: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) file: String,
    pub(crate) answer: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) path: String,
    /// Permission bits in octal.
    pub(crate) mode: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The RDMA device behind it.
    pub(crate) device: Option<String>,
    pub(crate) open: Opening,
}

/// What happened when the node was opened to read and write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Opening {
    Opened,
    /// With the operating system's reason.
    Refused(String),
    /// Opening it would change something, or it is nothing that verbs need.
    NotTried,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) uid: Option<u32>,
    pub(crate) groups: Vec<u32>,
    /// CAP_IPC_LOCK, which lifts the limit on locked memory.
    pub(crate) ipc_lock: Option<bool>,
    pub(crate) memlock: Option<Memlock>,
}

/// RLIMIT_MEMLOCK in bytes; null is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memlock {
    pub(crate) soft: Option<u64>,
    pub(crate) hard: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hugepages {
    pub(crate) size_kib: u64,
    pub(crate) total: u64,
    pub(crate) free: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) effect: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Adapter {
    /// `0000:3b:00.0`.
    pub(crate) address: String,
    pub(crate) vendor: String,
    pub(crate) device: String,
    pub(crate) driver: Option<String>,
    /// The RDMA devices that its driver made.
    pub(crate) rdma: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Netdev {
    pub(crate) name: String,
    /// Bytes in a frame's payload.
    pub(crate) mtu: Option<u32>,
    /// `up`, `down`, `unknown`.
    pub(crate) operstate: Option<String>,
}

/// Whether a provider could list devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Look {
    pub(crate) provider: String,
    pub(crate) error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) kind: DeviceKind,
    pub(crate) driver: Option<String>,
    pub(crate) fw_ver: String,
    /// Whether the kernel lists it in sysfs.
    pub(crate) in_sysfs: bool,
    pub(crate) netdevs: Vec<String>,
    pub(crate) ports: Vec<Port>,
    /// What each provider that sees it says.
    pub(crate) claims: Vec<Claim>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) provider: String,
    pub(crate) claimed: bool,
    pub(crate) reason: String,
    /// Why it did not open, where it was claimed.
    pub(crate) open_error: Option<String>,
    /// Operations that it lacks, where it opened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) absent: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) port: u8,
    pub(crate) state: State,
    pub(crate) link_layer: LinkLayer,
    /// Bytes; only an open device tells.
    pub(crate) active_mtu: Option<u32>,
    pub(crate) lid: u16,
    pub(crate) gids: Vec<GidRow>,
}

/// A port's state in the field's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Down,
    Init,
    Armed,
    Active,
    Unknown,
}

impl From<PortState> for State {
    fn from(state: PortState) -> Self {
        match state {
            PortState::DOWN => Self::Down,
            PortState::INIT => Self::Init,
            PortState::ARMED => Self::Armed,
            PortState::ACTIVE => Self::Active,
            _ => Self::Unknown,
        }
    }
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Init => "init",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GidRow {
    pub(crate) index: u32,
    #[serde(with = "gid_text")]
    pub(crate) gid: Gid,
    #[serde(rename = "type")]
    pub(crate) gid_type: GidType,
    pub(crate) netdev: Option<String>,
}

/// A GID as sysfs prints it.
mod gid_text {
    use super::Gid;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::net::Ipv6Addr;

    pub(super) fn serialize<S: Serializer>(gid: &Gid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(gid)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Gid, D::Error> {
        let text = String::deserialize(from)?;
        text.parse::<Ipv6Addr>().map(Gid::from).map_err(|e| D::Error::custom(format!("gid {text}: {e}")))
    }
}

impl Snapshot {
    pub(crate) fn module(&self, name: &str) -> Option<ModuleState> {
        self.kernel.modules.iter().find(|m| m.name == name).map(|m| m.state)
    }

    pub(crate) fn library(&self, prefix: &str) -> Option<&Library> {
        self.libraries.iter().find(|l| l.name.starts_with(prefix))
    }

    pub(crate) fn netdev(&self, name: &str) -> Option<&Netdev> {
        self.netdevs.iter().find(|n| n.name == name)
    }

    /// Whether libibverbs has `ibv_reg_dmabuf_mr`; `None` where it was not loaded.
    pub(crate) fn dmabuf_function(&self) -> Option<bool> {
        match &self.library("libibverbs")?.state {
            LibraryState::Loaded { absent, .. } => Some(!absent.iter().any(|f| f == "ibv_reg_dmabuf_mr")),
            _ => None,
        }
    }

    /// Devices that are no mock: what the host has, in hardware or software.
    pub(crate) fn real_devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|d| d.kind != DeviceKind::Mock)
    }

    /// Reads a file that `write` wrote, anywhere.
    ///
    /// # Errors
    /// `Missing`, `Unreadable`, `NotASnapshot`, and `SnapshotVersion` where another release wrote it.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Failure::Missing(path.into()),
            _ => Failure::Unreadable { path: path.into(), source },
        };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::parse(&bytes).map_err(|e| e.at(path))
    }

    /// Writes what `read` reads.
    ///
    /// # Errors
    /// `SnapshotUnwritable`.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let unwritable = |source| Failure::SnapshotUnwritable { path: path.into(), source };
        let mut text = serde_json::to_vec_pretty(self).map_err(|e| unwritable(e.into()))?;
        text.push(b'\n');
        Whole::create(path).and_then(|whole| whole.write(&text)).map_err(unwritable)
    }

    fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() as u64 > LARGEST {
            return Err(ParseError::Form(format!("is larger than {LARGEST} bytes")));
        }
        let mut data: Value = serde_json::from_slice(bytes)?;
        match data.get("version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => return Err(ParseError::Version(version)),
            None => return Err(ParseError::Form("has no version number".into())),
        }
        make_visible(&mut data);
        Ok(serde_json::from_value(data)?)
    }
}

enum ParseError {
    Form(String),
    Version(u64),
}

impl From<serde_json::Error> for ParseError {
    fn from(e: serde_json::Error) -> Self {
        let mut text = Value::String(e.to_string());
        make_visible(&mut text);
        Self::Form(text.as_str().unwrap_or_default().into())
    }
}

impl ParseError {
    fn at(self, path: &Path) -> Failure {
        let path = path.into();
        match self {
            Self::Form(why) => Failure::NotASnapshot { path, why },
            Self::Version(theirs) => Failure::SnapshotVersion { path, theirs, ours: VERSION },
        }
    }
}

/// Escapes every character of every text that moves a cursor, changes colours or reorders a line.
fn make_visible(data: &mut Value) {
    match data {
        Value::String(text) if text.contains(steers) => {
            let shown = |c: char| if steers(c) { c.escape_unicode().to_string() } else { c.to_string() };
            *text = text.chars().map(shown).collect();
        }
        Value::Array(list) => list.iter_mut().for_each(make_visible),
        Value::Object(map) => map.values_mut().for_each(make_visible),
        _ => {}
    }
}

/// Control characters, and Unicode's invisible and bidirectional format characters.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEALTHY: &[u8] = include_bytes!("../../tests/snapshots/healthy.json");

    #[test]
    fn what_is_written_is_what_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("facts.json");
        let facts = Snapshot::parse(HEALTHY).ok().unwrap();
        facts.write(&path).unwrap();
        assert_eq!(Snapshot::read(&path).unwrap(), facts);
    }

    #[test]
    fn a_text_can_not_steer_the_terminal() {
        let text = String::from_utf8(HEALTHY.into()).unwrap().replace("ens1f0", "a\\u001b[2J\\u202eb");
        let facts = Snapshot::parse(text.as_bytes()).ok().unwrap();
        assert_eq!(facts.netdevs[0].name, "a\\u{1b}[2J\\u{202e}b");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_damaged_file_is_refused_or_read_and_nothing_else(at in 0..HEALTHY.len(), byte: u8, cut in 0..HEALTHY.len()) {
            let mut bytes = HEALTHY.to_vec();
            bytes[at] = byte;
            if let Ok(facts) = Snapshot::parse(&bytes) {
                super::super::diagnose::diagnose(&facts);
            }
            prop_assert!(Snapshot::parse(&HEALTHY[..cut]).is_err() || HEALTHY[cut..].trim_ascii().is_empty());
        }
    }
}
