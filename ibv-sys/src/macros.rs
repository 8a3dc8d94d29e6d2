//! The macros that the generated files are written in. Holds no list of its own: those are generated.

/// `Default` as all bytes zero, for C structs whose pointers keep it from being derived.
macro_rules! zeroed_default {
    ($($ty:ident),* $(,)?) => {
        $(impl Default for $ty {
            fn default() -> Self {
                // SAFETY: bindgen gives this default only to types made of integers, raw pointers, nullable
                // function pointers and arrays and unions of them; all zero bytes is a value of each.
                unsafe { core::mem::zeroed() }
            }
        })*
    };
}

/// Compile-time assertions of size, alignment and field offsets.
macro_rules! layout {
    ($($ty:ident: $size:literal, $align:literal { $($field:ident $offset:literal),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<$ty>() == $size, concat!("size of ", stringify!($ty)));
            assert!(align_of::<$ty>() == $align, concat!("alignment of ", stringify!($ty)));
            $(assert!(
                core::mem::offset_of!($ty, $field) == $offset,
                concat!("offset of ", stringify!($ty), "::", stringify!($field))
            );)*
        };)*
    };
}

/// [`Extensible`](crate::Extensible) for each struct, and a walk through all of them.
macro_rules! extensible {
    ($($ty:ident $(mask $mask:ty)? [$($change:expr),*] $(added [$($($leaf:ident).+ $size:literal),*])?;)*) => {
        $(
            // SAFETY: a C struct made of integers, raw pointers and nullable function pointers (and, in objects
            // that the library makes, pthread types): zero bytes are a value of it.
            unsafe impl $crate::Extensible for $ty {
                const NAME: &'static str = stringify!($ty);
                const SIZES: &'static [(&'static str, usize)] = &[$($change),*];

                fn comp_mask(&self) -> Option<u64> {
                    let masks: &[u64] = &[$({ let mask: $mask = self.comp_mask; u64::from(mask) })?];
                    masks.first().copied()
                }

                fn used_len(&self) -> usize {
                    let first = <Self as $crate::Extensible>::SIZES[0].1;
                    let added: &[(usize, bool)] =
                        &[$($(($size, $crate::extend::is_nonzero(&self.$($leaf).+))),*)?];
                    added.iter().filter(|(_, used)| *used).map(|(size, _)| *size).fold(first, usize::max)
                }
            }
        )*

        /// Shows a visitor every extensible struct, in the order of their names.
        pub fn each_extensible(visitor: &mut impl $crate::extend::Visitor) {
            $(visitor.visit::<$ty>();)*
        }
    };
}

/// A library's functions as a table of pointers, with a method for each, and the list of its symbols.
///
/// An entry reads: needed or not, whether a method is generated, how absence is said, the symbol and the
/// version of it that has this signature, then the signature.
macro_rules! symbols {
    ($table:ident, $soname:literal, link $link:literal $weak:ident;
     $($need:ident $kind:ident $absent:ident $symbol:literal $version:literal
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        #[doc = concat!("The functions of `", $soname, "` as pointers that are never null.")]
        ///
        /// A function that the library lacks points to one that answers EOPNOTSUPP in the way of its kind.
        /// Plain data: a test makes its own with `Self { some_verb: mine, ..Self::unsupported() }`.
        #[derive(Clone, Copy)]
        pub struct $table {
            $(
                #[doc = concat!("`", $symbol, "`, of version `", $version, "`.")]
                pub $name: unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?,
            )*
        }

        impl $table {
            /// Every symbol of the table, in its order.
            pub const SYMBOLS: &'static [$crate::Symbol] = &[$($crate::Symbol {
                name: $symbol,
                version: $version,
                required: $crate::symbols!(@required $need),
            }),*];

            /// A table of which every function answers EOPNOTSUPP.
            pub const fn unsupported() -> Self {
                Self {
                    $($name: {
                        extern "C" fn absent($($arg: $ty),*) $(-> $ret)? {
                            $(let _ = $arg;)*
                            $crate::table::Absent::absent($crate::table::Convention::$absent)
                        }
                        absent
                    },)*
                }
            }

            $($crate::symbols!(@method $kind $symbol $name($($arg: $ty),*) $(-> $ret)?);)*
        }

        impl $crate::table::Table for $table {
            const SONAME: &'static str = $soname;
            const SYMBOLS: &'static [$crate::Symbol] = Self::SYMBOLS;

            unsafe fn resolve(
                mut lookup: impl FnMut(&'static $crate::Symbol) -> Option<core::ptr::NonNull<c_void>>,
            ) -> Self {
                let mut table = Self::unsupported();
                let mut symbols = Self::SYMBOLS.iter();
                $(
                    if let Some(address) = symbols.next().and_then(&mut lookup) {
                        // SAFETY: the caller gives the address of a function with this name and version,
                        // whose signature is this field's.
                        table.$name = unsafe {
                            core::mem::transmute::<
                                core::ptr::NonNull<c_void>,
                                unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?,
                            >(address)
                        };
                    }
                )*
                table
            }
        }

        impl core::fmt::Debug for $table {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($table), "({} functions)"), Self::SYMBOLS.len())
            }
        }

        #[cfg(feature = "link")]
        mod linked {
            use super::*;

            #[link(name = $link)]
            unsafe extern "C" {
                $($crate::symbols!(@declare $need $symbol $name($($arg: $ty),*) $(-> $ret)?);)*
                static $weak: [*mut c_void; 0];
            }
            // A library older than the newest function must still link: a weak symbol that nobody defines has
            // the address zero. Rust can not say `weak`, the assembler can.
            core::arch::global_asm!(concat!(
                ".pushsection .data.rel.ro.", stringify!($weak), ",\"aw\",%progbits\n.balign 8\n",
                ".globl ", stringify!($weak), "\n.hidden ", stringify!($weak), "\n", stringify!($weak), ":\n",
                $($crate::symbols!(@slot $need $symbol),)*
                ".popsection\n"
            ));

            impl $crate::table::Linked for $table {
                fn addresses() -> Vec<Option<core::ptr::NonNull<c_void>>> {
                    let mut slot = (&raw const $weak).cast::<*mut c_void>();
                    let mut next = || {
                        // SAFETY: the assembled table has one slot for each optional symbol, and this is called
                        // once for each.
                        let address = unsafe { slot.read() };
                        slot = slot.wrapping_add(1);
                        core::ptr::NonNull::new(address)
                    };
                    vec![$($crate::symbols!(@address $need next $name)),*]
                }
            }
        }
    };

    (@declare optional $symbol:literal $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {};
    (@declare required $symbol:literal $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        #[link_name = $symbol]
        fn $name($($arg: $ty),*) $(-> $ret)?;
    };
    (@slot required $symbol:literal) => { "" };
    (@slot optional $symbol:literal) => { concat!(".weak ", $symbol, "\n.quad ", $symbol, "\n") };
    (@address required $next:ident $name:ident) => { core::ptr::NonNull::new($name as *mut c_void) };
    (@address optional $next:ident $name:ident) => { $next() };

    (@required required) => { true };
    (@required optional) => { false };

    // A header's inline function or macro has this name: `inline` has the method.
    (@method wrapped $symbol:literal $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {};
    (@method plain $symbol:literal $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        #[doc = concat!("Calls `", $symbol, "`.")]
        ///
        /// # Safety
        ///
        /// As for the C function: its manual page says which pointers must be valid and for how long.
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's promise is the C function's own.
            unsafe { (self.$name)($($arg),*) }
        }
    };
}

pub(crate) use {extensible, layout, symbols, zeroed_default};
