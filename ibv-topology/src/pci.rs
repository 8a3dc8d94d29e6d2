//! PCI functions as sysfs has them: address, the bridges above, NUMA node, link. Which of them matter is
//! `machine.rs`'s to say.

use std::{fmt, fs, path::Path, str::FromStr};

/// Where a function is: `0000:3b:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// 16 bits, and more behind a volume management device.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// 0 to 31.
    pub device: u8,
    /// 0 to 7.
    pub function: u8,
}

/// A text that is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no PCI address such as 0000:3b:00.0")]
pub struct NotAnAddress(String);

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    /// With or without the domain, which is then 0.
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        parse(text).ok_or_else(|| NotAnAddress(text.into()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let hex = |digits: &str, most: usize| {
        let fits = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        fits.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    };
    let (slot, function) = text.split_once('.')?;
    let mut parts = slot.rsplit(':');
    let (device, bus) = (hex(parts.next()?, 2)?, hex(parts.next()?, 2)?);
    let domain = parts.next().map_or(Some(0), |digits| hex(digits, 8))?;
    let function = hex(function, 1)?;
    if parts.next().is_some() || device > 31 || function > 7 {
        return None;
    }
    let byte = |n: u32| u8::try_from(n).ok();
    Some(PciAddress { domain, bus: byte(bus)?, device: byte(device)?, function: byte(function)? })
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// One function and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PciFunction {
    /// Where it is.
    pub address: PciAddress,
    /// The host bridge that it is behind, as the kernel names it: `pci0000:3a`.
    pub host_bridge: String,
    /// The bridges between the host bridge and it, from the top.
    pub bridges: Vec<PciAddress>,
    /// The vendor's number: 0x10de, 0x15b3.
    pub vendor: u16,
    /// The vendor's number for the device.
    pub device: u16,
    /// Base class, subclass and interface in 24 bits.
    pub class: u32,
    /// The kernel driver that has it.
    pub driver: Option<String>,
    /// The NUMA node of its host bridge, where the firmware says.
    pub numa_node: Option<u32>,
    /// The processors nearest to it.
    pub processors: Processors,
    /// Its PCIe link.
    pub link: Option<PciLink>,
}

/// A PCIe link as negotiated and as the function could have it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PciLink {
    /// Of each lane: `32.0 GT/s PCIe`.
    pub speed: String,
    /// Lanes.
    pub width: u8,
    /// At most.
    pub max_speed: String,
    /// Lanes at most.
    pub max_width: u8,
}

impl PciLink {
    /// Whether the slot, a riser or a fault gives it less than it could have. A GPU that is idle slows its
    /// link down by itself.
    pub fn is_degraded(&self) -> bool {
        self.width < self.max_width || self.speed != self.max_speed
    }
}

impl fmt::Display for PciLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |speed: &str| speed.trim_end_matches(" PCIe").to_owned();
        write!(f, "{} x{}", rate(&self.speed), self.width)?;
        if self.is_degraded() {
            write!(f, " of {} x{}", rate(&self.max_speed), self.max_width)?;
        }
        Ok(())
    }
}

/// Processors as the kernel lists them: `0-15,32-47`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Processors(String);

impl Processors {
    /// The list `text`, which may be anything; what is no number is passed over.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Each processor's number, such as to pin a thread to.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u16>().ok().map(u32::from);
            Some(number(first)?..=number(last)?)
        };
        self.0.split(',').filter_map(range).flatten()
    }

    /// Whether the kernel named none.
    pub fn is_empty(&self) -> bool {
        self.numbers().next().is_none()
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl PciFunction {
    /// The function whose folder, once links are followed, is `dir`.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let real = fs::canonicalize(dir).ok()?;
        let steps: Vec<_> = real.iter().map(|step| step.to_string_lossy()).collect();
        let at = steps.iter().position(|step| is_host_bridge(step))?;
        let hex = |file: &str| u32::from_str_radix(line(&dir.join(file))?.trim_start_matches("0x"), 16).ok();
        let id = |file: &str| u16::try_from(hex(file)?).ok();
        Some(Self {
            vendor: id("vendor")?,
            device: id("device")?,
            class: hex("class")?,
            driver: link_name(&dir.join("driver")),
            // -1 where the firmware does not say.
            numa_node: line(&dir.join("numa_node")).and_then(|text| text.parse().ok()),
            processors: Processors::new(line(&dir.join("local_cpulist")).unwrap_or_default()),
            link: link(dir),
            ..Self::at_path(&steps[at..].join("/"))?
        })
    }

    /// From the kernel's path, beginning with the host bridge. A volume management device puts a host bridge
    /// of its own into the middle, which is no step of the way.
    pub(crate) fn at_path(path: &str) -> Option<Self> {
        let mut steps = path.split('/');
        let host_bridge = steps.next().filter(|step| is_host_bridge(step))?.to_owned();
        let functions = steps.filter(|step| !is_host_bridge(step)).map(str::parse);
        let mut bridges = functions.collect::<Result<Vec<PciAddress>, _>>().ok()?;
        Some(Self {
            address: bridges.pop()?,
            host_bridge,
            bridges,
            vendor: 0,
            device: 0,
            class: 0,
            driver: None,
            numa_node: None,
            processors: Processors::default(),
            link: None,
        })
    }

    /// The class's upper byte: 0x02 is a network, 0x03 a display, 0x12 an accelerator.
    pub fn base_class(&self) -> u8 {
        (self.class >> 16) as u8
    }
}

