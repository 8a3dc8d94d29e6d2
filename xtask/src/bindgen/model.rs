//! What bindgen wrote, sorted: items by library, function declarations, layouts, types with their fields.
//! Turns none of it into text: that is `emit`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;

use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Fields, ForeignItem, Item, Lit, ReturnType, Type};

/// The library that a name belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    Verbs,
    Mlx5dv,
    Efadv,
}

impl Library {
    pub const ALL: [Self; 3] = [Self::Verbs, Self::Mlx5dv, Self::Efadv];

    /// The library that declares a name: each has its own prefixes.
    pub fn of(name: &str) -> Self {
        let name = name.trim_start_matches('_').to_ascii_lowercase();
        match () {
            () if name.starts_with("mlx5") => Self::Mlx5dv,
            () if name.starts_with("efadv") => Self::Efadv,
            () => Self::Verbs,
        }
    }
}

/// Size, alignment and field offsets of one type, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    pub size: usize,
    pub align: usize,
    pub fields: Vec<(String, usize)>,
}

/// A struct or union, with its fields in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregate {
    pub name: String,
    pub is_union: bool,
    /// Name and Rust type of each field.
    pub fields: Vec<(String, String)>,
}

impl Aggregate {
    /// True for a type that the headers only declare.
    pub fn is_opaque(&self) -> bool {
        matches!(self.fields.as_slice(), [(name, _)] if name == "_unused" || name == "_address")
    }
}

/// A function that a library exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub arguments: Vec<(String, String)>,
    pub result: Option<String>,
}

/// The sorted output of one bindgen run.
#[derive(Debug, Default)]
pub struct Model {
    pub items: BTreeMap<Library, Vec<Item>>,
    /// Types for which all bytes zero is the default value, by library.
    pub zeroed: BTreeMap<Library, Vec<String>>,
    pub functions: Vec<Function>,
    pub layouts: BTreeMap<String, Layout>,
    pub aggregates: Vec<Aggregate>,
    /// Names of the integer constants.
    pub values: Vec<String>,
}

/// Sorts a bindgen run. `renames` are the names that the headers themselves replace by macros.
pub fn sort(bindings: &str, renames: &BTreeMap<String, String>) -> Result<Model, Box<dyn Error>> {
    let mut file = syn::parse_file(&rename(bindings, renames))?;
    Unnumber { anonymous: anonymous_enums(&file) }.visit_file_mut(&mut file);
    let mut model = Model::default();
    for item in file.items {
        model.take(item)?;
    }
    Ok(model)
}

/// Reads the `#define new old` lines by which verbs_api.h gives kernel names a verbs name: old name → new.
pub fn renames(include: &Path) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let mut renames = BTreeMap::new();
    for header in ["verbs_api.h", "mlx5_api.h"] {
        for line in fs::read_to_string(include.join("infiniband").join(header))?.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["#define", new, old] = words[..] {
                renames.insert(old.to_owned(), new.to_owned());
            }
        }
    }
    Ok(renames)
}

/// bindgen numbers the enums that C leaves unnamed; the number means nothing, their integer type does.
fn anonymous_enums(file: &syn::File) -> BTreeMap<String, Type> {
    let alias = |item: &Item| match item {
        Item::Type(alias) if is_unnamed(&alias.ident.to_string()) => {
            Some((alias.ident.to_string(), (*alias.ty).clone()))
        }
        _ => None,
    };
    file.items.iter().filter_map(alias).collect()
}

/// Replaces whole identifiers; a nested type's name begins with that of the type around it.
fn rename(bindings: &str, renames: &BTreeMap<String, String>) -> String {
    let boundary = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let new_name = |word: &str| {
        let name = word.trim_end_matches(boundary);
        let outer = name.split("__bindgen_ty").next().unwrap_or(name);
        renames.get(outer).map_or_else(|| word.to_owned(), |new| format!("{new}{}", &word[outer.len()..]))
    };
    bindings.split_inclusive(boundary).map(new_name).collect()
}

/// True for what the kernel's header has that no verbs header gives a name to.
fn is_kernel_only(name: &str) -> bool {
    ["ib_uverbs_", "rdma_driver"].iter().any(|prefix| name.to_ascii_lowercase().starts_with(prefix))
}

/// True for an enum type without a name of its own in the verbs headers.
fn is_unnamed(name: &str) -> bool {
    name.starts_with("_bindgen_ty_") || is_kernel_only(name)
}

struct Unnumber {
    anonymous: BTreeMap<String, Type>,
}

