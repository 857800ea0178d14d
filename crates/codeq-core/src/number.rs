//! Types for numbers that could be mistaken for one another. They are encoded as plain integers.

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($number:ident)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $number);

        impl $name {
            /// The highest number.
            pub const MAX: $name = $name($number::MAX);

            /// The following number.
            #[must_use]
            pub fn next(self) -> $name {
                $name(self.0.saturating_add(1))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}
