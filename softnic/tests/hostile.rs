//! A program that passes nonsense: commands and attributes of any bytes are answered with an error number or carried out, and
//! the machine stays whole. No library in between.

use proptest::prelude::*;
use softnic::description::{Abi, Description, Link};
use softnic::drive::{self, Choices};
use softnic::fabric::Fabric;
use softnic::host::Host;

/// A machine and one open context of it.
fn open(abi: Abi) -> (Host, u32) {
    let mut description = Description::standard(Link::Roce, 1);
    description.abi = abi;
    let mut host = Host::new(description, Fabric::default());
    let fd = host.open(0).unwrap();
    let context = host.context_of(fd).unwrap();
    (host, context)
}

/// Addresses that a program might pass: none, its own memory, not its own.
fn address(own: u64) -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(own), Just(own + 4093), Just(8), Just(u64::MAX - 7), any::<u64>()]
}

#[derive(Debug, Clone)]
struct Attr {
    id: u16,
    len: u16,
    flags: u16,
    data: u64,
}

fn attr(own: u64) -> impl Strategy<Value = Attr> {
    let id = prop_oneof![0u16..16, 0x1000u16..0x1006];
    let len = prop_oneof![0u16..200, any::<u16>()];
    let data = prop_oneof![address(own), 0u64..0x300, any::<u64>()];
    (id, len, 0u16..4, data).prop_map(|(id, len, flags, data)| Attr { id, len, flags, data })
}

/// Memory for headers and buffers, whose address the program knows.
fn memory() -> Vec<std::sync::atomic::AtomicU64> {
    (0..1024).map(|_| std::sync::atomic::AtomicU64::new(0)).collect()
}

fn ioctl(host: &mut Host, context: u32, object: u16, method: u16, attrs: &[Attr]) {
    let mut bytes = Vec::new();
    let length = 24 + 16 * attrs.len() as u16;
    for word in [length, object, method, attrs.len() as u16] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend([0; 16]);
    for a in attrs {
        for word in [a.id, a.len, a.flags, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(a.data.to_ne_bytes());
    }
    let _ = host.ioctl(context, bytes.as_mut_ptr() as u64);
}

/// After whatever came before, the machine still works: it makes and destroys an object.
fn still_works(host: &mut Host, context: u32) {
    let pd = host.alloc_pd(context);
    assert_eq!(host.dealloc_pd(context, pd), Ok(()));
    let mut choices = Choices::new(1);
    for _ in 0..50 {
        drive::step(host, &mut choices);
    }
}

/// Where random bytes may be written: into a buffer that is only used for that.
fn own() -> u64 {
    static MEMORY: std::sync::OnceLock<Vec<std::sync::atomic::AtomicU64>> = std::sync::OnceLock::new();
    MEMORY.get_or_init(memory).as_ptr() as u64
}

/// Replaces addresses that could be this test's own, so that the device's answers hurt nobody.
fn harmless(data: u64) -> u64 {
    let mine = data >= own() && data < own() + 8192;
    let others = (1 << 16..=u64::MAX - (1 << 16)).contains(&data);
    if others && !mine { data | 1 << 63 } else { data }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn ioctls_of_any_attributes(
        object in prop_oneof![0u16..20, Just(0x1008u16), any::<u16>()],
        method in prop_oneof![0u16..8, Just(0x1000u16), Just(0x1001u16)],
        attrs in proptest::collection::vec(attr(own()), 0..16),
    ) {
        let (mut host, context) = open(Abi::Native);
        let attrs: Vec<Attr> = attrs.into_iter().map(|a| Attr { data: harmless(a.data), ..a }).collect();
        ioctl(&mut host, context, object, method, &attrs);
        still_works(&mut host, context);
    }

    #[test]
    fn written_commands_of_any_bytes(
        command in 0u32..50, extended: bool, in_words: u16, out_words in 0u16..100,
        body in proptest::collection::vec(any::<u8>(), 0..200), response in address(own()),
    ) {
        let (mut host, context) = open(Abi::Write);
        let mut bytes = (command | u32::from(extended) << 31).to_ne_bytes().to_vec();
        bytes.extend(in_words.to_ne_bytes());
        bytes.extend(out_words.to_ne_bytes());
        bytes.extend(harmless(response).to_ne_bytes());
        bytes.extend(body);
        let _ = host.write(context, bytes.as_ptr() as u64, bytes.len());
        still_works(&mut host, context);
    }
}

#[test]
fn a_header_that_lies_about_its_length_is_refused() {
    let (mut host, context) = open(Abi::Native);
    for (length, count) in [(24u16, 1u16), (40, 0), (u16::MAX, 4094), (24 + 16 * 65, 65)] {
        let mut bytes = vec![0u8; 2048];
        bytes[..2].copy_from_slice(&length.to_ne_bytes());
        bytes[6..8].copy_from_slice(&count.to_ne_bytes());
        assert!(
            host.ioctl(context, bytes.as_mut_ptr() as u64).is_err(),
            "{length} bytes, {count} attributes"
        );
    }
    assert!(host.ioctl(context, 8).is_err());
    assert!(host.ioctl(99, 8).is_err(), "no such context");
}
