//! Counting what happened in many cases.

/// Declares `Tally`, a struct of counters, so that adding up and showing leave none out.
///
/// ```
/// dominoes_testkit::tally! {
///     /// Bytes that applications read.
///     bytes,
///     lost,
/// }
/// let mut sum = Tally::default();
/// sum.add(&Tally { bytes: 7, ..Tally::default() });
/// assert_eq!((sum.to_string(), sum.missing()), ("bytes=7 lost=0 ".to_owned(), vec!["lost"]));
/// ```
#[macro_export]
macro_rules! tally {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, Default)]
        struct Tally {
            $($(#[$doc])* $field: u64,)*
        }

        impl Tally {
            fn add(&mut self, other: &Tally) {
                $(self.$field += other.$field;)*
            }

            /// What never happened.
            fn missing(&self) -> Vec<&'static str> {
                let all = [$((stringify!($field), self.$field)),*];
                let missing = all.into_iter().filter(|(_, count)| *count == 0);
                missing.map(|(name, _)| name).collect()
            }
        }

        impl core::fmt::Display for Tally {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $(write!(f, "{}={} ", stringify!($field), self.$field)?;)*
                Ok(())
            }
        }
    };
}
