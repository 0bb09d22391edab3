//! The macro that declares settings. `dominoes-proto` has the same file by a symbolic link, since
//! neither crate depends on the other.

/// Declares settings: of a struct, or in an `impl` the methods that set something in other ways.
///
/// The macro gives a struct its `Default`, and each field a method that sets it and returns the
/// struct, so that other crates can build it although fields may be added. After a field's default
/// may follow the values that `out_of_range` allows, with a text that names them. An arrow changes
/// the argument of the method: `=> into` takes anything that converts into the value, `=> some T`
/// takes the content of `Some`; `=> none` omits the method.
///
/// A method is declared without `mut` and without a return type: it returns the struct.
#[doc(hidden)]
#[macro_export]
macro_rules! settings {
    (
        $(#[$about:meta])*
        pub struct $name:ident {$(
            $(#[doc = $doc:literal])*
            $(#[cfg($($cfg:tt)*)])?
            $(#[cfg_attr($($attribute:tt)*)])?
            pub $field:ident: $type:ty = $default:expr
            $(, $values:expr, $allowed:literal)? $(=> $how:ident $($inner:ty)?)?;
        )*}
    ) => {
        $(#[$about])*
        #[non_exhaustive]
        pub struct $name {$(
            $(#[doc = $doc])*
            $(#[cfg($($cfg)*)] #[doc(hidden)])?
            $(#[cfg_attr($($attribute)*)])?
            pub $field: $type,
        )*}

        impl Default for $name {
            fn default() -> Self {
                $name {$($(#[cfg($($cfg)*)])? $field: $default,)*}
            }
        }

        impl $name {
            $(
                $(#[cfg($($cfg)*)])?
                $crate::settings! { @$($how)? $field: $type $(= $($inner)?)? }
            )*

            /// The first field with a forbidden value, that value, and the allowed ones.
            #[allow(dead_code, reason = "not every struct has ranges")]
            fn out_of_range(&self) -> Option<(&'static str, u64, &'static str)> {
                $($(
                    if !$values.contains(&self.$field) {
                        let name = concat!(stringify!($name), "::", stringify!($field));
                        return Some((name, self.$field as u64, $allowed));
                    }
                )?)*
                None
            }
        }
    };
    ($(
        $(#[$about:meta])*
        fn $name:ident($self:ident $(, $argument:ident: $type:ty)*) $body:block
    )+) => {$(
        $(#[$about])*
        #[must_use]
        pub fn $name(mut $self $(, $argument: $type)*) -> Self {
            $body
            $self
        }
    )+};
    (@none $($rest:tt)*) => {};
    (@into $field:ident: $type:ty =) => {
        $crate::settings! { @set $field: impl Into<$type>, $field.into() }
    };
    (@some $field:ident: $type:ty = $inner:ty) => {
        $crate::settings! { @set $field: $inner, Some($field) }
    };
    (@$field:ident: $type:ty) => {
        $crate::settings! { @set $field: $type, $field }
    };
    (@set $field:ident: $type:ty, $value:expr) => {
        #[doc = concat!(
            "Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").",
        )]
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $value;
            self
        }
    };
}
