//! The two macros behind the frame tables: views of an object's documented members, and the kinds of one plane.

/// Declares views: each a newtype around an [`Object`](crate::Object), with a getter per documented member. A getter answers
/// `None` (or no elements) for a missing member and for one of another type; members that no table names are in `object()`.
macro_rules! views {
    (@type str) => { Option<interline_model::Text> };
    (@type bool) => { Option<bool> };
    (@type u64) => { Option<u64> };
    (@type f64) => { Option<f64> };
    (@type json) => { Option<interline_model::Json> };
    (@type object) => { Option<$crate::object::Object<'a>> };
    (@type array) => { Vec<&'a serde_json::value::RawValue> };
    (@member $field:ident) => { stringify!($field) };
    (@member $field:ident $member:literal) => { $member };
    ($( $(#[$doc:meta])* $name:ident { $( $kind:ident $field:ident $(= $member:literal)?; )* } )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<'a>(pub(crate) $crate::object::Object<'a>);

        impl<'a> $name<'a> {
            /// All members.
            #[must_use]
            pub fn object(&self) -> &$crate::object::Object<'a> {
                &self.0
            }

            $(
                #[doc = concat!("Member `", views!(@member $field $($member)?), "`.")]
                #[must_use]
                pub fn $field(&self) -> views!(@type $kind) {
                    self.0.$kind(views!(@member $field $($member)?))
                }
            )*
        }
    )* };
}

/// Declares a plane: an enum of views, found by `type` and, where one is given, `subtype`; and the enum of its kinds, which tables are keyed on.
macro_rules! plane {
    (@subtype) => { _ };
    (@subtype $subtype:literal) => { $subtype };
    ($(#[$doc:meta])* $plane:ident, $kinds:ident { $( $(#[$vdoc:meta])* $variant:ident = $kind:literal $(/ $subtype:literal)?; )* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub enum $plane<'a> {
            $( $(#[$vdoc])* $variant($variant<'a>), )*
        }

        impl<'a> $plane<'a> {
            /// The view for this `type` and `subtype`, or the object back.
            pub(crate) fn read(kind: &str, subtype: &str, object: $crate::object::Object<'a>) -> Result<Self, $crate::object::Object<'a>> {
                match (kind, subtype) {
                    $( ($kind, plane!(@subtype $($subtype)?)) => Ok(Self::$variant($variant(object))), )*
                    _ => Err(object),
                }
            }

            /// The kind as the tables name it: `type`, or `type/subtype`.
            #[must_use]
            pub fn name(&self) -> &'static str {
                self.kind().name()
            }

            /// Which kind it is.
            #[must_use]
            pub fn kind(&self) -> $kinds {
                match self {
                    $( Self::$variant(_) => $kinds::$variant, )*
                }
            }

            /// All members.
            #[must_use]
            pub fn object(&self) -> &$crate::object::Object<'a> {
                match self {
                    $( Self::$variant(view) => view.object(), )*
                }
            }
        }

        #[doc = concat!("The kinds of [`", stringify!($plane), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kinds {
            $( $(#[$vdoc])* $variant, )*
        }

        impl $kinds {
            /// All of them, in the order of the tables.
            pub const ALL: &[Self] = &[ $( Self::$variant ),* ];

            /// `type`, or `type/subtype`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => concat!($kind $(, "/", $subtype)?), )*
                }
            }
        }
    };
}

pub(crate) use plane;
pub(crate) use views;
