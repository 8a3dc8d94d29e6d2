//! The generated files of `ibv-sys`, as text. What goes into them comes sorted from `model` and `symbols`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use super::files::{self, Files};
use super::generate::{self, TARGETS};
use super::headers::{self, RdmaCore};
use super::model::{self, Aggregate, Layout, Library, Model};
use super::symbols::{self, Symbol};

/// Structs that go to the library with their size beside them, and have no `comp_mask`.
const SIZED: [&str; 6] = [
    "ibv_port_attr",
    "ibv_gid_entry",
    "ibv_device_attr_ex",
    "ibv_comp_cntr_caps",
    "mlx5dv_mkey_err",
    "mlx5dv_export_sizes",
];

/// What the lists of the test are written in.
const TEST_TABLE: &str = r#"
use ibv_sys::*;

use super::facts::{Constant, Facts, size_behind};

macro_rules! aggregates {
    ($($ty:ident { $($($field:ident).+),* $(,)? })*) => {
        pub fn aggregates(facts: &mut Facts) {
            $(
                facts.types.insert(stringify!($ty).to_owned(), (size_of::<$ty>(), align_of::<$ty>()));
                $(
                    // SAFETY: the closure is only asked for its type; it is never called.
                    let size = size_behind::<$ty, _>(|ty| unsafe { &raw const (*ty).$($field).+ });
                    let offset = core::mem::offset_of!($ty, $($field).+);
                    facts.field(stringify!($ty), stringify!($($field).+), offset, size);
                )*
            )*
        }
    };
}

macro_rules! values {
    ($($name:ident),* $(,)?) => {
        pub fn values(facts: &mut Facts) {
            $(facts.values.insert(stringify!($name).to_owned(), ($name.widened(), size_of_val(&$name)));)*
        }
    };
}

macro_rules! newtypes {
    ($($ty:ident),* $(,)?) => {
        $(impl Constant for $ty {
            fn widened(self) -> u64 {
                self.0.widened()
            }
        })*
    };
}

"#;

/// Writes the generated files, or compares them with the committed ones.
pub fn regenerate(check: bool) -> Result<(), Box<dyn Error>> {
    let files = generated()?;
    if check { files::compare(&files) } else { files::write(&files) }
}

fn generated() -> Result<Files, Box<dyn Error>> {
    let archive = headers::archive()?;
    let mut models = Vec::new();
    let mut cores = Vec::new();
    for target in TARGETS {
        for core in headers::fetch(&archive, target.debian)? {
            eprintln!("bindgen: rdma-core {} ({}) for {}", core.version, core.suite, target.name);
            let bindings = generate::generate(&archive, target, &core)?;
            models.push((target, model::sort(&bindings, &model::renames(&core.include)?)?));
            cores.push(core);
        }
    }
    let of_target = |name| models.iter().zip(&cores).filter(move |((target, _), _)| target.name == name);
    let history: Vec<(&RdmaCore, &Model)> =
        of_target("x86_64").map(|((_, model), core)| (core, model)).collect();
    let (newest, model) = *history.last().ok_or("no rdma-core version")?;
    let aarch64 =
        of_target("aarch64").next_back().map(|((_, model), _)| model).ok_or("no aarch64 headers")?;
    same_for_both(model, aarch64)?;
    let symbols = symbols::symbols(&model.functions, &newest.libraries)?;
    for (older, _) in &history {
        symbols::check_older(&symbols, &older.libraries)?;
    }
    Ok(Output { newest, model, aarch64, history: &history, symbols: &symbols }.files())
}

/// The targets may differ in layouts alone.
fn same_for_both(x86_64: &Model, aarch64: &Model) -> Result<(), Box<dyn Error>> {
    let same = x86_64.items == aarch64.items
        && x86_64.functions == aarch64.functions
        && x86_64.zeroed == aarch64.zeroed
        && x86_64.values == aarch64.values;
    if same { Ok(()) } else { Err("the bindings for x86_64 and aarch64 differ in more than layouts".into()) }
}

struct Output<'a> {
    newest: &'a RdmaCore,
    model: &'a Model,
    aarch64: &'a Model,
    history: &'a [(&'a RdmaCore, &'a Model)],
    symbols: &'a BTreeMap<Library, Vec<Symbol>>,
}

