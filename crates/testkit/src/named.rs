//! Enumerations with names.

/// An enumeration whose values have names, as on the command line and in tables. JSON has the
/// names, too.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $visible:vis enum $kind:ident {
            $($(#[$what:meta])* $value:ident = $name:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $kind {
            $($(#[$what])* $value,)*
        }

        #[allow(dead_code, reason = "not every enumeration needs all of them")]
        impl $kind {
            /// All of them.
            $visible const ALL: [$kind; [$($name),*].len()] = [$($kind::$value),*];

            /// Its name.
            $visible fn name(self) -> &'static str {
                match self {
                    $($kind::$value => $name,)*
                }
            }

            /// The value of this name.
            $visible fn named(name: &str) -> Option<$kind> {
                $kind::ALL.into_iter().find(|value| value.name() == name)
            }
        }

        impl core::str::FromStr for $kind {
            type Err = String;

            fn from_str(name: &str) -> Result<$kind, String> {
                let known = || $kind::ALL.map($kind::name).join(", ");
                $kind::named(name).ok_or_else(|| format!("these are known: {}", known()))
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}
