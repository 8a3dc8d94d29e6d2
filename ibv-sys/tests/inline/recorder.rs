//! Operations that note who was called with which arguments, for every signature at once. Fills no table: `bench`
//! does.
//!
//! # Safety
//!
//! A recorder touches none of the memory that its arguments point to.
#![allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)] // The paragraph above holds for all.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use ibv_sys::*;

/// One call: the operation's number and its arguments as words.
pub type Call = (usize, Vec<u64>);

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

/// The calls since the last time, in order.
pub fn take_calls() -> Vec<Call> {
    CALLS.with(RefCell::take)
}

/// A number for an operation's name, as a const generic can be no string.
pub const fn id(name: &str) -> usize {
    let bytes = name.as_bytes();
    let (mut hash, mut index) = (0x811c_9dc5_usize, 0);
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as usize).wrapping_mul(0x0100_0193) & 0xffff_ffff;
        index += 1;
    }
    hash
}

/// An argument or a result, as 64 bits.
pub trait Word: Copy {
    fn word(self) -> u64;
}

/// A result that tells operations apart.
pub trait Answer {
    fn answer(id: usize) -> Self;
}

macro_rules! integers {
    ($($ty:ty),*) => {
        $(
            impl Word for $ty {
                fn word(self) -> u64 {
                    self as i64 as u64
                }
            }

            impl Answer for $ty {
                fn answer(id: usize) -> Self {
                    (id & 0x7f) as $ty
                }
            }
        )*
    };
}
integers!(u8, u16, u32, u64, usize, isize, c_int);

impl Word for bool {
    fn word(self) -> u64 {
        u64::from(self)
    }
}

impl Answer for bool {
    fn answer(_: usize) -> Self {
        true
    }
}

impl Word for () {
    fn word(self) -> u64 {
        0
    }
}

impl Answer for () {
    fn answer(_: usize) {}
}

impl<T> Word for *mut T {
    fn word(self) -> u64 {
        self as usize as u64
    }
}

impl<T> Answer for *mut T {
    fn answer(id: usize) -> Self {
        (id & !7) as *mut T
    }
}

impl<T> Word for *const T {
    fn word(self) -> u64 {
        self as usize as u64
    }
}

impl<T: Word> Word for Result<T, c_int> {
    fn word(self) -> u64 {
        self.map_or_else(|code| u64::MAX - code as u64, Word::word)
    }
}

macro_rules! newtypes {
    ($($ty:ident),*) => {
        $(
            impl Word for $ty {
                fn word(self) -> u64 {
                    self.0.word()
                }
            }

            impl Answer for $ty {
                fn answer(id: usize) -> Self {
                    $ty(Answer::answer(id))
                }
            }
        )*
    };
}
newtypes!(ibv_mw_type, ibv_wc_opcode, ibv_qp_type);

/// A function pointer type of which a recorder can be made.
pub trait Recorder {
    fn recorder<const ID: usize>() -> Self;
}

macro_rules! recorders {
    ($($($arg:ident)*;)*) => {
        $(impl<$($arg: Word,)* R: Answer> Recorder for unsafe extern "C" fn($($arg),*) -> R {
            fn recorder<const ID: usize>() -> Self {
                #[allow(non_snake_case)]
                unsafe extern "C" fn record<const ID: usize, $($arg: Word,)* R: Answer>($($arg: $arg),*) -> R {
                    CALLS.with_borrow_mut(|calls| calls.push((ID, vec![$($arg.word()),*])));
                    R::answer(ID)
                }
                record::<ID, $($arg,)* R>
            }
        })*
    };
}
recorders!(A; A B; A B C; A B C D; A B C D E; A B C D E F;);

/// The address of a recorder, for C to call.
pub fn address<F: Copy>(recorder: F) -> *mut c_void {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    unsafe { std::mem::transmute_copy(&recorder) }
}
