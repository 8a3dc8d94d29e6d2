//! The instructions that ring a doorbell, in order: a software device can not tell a missing fence from a
//! present one, so the compiler's output is read. Ours, and the C header's, for x86-64 and, where a
//! compiler for it is there, aarch64.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// A step of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The to-device barrier.
    ToDevice,
    /// Four bytes: the doorbell record.
    Record,
    /// Write-combining start, or flush.
    Fence,
    /// Eight bytes: the register.
    Register,
}

const SEQUENCE: [Step; 5] = [Step::ToDevice, Step::Record, Step::Fence, Step::Register, Step::Fence];

/// A file of this test's own: others compile at the same time.
fn scratch(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, n) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{process}-{n}-{name}"))
}

/// The lines of one function in assembler text, up to its end.
fn body<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let label = format!("{name}:");
    let lines = text.lines().skip_while(|l| l.trim() != label).skip(1);
    lines.map(str::trim).take_while(|l| !l.starts_with(".size") && !l.starts_with(".cfi_endproc")).collect()
}

/// The steps in a function; stores only count from the first barrier (or, where that is no text, the last
/// store before the first fence) to the last, where nothing but the two belongs.
fn steps(lines: &[&str], arm: bool) -> Vec<Step> {
    let mut found = Vec::new();
    // Instructions of the piece of inline assembly that is open.
    let mut inline = None;
    for line in lines {
        match *line {
            "#APP" => inline = Some(0),
            // An empty piece orders the compiler alone: the to-device barrier of x86-64.
            "#NO_APP" if inline.take() == Some(0) => found.push(Step::ToDevice),
            l if l.is_empty() || l.starts_with(['#', '/']) => {}
            l => {
                inline = inline.map(|n| n + 1);
                found.extend(if arm { arm_step(l) } else { x86_step(l) });
            }
        }
    }
    let fence = found.iter().position(|s| *s == Step::Fence).expect("a fence");
    let barrier = found.iter().position(|s| *s == Step::ToDevice);
    let first = barrier.unwrap_or(fence.saturating_sub(1));
    let last = found.iter().rposition(|s| *s == Step::Fence).expect("a flush");
    found[first..=last].to_vec()
}

fn x86_step(line: &str) -> Option<Step> {
    let (mnemonic, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let to_memory = operands.trim_end().ends_with(')') && !operands.trim_start().starts_with('(');
    match mnemonic {
        "sfence" => Some(Step::Fence),
        "movl" if to_memory => Some(Step::Record),
        "movq" if to_memory => Some(Step::Register),
        _ => None,
    }
}

fn arm_step(line: &str) -> Option<Step> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["dmb", "oshst", ..] => Some(Step::ToDevice),
        ["dsb", "st", ..] => Some(Step::Fence),
        ["str", source, ..] if source.starts_with('w') => Some(Step::Record),
        ["str", source, ..] if source.starts_with('x') => Some(Step::Register),
        _ => None,
    }
}

/// `doorbell.rs` by itself, optimised, with one function that rings.
fn rust_asm(target: Option<&str>) -> Result<String, String> {
    let name = target.unwrap_or("host");
    let (source, out) = (scratch(&format!("{name}.rs")), scratch(&format!("{name}.s")));
    let doorbell = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doorbell.rs");
    let text = format!(
        "#[path = {doorbell:?}] pub mod doorbell;
#[unsafe(no_mangle)] pub extern \"C\" fn ring_it(r: &mut doorbell::Register, d: &doorbell::DoorbellRecord, n: u16, c: u64) {{
    r.ring(d, n, c)
}}
#[unsafe(no_mangle)] pub extern \"C\" fn copy_it(r: &mut doorbell::Register, d: &doorbell::DoorbellRecord, n: u16, b: &[std::sync::atomic::AtomicU64; 8]) {{
    r.ring_copy(d, n, std::iter::once(b))
}}"
    );
    std::fs::write(&source, text).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "--crate-type=lib", "-Copt-level=3", "-Cdebuginfo=0", "--emit=asm"]);
    rustc.args(["-Cllvm-args=--x86-asm-syntax=att", "--crate-name=ring"]);
    rustc.args(target.map(|t| format!("--target={t}"))).arg(&source).arg("-o").arg(&out);
    let done = rustc.output().map_err(|e| e.to_string())?;
    let _ = std::fs::remove_file(&source);
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    let asm = std::fs::read_to_string(&out).unwrap();
    let _ = std::fs::remove_file(&out);
    Ok(asm)
}

fn c_asm(compiler: &str) -> Result<String, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/post.c");
    let mut cc = Command::new(compiler);
    cc.args(["-std=c11", "-O2", "-S", "-o", "-", "-I", rdmaxcel_sys::INCLUDE]).arg(source);
    let done = cc.output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

const ARM: bool = cfg!(target_arch = "aarch64");

#[test]
fn a_ring_is_five_steps_in_order() {
    let asm = rust_asm(None).unwrap();
    assert_eq!(steps(&body(&asm, "ring_it"), ARM), SEQUENCE, "{asm}");
}

/// The same five steps, the fourth of which is stores of eight bytes, and nothing else, in ascending order.
#[test]
fn a_copy_into_the_register_is_five_steps_in_order() {
    let asm = rust_asm(None).unwrap();
    let lines = body(&asm, "copy_it");
    let mut found = steps(&lines, ARM);
    found.dedup_by(|b, a| a == b && *a == Step::Register);
    assert_eq!(found, SEQUENCE, "{asm}");
    assert!(!lines.iter().any(|l| l.contains("memcpy")), "{asm}");
}

#[test]
fn a_ring_is_five_steps_in_order_on_aarch64() {
    match rust_asm(Some("aarch64-unknown-linux-gnu")) {
        Ok(asm) => assert_eq!(steps(&body(&asm, "ring_it"), true), SEQUENCE, "{asm}"),
        Err(why) => {
            assert!(why.contains("target may not be installed"), "{why}");
            eprintln!(
                "skipped: no standard library for aarch64 (rustup target add aarch64-unknown-linux-gnu)"
            );
        }
    }
}

#[test]
fn the_headers_ring_is_the_same_five_steps() {
    let asm = c_asm("cc").unwrap();
    // GCC writes nothing at all for a barrier that orders the compiler alone.
    let silent = if ARM { 0 } else { 1 };
    let found = steps(&body(&asm, "ring"), ARM);
    assert!(found == SEQUENCE || found == SEQUENCE[silent..], "{found:?}\n{asm}");
}

#[test]
fn the_headers_ring_is_the_same_five_steps_on_aarch64() {
    match c_asm("aarch64-linux-gnu-gcc") {
        Ok(asm) => assert_eq!(steps(&body(&asm, "ring"), true), SEQUENCE, "{asm}"),
        Err(why) => {
            assert!(why.contains("No such file"), "{why}");
            eprintln!("skipped: no aarch64-linux-gnu-gcc");
        }
    }
}

/// The reader above notices what it is there to notice.
#[test]
fn a_missing_fence_or_another_order_is_noticed() {
    let good = ["#APP", "#NO_APP", "movl %edx, 4(%rsi)", "sfence", "movq %rcx, (%rax)", "sfence"];
    assert_eq!(steps(&good, false), SEQUENCE);
    for missing in [2, 3, 5] {
        let mut bad = good.to_vec();
        bad.remove(missing);
        assert_ne!(steps(&bad, false), SEQUENCE, "without {}", good[missing]);
    }
    let mut bad = good;
    bad.swap(2, 4);
    assert_ne!(steps(&bad, false), SEQUENCE);
}