/// `pci0000:3a`.
fn is_host_bridge(step: &str) -> bool {
    step.strip_prefix("pci").is_some_and(|rest| rest.contains(':'))
}

fn link(dir: &Path) -> Option<PciLink> {
    let text = |file: &str| line(&dir.join(file)).filter(|text| !text.starts_with("Unknown"));
    // A function inside the processor has a width of 0, and one that does not know says 255.
    let lanes = |file: &str| text(file)?.parse().ok().filter(|lanes| (1..=32).contains(lanes));
    Some(PciLink {
        speed: text("current_link_speed")?,
        width: lanes("current_link_width")?,
        max_speed: text("max_link_speed")?,
        max_width: lanes("max_link_width")?,
    })
}

/// The file's text without the line end; `None` where it is empty or can not be read.
pub(crate) fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

pub(crate) fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read_with_and_without_a_domain() {
        let address = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 };
        assert_eq!("0000:3b:00.1".parse(), Ok(address));
        assert_eq!("3b:00.1".parse(), Ok(address));
        assert_eq!("10000:00:02.0".parse::<PciAddress>().map(|a| a.domain), Ok(0x10000));
        for bad in ["", "3b", "3b:00", "3b:20.0", "3b:00.8", "1:2:3:4.0", "+3b:00.0", "3b:00.-1", "g0:00.0"] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_way_to_a_function_is_its_path() {
        let f = PciFunction::at_path("pci0000:15/0000:15:01.0/0000:16:00.0").unwrap();
        assert_eq!((f.host_bridge.as_str(), f.address.bus), ("pci0000:15", 0x16));
        assert_eq!(f.bridges, ["0000:15:01.0".parse().unwrap()]);
        let behind_vmd = "pci0000:3a/0000:3a:05.5/pci10000:00/10000:00:02.0/10000:01:00.0";
        assert_eq!(PciFunction::at_path(behind_vmd).unwrap().bridges.len(), 2);
        for bad in ["", "pci0000:15", "platform/x", "pci0000:15/x", "0000:15:01.0"] {
            assert!(PciFunction::at_path(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn processors_are_counted_out() {
        assert_eq!(Processors::new("0-2,8,10-11").numbers().collect::<Vec<_>>(), [0, 1, 2, 8, 10, 11]);
        assert!(Processors::new("").is_empty() && Processors::new("none").is_empty());
    }

    #[test]
    fn a_link_says_what_it_could_have_been() {
        let link = |speed: &str, width| PciLink {
            speed: speed.into(),
            width,
            max_speed: "32.0 GT/s PCIe".into(),
            max_width: 16,
        };
        assert_eq!(link("32.0 GT/s PCIe", 16).to_string(), "32.0 GT/s x16");
        assert_eq!(link("16.0 GT/s PCIe", 8).to_string(), "16.0 GT/s x8 of 32.0 GT/s x16");
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_written(domain: u32, bus: u8, device in 0..32u8, function in 0..8u8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn any_text_is_an_answer(text in ".{0,24}") {
            let _ = text.parse::<PciAddress>();
            let _ = PciFunction::at_path(&text);
            prop_assert!(Processors::new(text).numbers().count() <= 24 * (1 << 16));
        }
    }
}