impl Output<'_> {
    fn files(&self) -> Files {
        let mut files = Files::new();
        let mut add = |path: &str, text: String| files.insert(PathBuf::from(format!("ibv-sys/{path}")), text);
        for (library, name) in Library::ALL.into_iter().zip(["verbs", "mlx5dv", "efadv"]) {
            add(&format!("src/generated/{name}.rs"), self.types(library));
            add(&format!("src/generated/{name}_symbols.rs"), self.table(library));
        }
        let (common, x86_64, aarch64) = self.layouts();
        add("src/generated/layout.rs", common);
        add("src/generated/layout_x86_64.rs", x86_64);
        add("src/generated/layout_aarch64.rs", aarch64);
        add("src/generated/sizes.rs", self.sizes());
        add("tests/abi/table.rs", self.test_table());
        add("abi/probe.c", self.probe());
        files
    }

    fn header(&self, what: &str, comment: &str) -> String {
        let version = &self.newest.version;
        format!(
            "{comment} {what}\n{comment}\n{comment} Generated by `cargo xtask bindgen` from rdma-core {version}; not edited by hand.\n\n"
        )
    }

    fn types(&self, library: Library) -> String {
        let (what, uses) = match library {
            Library::Verbs => (
                "Types and constants of verbs.h.",
                "use libc::{pthread_cond_t, pthread_mutex_t, timespec};\n",
            ),
            Library::Mlx5dv => {
                ("Types and constants of mlx5dv.h.", "use libc::off_t;\n\nuse crate::verbs_types::*;\n")
            }
            Library::Efadv => ("Types and constants of efadv.h.", "use crate::verbs_types::*;\n"),
        };
        let mut text = self.header(what, "//!");
        text.push_str(
            "#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case)]\n\
             #![allow(missing_docs, missing_debug_implementations)] // rdma-core documents them; unions have no Debug.\n\
             #![allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]\n\n\
             use core::ffi::*;\n\n",
        );
        text.push_str(uses);
        let items = self.model.items.get(&library).cloned().unwrap_or_default();
        text.push('\n');
        text.push_str(&items_text(items));
        let zeroed = self.model.zeroed.get(&library).cloned().unwrap_or_default();
        let _ = write!(text, "\ncrate::zeroed_default! {{\n{}}}\n", wrapped(&zeroed.join(", "), "    "));
        text
    }

    fn table(&self, library: Library) -> String {
        let (what, name, link) = match library {
            Library::Verbs => ("The functions of libibverbs.", "Verbs", "ibverbs"),
            Library::Mlx5dv => ("The functions of libmlx5.", "Mlx5dv", "mlx5"),
            Library::Efadv => ("The functions of libefa.", "Efadv", "efa"),
        };
        let mut text = self.header(what, "//!");
        let file = if library == Library::Mlx5dv { "use libc::FILE;\n\n" } else { "" };
        let _ = write!(text, "use core::ffi::*;\n\n{file}use crate::*;\n\n");
        let _ = writeln!(
            text,
            "crate::symbols! {{\n    {name}, \"{}\", link \"{link}\" ibv_sys_weak_{link};",
            library.soname()
        );
        for symbol in self.symbols.get(&library).into_iter().flatten() {
            text.push_str(&symbol_line(symbol));
        }
        text.push_str("}\n");
        text
    }

    /// Layouts common to both targets, and those of each where they differ.
    fn layouts(&self) -> (String, String, String) {
        let of = |model: &Model, keep: &dyn Fn(&str, &Layout) -> bool, what: &str| {
            let mut text = self.header(what, "//!");
            text.push_str("use crate::*;\n\ncrate::layout! {\n");
            for (name, layout) in model.layouts.iter().filter(|(name, layout)| keep(name, layout)) {
                text.push_str(&layout_line(name, layout));
            }
            text.push_str("}\n");
            text
        };
        let same = |name: &str, _: &Layout| self.model.layouts.get(name) == self.aarch64.layouts.get(name);
        let differs = |name: &str, layout: &Layout| !same(name, layout);
        (
            of(
                self.model,
                &same,
                "Sizes, alignments and offsets that x86_64 and aarch64 share, asserted when compiling.",
            ),
            of(
                self.model,
                &differs,
                "Layouts with a pthread type in them, for x86_64: asserted when compiling.",
            ),
            of(
                self.aarch64,
                &differs,
                "Layouts with a pthread type in them, for aarch64: asserted when compiling.",
            ),
        )
    }

    /// Size of every extensible struct at each version that changed it.
    fn sizes(&self) -> String {
        let mut text = self.header(
            "What every extensible struct measured at each rdma-core version that changed it.",
            "//!",
        );
        let _ = writeln!(
            text,
            "use crate::*;\n\n/// The rdma-core version whose headers the bindings were made from.\n\
             pub const RDMA_CORE_VERSION: &str = \"{}\";\n\ncrate::extensible! {{",
            self.newest.version
        );
        let masked = self.model.extensible();
        for name in self.model.layouts.keys() {
            let mask =
                self.model.aggregates.iter().find(|aggregate| aggregate.name == *name).and_then(comp_mask);
            if masked.contains(name.as_str()) || SIZED.contains(&name.as_str()) {
                let mask = mask.map(|ty| format!(" mask {ty}")).unwrap_or_default();
                let added = self.added(name);
                let added =
                    if added.is_empty() { String::new() } else { format!(" added [{}]", added.join(", ")) };
                let _ = writeln!(text, "    {name}{mask} [{}]{added};", self.changes(name).join(", "));
            }
        }
        text.push_str("}\n");
        text
    }

    fn changes(&self, name: &str) -> Vec<String> {
        let mut last = None;
        let mut changes = Vec::new();
        for (core, model) in self.history {
            let size = model.layouts.get(name).map(|layout| layout.size);
            if let Some(size) = size.filter(|_| size != last) {
                changes.push(format!("(\"{}\", {size})", core.version));
            }
            last = size.or(last);
        }
        changes
    }

    /// The fields that came with a size after the first, each with the smallest size that holds it.
    fn added(&self, name: &str) -> Vec<String> {
        let Some(aggregate) = self.model.named_aggregates().find(|aggregate| aggregate.name == name) else {
            return Vec::new();
        };
        let sizes = self.sizes_of(name);
        let Some(layout) = self.model.layouts.get(name) else { return Vec::new() };
        let field = |(field, offset): &(String, usize)| {
            let size = *sizes.iter().find(|size| **size > *offset)?;
            let leaves = self.model.leaves(aggregate).into_iter().filter(|leaf| {
                leaf.split('.').next() == Some(field)
                    && !self
                        .model
                        .leaves(aggregate)
                        .iter()
                        .any(|other| other.starts_with(&format!("{leaf}.")))
            });
            (size > sizes[0]).then(|| leaves.map(|leaf| format!("{leaf} {size}")).collect::<Vec<_>>())
        };
        layout.fields.iter().filter_map(field).flatten().collect()
    }

    fn sizes_of(&self, name: &str) -> Vec<usize> {
        let mut sizes: Vec<usize> =
            self.history.iter().filter_map(|(_, model)| Some(model.layouts.get(name)?.size)).collect();
        sizes.dedup();
        sizes
    }

    fn test_table(&self) -> String {
        let mut text =
            self.header("Every type, field and constant that the probe in C is asked about.", "//");
        text.push_str(TEST_TABLE);
        text.push_str("aggregates! {\n");
        for aggregate in self.model.named_aggregates() {
            let leaves = self.model.leaves(aggregate).join(", ");
            let _ = write!(text, "    {} {{\n{}    }}\n", aggregate.name, wrapped(&leaves, "        "));
        }
        text.push_str("}\n\nvalues! {\n");
        text.push_str(&wrapped(&self.model.values.join(", "), "    "));
        text.push_str("}\n\nnewtypes! {\n");
        text.push_str(&wrapped(&self.newtypes().join(", "), "    "));
        text.push_str("}\n");
        text
    }

    fn newtypes(&self) -> Vec<String> {
        let tuple = |item: &syn::Item| match item {
            syn::Item::Struct(item)
                if matches!(item.fields, syn::Fields::Unnamed(_)) && item.generics.params.is_empty() =>
            {
                Some(item.ident.to_string())
            }
            _ => None,
        };
        self.model.items.values().flatten().filter_map(tuple).collect()
    }

    fn probe(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "/* Prints what the installed headers say of everything that ibv-sys binds, one fact a line.\n *"
        );
        let _ = writeln!(
            text,
            " * Generated by `cargo xtask bindgen` from rdma-core {}; not edited by hand.",
            self.newest.version
        );
        text.push_str(
            " * A line that the headers know nothing of does not compile: the caller leaves it out and tries again. */\n\
             #include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n\
             #include <infiniband/efadv.h>\n\n\
             #define TYPE(kind, name) printf(\"type \" #name \" %zu %zu\\n\", sizeof(kind name), _Alignof(kind name));\n\
             #define FIELD(kind, name, field) printf(\"field \" #name \" \" #field \" %zu %zu\\n\", offsetof(kind name, field), \
             sizeof(((kind name *)0)->field));\n\
             #define TAIL(kind, name, field) printf(\"field \" #name \" \" #field \" %zu 0\\n\", offsetof(kind name, field));\n\
             #define VALUE(name) printf(\"value \" #name \" %llu\\n\", (unsigned long long)(name));\n\n\
             int main(void)\n{ /* lines */\n",
        );
        for aggregate in self.model.named_aggregates() {
            text.push_str(&self.probe_type(aggregate));
        }
        for value in &self.model.values {
            let _ = writeln!(text, "VALUE({value})");
        }
        text.push_str("return 0;\n}\n");
        text
    }

    fn probe_type(&self, aggregate: &Aggregate) -> String {
        let kind = if aggregate.is_union { "union" } else { "struct" };
        let name = &aggregate.name;
        let mut text = format!("TYPE({kind}, {name})\n");
        for leaf in self.model.leaves(aggregate) {
            let flexible =
                aggregate.fields.iter().any(|(field, ty)| *field == leaf && ty.contains("IncompleteArray"));
            let ask = if flexible { "TAIL" } else { "FIELD" };
            let _ = writeln!(text, "{ask}({kind}, {name}, {})", c_path(&leaf));
        }
        text
    }
}

