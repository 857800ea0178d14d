//! The estimated size of a command, by which room in the log is reserved, compared with what is logged.
//!
//! serde generates the commands from their own definitions, with every variant inside of them, so a new command or
//! field is covered without a change here.

use codeq_core::codec;
use codeq_core::command::{Claim, Command, EnqueueByValue, LeaseAction, Selector, UnderLease};
use codeq_engine::request::Request;
use serde::de::value::Error;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, SeqAccess,
    VariantAccess, Visitor,
};

/// How to generate the values of a command.
#[derive(Clone, Copy)]
struct Style {
    /// Bytes per text.
    text: usize,
    /// Items per list.
    items: usize,
    /// Whether optional values are present.
    present: bool,
}

/// Generates values. `choices` has the variant of each enum on the way and how many there are; a new one starts at 0.
struct Maker<'a> {
    style: Style,
    choices: &'a mut Vec<(u32, u32)>,
    at: &'a mut usize,
}

impl Maker<'_> {
    fn again(&mut self) -> Maker<'_> {
        Maker { style: self.style, choices: self.choices, at: self.at }
    }
}

/// The longest form of each number.
macro_rules! numbers {
    ($($method:ident $visit:ident $value:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Maker<'_> {
    type Error = Error;

    fn is_human_readable(&self) -> bool {
        false
    }

    numbers! {
        deserialize_bool visit_bool true;
        deserialize_i8 visit_i8 i8::MIN;
        deserialize_i16 visit_i16 i16::MIN;
        deserialize_i32 visit_i32 i32::MIN;
        deserialize_i64 visit_i64 i64::MIN;
        deserialize_i128 visit_i128 i128::MIN;
        deserialize_u8 visit_u8 u8::MAX;
        deserialize_u16 visit_u16 u16::MAX;
        deserialize_u32 visit_u32 u32::MAX;
        deserialize_u64 visit_u64 u64::MAX;
        deserialize_u128 visit_u128 u128::MAX;
        deserialize_f32 visit_f32 f32::MAX;
        deserialize_f64 visit_f64 f64::MAX;
        deserialize_char visit_char char::MAX;
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom("a type that does not say what it is"))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string("x".repeat(self.style.text))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_byte_buf(vec![b'x'; self.style.text])
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.style.present { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.style.items;
        visitor.visit_seq(Items { maker: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Items { maker: self, left })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Items { maker: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Items { maker: self, left: fields.len() })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.choices.len() == *self.at {
            self.choices.push((0, variants.len() as u32));
        }
        visitor.visit_enum(self)
    }

    serde::forward_to_deserialize_any! { map identifier ignored_any }
}

struct Items<'a> {
    maker: Maker<'a>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(self.maker.again()).map(Some)
    }
}

impl<'a, 'de> EnumAccess<'de> for Maker<'a> {
    type Error = Error;
    type Variant = Maker<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Maker<'a>), Error> {
        let (variant, _) = self.choices[*self.at];
        *self.at += 1;
        Ok((seed.deserialize(variant.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for Maker<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Items { maker: self, left })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Items { maker: self, left: fields.len() })
    }
}

/// Calls `each` with a command of every kind and with every choice inside of it. Returns how many there were.
fn every_command(style: Style, mut each: impl FnMut(&Command)) -> usize {
    let (mut choices, mut made) = (Vec::new(), 0);
    loop {
        let mut at = 0;
        let maker = Maker { style, choices: &mut choices, at: &mut at };
        each(&Command::deserialize(maker).unwrap());
        made += 1;
        assert!(made < 10_000, "too many choices to try them all");
        // Next combination: advance the last choice that has another variant.
        while choices.pop_if(|(variant, count)| *variant + 1 == *count).is_some() {}
        match choices.last_mut() {
            Some((variant, _)) => *variant += 1,
            None => return made,
        }
    }
}

/// Bytes that a command takes in the log.
fn logged(command: &Command) -> usize {
    let mut bytes = Vec::new();
    codec::push_command(command, &mut bytes);
    bytes.len()
}

/// The parts of a command that have a size of their own.
fn parts(command: &Command) -> usize {
    match command {
        Command::Enqueue(enqueue) => enqueue.tasks.len(),
        Command::EnqueueByValue(EnqueueByValue { enqueue, fingerprints }) => {
            enqueue.tasks.len() + fingerprints.len()
        }
        Command::Claim(Claim { from: Selector::Commands(names), .. }) => names.len(),
        Command::Submit(submit) => submit.artifacts.len(),
        Command::UnderLease(UnderLease { action, .. }) => match &**action {
            LeaseAction::Submit(submit) => submit.artifacts.len(),
            _ => 0,
        },
        _ => 0,
    }
}

#[test]
fn no_command_takes_more_in_the_log_than_is_set_aside_for_it() {
    // Longer texts than the constants in the estimate could cover by chance.
    for (text, items, present) in
        [(3_000, 3, true), (3_000, 1, false), (1, 300, true), (0, 0, false)]
    {
        let made = every_command(Style { text, items, present }, |command| {
            let (size, logged) = (Request::detached(command.clone()).bytes(), logged(command));
            let most = logged + 256 * (1 + parts(command));
            let kind: String = format!("{command:?}").chars().take(80).collect();
            assert!(size >= logged, "{size} bytes are set aside for {logged}: {kind}");
            assert!(size <= most, "{size} bytes are set aside for {logged}: {kind}");
        });
        assert!(made >= 30, "{made}");
    }
}