impl VisitMut for Unnumber {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if let Type::Path(path) = ty
            && let Some(name) = path.path.get_ident()
            && let Some(integer) = self.anonymous.get(&name.to_string())
        {
            *ty = integer.clone();
        }
        visit_mut::visit_type_mut(self, ty);
    }
}

impl Model {
    fn take(&mut self, item: Item) -> Result<(), Box<dyn Error>> {
        match item {
            Item::ForeignMod(block) => self.functions.extend(block.items.iter().filter_map(function)),
            Item::Const(assert) if assert.ident == "_" => self.take_layout(&assert.expr)?,
            Item::Type(alias) if is_unnamed(&alias.ident.to_string()) => {}
            Item::Const(value) if is_kernel_only(&value.ident.to_string()) => {}
            Item::Struct(item) if is_kernel_only(&item.ident.to_string()) => {}
            Item::Union(item) if is_kernel_only(&item.ident.to_string()) => {}
            Item::Impl(block) if is_kernel_only(&text(&block.self_ty)) => {}
            Item::Impl(block) => self.take_impl(block),
            Item::Struct(item) => self.take_struct(item),
            Item::Union(item) => {
                self.aggregates.push(aggregate(item.ident.to_string(), true, &item.fields.named));
                self.place(&item.ident.to_string(), Item::Union(item.clone()));
            }
            Item::Const(value) => {
                self.values.push(value.ident.to_string());
                self.place(&value.ident.to_string(), Item::Const(value.clone()));
            }
            Item::Type(alias) => self.place(&alias.ident.to_string(), Item::Type(alias.clone())),
            other => {
                return Err(
                    format!("bindgen wrote an item of an unknown kind: {}", other.to_token_stream()).into()
                );
            }
        }
        Ok(())
    }

    fn place(&mut self, name: &str, item: Item) {
        self.items.entry(Library::of(name)).or_default().push(item);
    }

    fn take_impl(&mut self, block: syn::ItemImpl) {
        let name = text(&block.self_ty);
        let is_default = block.trait_.as_ref().is_some_and(|(_, path, _)| text(path) == "Default");
        // A zeroing default is the only one that bindgen writes out instead of deriving.
        if is_default {
            self.zeroed.entry(Library::of(&name)).or_default().push(name);
        } else {
            self.place(&name, Item::Impl(block));
        }
    }

    fn take_struct(&mut self, mut item: syn::ItemStruct) {
        let name = item.ident.to_string();
        align_packed(&mut item);
        if let Fields::Named(fields) = &item.fields {
            self.aggregates.push(aggregate(name.clone(), false, &fields.named));
        }
        self.place(&name, Item::Struct(item));
    }

    /// Reads one block of bindgen's layout assertions: `["Size of T"][size_of::<T>() - 8usize];` and so on.
    fn take_layout(&mut self, block: &Expr) -> Result<(), Box<dyn Error>> {
        let Expr::Block(block) = block else { return Err("a layout assertion is no block".into()) };
        for statement in &block.block.stmts {
            let syn::Stmt::Expr(Expr::Index(index), _) = statement else {
                return Err("a layout assertion is no index expression".into());
            };
            let claim = string_in(&index.expr).ok_or("a layout assertion says nothing")?;
            let bytes = subtrahend(&index.index).ok_or("a layout assertion subtracts nothing")?;
            self.note(&claim, bytes, &index.index)?;
        }
        Ok(())
    }

    fn note(&mut self, claim: &str, bytes: usize, of: &Expr) -> Result<(), Box<dyn Error>> {
        let name = type_in(of).ok_or_else(|| format!("no type in the assertion: {claim}"))?;
        if is_kernel_only(&name) {
            return Ok(());
        }
        let layout = self.layouts.entry(name).or_default();
        match claim {
            _ if claim.starts_with("Size of ") => layout.size = bytes,
            _ if claim.starts_with("Alignment of ") => layout.align = bytes,
            _ => {
                let field = claim.rsplit("::").next().unwrap_or_default();
                layout.fields.push((field.to_owned(), bytes));
            }
        }
        Ok(())
    }

    /// Top-level types with a C name, which a probe in C can ask about.
    pub fn named_aggregates(&self) -> impl Iterator<Item = &Aggregate> {
        self.aggregates
            .iter()
            .filter(|aggregate| !aggregate.name.contains("__bindgen_ty") && !aggregate.is_opaque())
    }

