//! Decodes decisions from the bytes of an input.

use std::fmt::Debug;
use std::hint::black_box;
use std::panic;
use std::sync::OnceLock;

use arbitrary::{Arbitrary, Unstructured};

/// An input, read from its front. After its end, all values are 0.
pub(crate) struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Input(Unstructured::new(data))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.any()
    }

    /// A number of any integer type; 0 after the end.
    pub(crate) fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// The next `len` bytes, or all that are left.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let len = len.min(self.0.len());
        self.0.bytes(len).unwrap_or_default()
    }

    /// The next operation. It is printed if `FUZZ_PRINT` is set.
    pub(crate) fn next<T: Arbitrary<'a> + Debug>(&mut self) -> Option<T> {
        static PRINTS: OnceLock<bool> = OnceLock::new();
        if self.is_empty() {
            return None;
        }
        let next = self.0.arbitrary().ok()?;
        if *PRINTS.get_or_init(|| std::env::var_os("FUZZ_PRINT").is_some()) {
            eprintln!("{next:?}");
        }
        Some(next)
    }
}

/// Panics if this build lets arithmetic wrap around silently, because it would miss findings.
pub(crate) fn assert_overflow_panics() {
    static CHECKED: OnceLock<()> = OnceLock::new();
    CHECKED.get_or_init(|| {
        // libFuzzer's hook would end the process.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| ()));
        let sum = panic::catch_unwind(|| black_box(u8::MAX) + black_box(1));
        panic::set_hook(hook);
        assert!(sum.is_err(), "built without overflow checks");
    });
}
