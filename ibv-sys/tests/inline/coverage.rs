//! That no inline function of the headers is left out of the comparisons.

use std::collections::BTreeSet;
use std::fs;

use super::bytes;
use super::calls::inline_functions;
use super::support::{Headers, headers, skip};

/// Compared by `fallbacks`, under the headers' name for the inline part of a macro where there is one.
const FALLBACKS: [&str; 8] = [
    "__ibv_reg_mr",
    "__ibv_reg_mr_iova",
    "___ibv_query_port",
    "_mlx5dv_create_flow",
    "ibv_create_qp_ex",
    "ibv_create_srq_ex",
    "ibv_create_wq",
    "verbs_get_ctx",
];

/// Only in a C program that links the providers statically; the `link` feature has the linker do it.
const NOT_BOUND: [&str; 1] = ["__ibv_get_device_list"];

#[test]
fn every_inline_function_of_the_headers_is_compared() {
    let headers = match headers() {
        Ok(headers) => headers,
        Err(reason) => return skip(&reason),
    };
    let mut compared: BTreeSet<&str> =
        FALLBACKS.into_iter().chain(NOT_BOUND).chain(bytes::COMPARED).collect();
    macro_rules! names {
        ($($name:ident [$($on:ident)?] fn($($ty:ty),*) -> $ret:ty = ($($arg:expr),*);)*) => {
            compared.extend([$(stringify!($name)),*]);
        };
    }
    inline_functions!(names, bench);
    for headers in headers {
        let inline = inline_names(&headers);
        assert!(inline.len() > 100, "{}: only {} inline functions found", headers.label, inline.len());
        let missing: Vec<_> = inline.iter().filter(|name| !compared.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{}: not compared with C: {missing:?}", headers.label);
    }
}

/// The names of the functions that the three headers define inline.
fn inline_names(headers: &Headers) -> BTreeSet<String> {
    let read = |name| fs::read_to_string(headers.include.join("infiniband").join(name)).unwrap();
    let text = ["verbs.h", "mlx5dv.h", "efadv.h"].map(read).concat();
    let definitions =
        text.split("\nstatic inline").skip(1).chain(text.split("\nstatic MLX5DV_ALWAYS_INLINE").skip(1));
    let always = text.split("__attribute__((__always_inline__)) static inline").skip(1);
    definitions.chain(always).filter_map(name_before_parenthesis).collect()
}

fn name_before_parenthesis(text: &str) -> Option<String> {
    let declarator = text.split('(').next()?;
    let name = declarator.rsplit(|c: char| c.is_whitespace() || c == '*').next()?;
    Some(name.to_owned())
}

#[test]
fn the_name_of_a_definition_is_found() {
    assert_eq!(
        name_before_parenthesis(" struct ibv_mw *ibv_alloc_mw(struct").as_deref(),
        Some("ibv_alloc_mw")
    );
    assert_eq!(name_before_parenthesis("\nuint8_t mlx5dv_get(struct").as_deref(), Some("mlx5dv_get"));
}
