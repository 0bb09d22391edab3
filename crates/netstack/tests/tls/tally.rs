//! Counting what happened in many cases.

/// Declares the tally, so that adding up and showing leave nothing out.
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
            #[allow(dead_code, reason = "not every test is sure of all")]
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