    /// The fields of a type down to the leaves: the Rust path of each, through anonymous members too.
    pub fn leaves(&self, aggregate: &Aggregate) -> Vec<String> {
        let mut leaves = Vec::new();
        for (name, ty) in &aggregate.fields {
            let nested =
                self.aggregates.iter().find(|nested| &nested.name == ty && ty.contains("__bindgen_ty"));
            let anonymous = name.starts_with("__bindgen_anon_");
            if !anonymous && !name.starts_with("_bitfield") {
                leaves.push(name.clone());
            }
            leaves.extend(
                nested.iter().flat_map(|nested| self.leaves(nested)).map(|leaf| format!("{name}.{leaf}")),
            );
        }
        leaves
    }

    /// Names of the types with a `comp_mask` of their own.
    pub fn extensible(&self) -> BTreeSet<&str> {
        let extensible =
            |aggregate: &&Aggregate| aggregate.fields.iter().any(|(name, _)| name == "comp_mask");
        self.named_aggregates().filter(extensible).map(|aggregate| aggregate.name.as_str()).collect()
    }
}

/// C's `packed, aligned(4)` puts a 16-bit field of mlx5_wqe_ctrl_seg at an odd offset, which Rust's
/// `packed(4)` does not: it only lowers alignments to 4. Bytes have the same layout without packing.
fn align_packed(item: &mut syn::ItemStruct) {
    let packed = |attribute: &syn::Attribute| {
        attribute.path().is_ident("repr") && text(&attribute.meta).contains("packed")
    };
    let Some(repr) = item.attrs.iter_mut().find(|attribute| packed(attribute)) else { return };
    *repr = syn::parse_quote!(#[repr(C)]);
    for field in &mut item.fields {
        if text(&field.ty) == "__be16" {
            field.ty = syn::parse_quote!([u8; 2]);
        }
    }
}

fn aggregate<'a>(
    name: String,
    is_union: bool,
    fields: impl IntoIterator<Item = &'a syn::Field>,
) -> Aggregate {
    let field = |field: &syn::Field| Some((field.ident.as_ref()?.to_string(), text(&field.ty)));
    Aggregate { name, is_union, fields: fields.into_iter().filter_map(field).collect() }
}

fn function(item: &ForeignItem) -> Option<Function> {
    let ForeignItem::Fn(function) = item else { return None };
    let argument = |argument: &syn::FnArg| match argument {
        syn::FnArg::Typed(typed) => Some((text(&typed.pat), text(&typed.ty))),
        syn::FnArg::Receiver(_) => None,
    };
    let result = match &function.sig.output {
        ReturnType::Default => None,
        ReturnType::Type(_, ty) => Some(text(ty)),
    };
    let arguments = function.sig.inputs.iter().filter_map(argument).collect();
    Some(Function { name: function.sig.ident.to_string(), arguments, result })
}

fn string_in(expr: &Expr) -> Option<String> {
    let Expr::Array(array) = expr else { return None };
    let Some(Expr::Lit(literal)) = array.elems.first() else { return None };
    let Lit::Str(string) = &literal.lit else { return None };
    Some(string.value())
}

fn subtrahend(expr: &Expr) -> Option<usize> {
    let Expr::Binary(minus) = expr else { return None };
    let Expr::Lit(literal) = &*minus.right else { return None };
    let Lit::Int(bytes) = &literal.lit else { return None };
    bytes.base10_parse().ok()
}

/// The type that `size_of::<T>() - n` or `offset_of!(T, field) - n` is about.
fn type_in(expr: &Expr) -> Option<String> {
    let Expr::Binary(minus) = expr else { return None };
    let left = text(&minus.left);
    let (_, rest) = left.split_once("offset_of!(").or_else(|| left.split_once("::<"))?;
    Some(rest.split([',', '>']).next()?.trim().to_owned())
}

/// Rust source of a piece of syntax, without the spaces that token printing leaves.
pub fn text(syntax: &impl ToTokens) -> String {
    let text = syntax.to_token_stream().to_string();
    let text = text.replace(":: core :: ffi :: ", "").replace(":: core :: option :: ", "");
    [
        (" :: ", "::"),
        ("* mut ", "*mut "),
        ("* const ", "*const "),
        (" ! ", "!"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
    ]
    .iter()
    .chain(&[
        (" ,", ","),
        (" < ", "<"),
        (" >", ">"),
        (" ;", ";"),
        ("[ ", "["),
        (" ]", "]"),
        (" : ", ": "),
        ("usize]", "]"),
    ])
    .fold(text, |text, (from, to)| text.replace(from, to))
}
