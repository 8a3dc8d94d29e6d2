//! Every inline function of the headers against the C that the headers themselves give: the same operation called
//! with the same arguments, the same result, the same bytes. And without the operation: EOPNOTSUPP.

#[path = "../support/mod.rs"]
mod support;

mod absent;
mod bench;
mod bytes;
mod calls;
mod coverage;
mod fallbacks;
mod recorder;

use bench::{Bench, C};
use support::{Headers, compile, headers, skip};

/// Runs a comparison against every set of headers that there is.
fn with_c(compare: impl Fn(&Headers, &mut Bench, &C)) {
    let headers = match headers() {
        Ok(headers) => headers,
        Err(reason) => return skip(&reason),
    };
    for headers in &headers {
        let thread = std::thread::current();
        let name = format!("inline-{}", thread.name().unwrap_or("main").replace(':', "_"));
        let mut flags = vec!["-shared", "-fPIC", "-Wl,-Bsymbolic"];
        if cfg!(target_arch = "x86_64") {
            flags.push("-mssse3");
        }
        let compiled = compile(include_str!("../../abi/inline.c"), headers, &name, &flags);
        let mut bench = Bench::new();
        let c = C::open(&compiled.file, &bench);
        compare(headers, &mut bench, &c);
        println!("{}: {} lines not in these headers", headers.label, compiled.left_out.len());
    }
}