fn comp_mask(aggregate: &Aggregate) -> Option<&str> {
    let (_, ty) = aggregate.fields.iter().find(|(name, _)| name == "comp_mask")?;
    // The integer behind an enum's alias.
    Some(if ty.starts_with('u') || ty.starts_with("__u") || ty == "c_int" { ty } else { "u32" })
}

/// C's name of a field: without bindgen's names for anonymous members and its escapes of Rust keywords.
fn c_path(leaf: &str) -> String {
    let segments = leaf.split('.').filter(|segment| !segment.starts_with("__bindgen_anon_"));
    segments.map(unescaped).collect::<Vec<_>>().join(".")
}

/// The name that bindgen put an underscore behind because it is a keyword in Rust.
fn unescaped(name: &str) -> &str {
    name.strip_suffix('_').filter(|word| syn::parse_str::<syn::Ident>(word).is_err()).unwrap_or(name)
}

fn items_text(items: Vec<syn::Item>) -> String {
    let text = prettyplease::unparse(&syn::File { shebang: None, attrs: Vec::new(), items });
    text.replace("::core::ffi::", "").replace("::core::option::", "").replace("usize]", "]")
}

/// One function in the macro's syntax. A function that a header wraps gets no method of its own name.
fn symbol_line(symbol: &Symbol) -> String {
    let function = &symbol.function;
    let need = if symbol.required { "required" } else { "optional" };
    let arguments: Vec<String> =
        function.arguments.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
    let result = function.result.as_ref().map(|ty| format!(" -> {ty}")).unwrap_or_default();
    let wrapped_by_header =
        ["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"].contains(&function.name.as_str());
    let (field, kind) = match function.name.as_str() {
        "ibv_query_port" => ("compat_ibv_query_port", "wrapped"),
        name => (name, if wrapped_by_header { "wrapped" } else { "plain" }),
    };
    let mut text = format!(
        "    {need} {kind} {} \"{}\" \"{}\"\n        fn {field}({}){result};\n",
        symbol.absent.name(),
        function.name,
        symbol.version,
        arguments.join(", ")
    );
    if text.lines().any(|line| line.len() > 110) {
        let broken = arguments.join(",\n            ");
        text = format!(
            "    {need} {kind} {} \"{}\" \"{}\"\n        fn {field}(\n            {broken},\n        ){result};\n",
            symbol.absent.name(),
            function.name,
            symbol.version
        );
    }
    text
}

fn layout_line(name: &str, layout: &Layout) -> String {
    let fields: Vec<String> =
        layout.fields.iter().map(|(field, offset)| format!("{field} {offset}")).collect();
    let short = format!("    {name}: {}, {} {{ {} }}\n", layout.size, layout.align, fields.join(", "));
    if short.len() <= 110 {
        return short;
    }
    format!(
        "    {name}: {}, {} {{\n{}    }}\n",
        layout.size,
        layout.align,
        wrapped(&fields.join(", "), "        ")
    )
}

/// Breaks a comma-separated list into lines, each indented and none over 110 columns where words allow it.
fn wrapped(list: &str, indent: &str) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for item in list.split(", ").filter(|item| !item.is_empty()) {
        if !line.is_empty() && indent.len() + line.len() + item.len() + 2 > 110 {
            let _ = writeln!(text, "{indent}{}", line.trim_end());
            line.clear();
        }
        let _ = write!(line, "{item}, ");
    }
    if !line.is_empty() {
        let _ = writeln!(text, "{indent}{}", line.trim_end());
    }
    text
}
