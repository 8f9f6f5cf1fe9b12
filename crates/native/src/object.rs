//! A JSON object as the pairs it came in: one pass, values left raw, nothing unknown lost.
//!
//! Values stay [`RawValue`]s, so a number of 23 digits, an escape or 200 000 levels of nesting inside a member that
//! nobody reads cost nothing and change nothing. Getters answer `None` for a missing member and for one of another type alike:
//! no member of a peer's frame is worth an error.

use std::borrow::Cow;
use std::fmt;

use interline_model::{Json, Text};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::string;

/// The text is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is not JSON.
    #[error("not JSON, from line {line} column {column} on")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// It is JSON (`null`, an array, a number …), and no object.
    #[error("JSON, but not an object")]
    NotAnObject,
}

/// A JSON object inside the text of a frame.
#[derive(Clone)]
pub struct Object<'a> {
    frame: &'a Text,
    members: Pairs<'a>,
}

/// Pairs in the order they came. On the heap: kept inside the object they would save an allocation, and be copied at each step to the frame's
/// own type, which costs twice as much (docs/benchmarks.md).
type Pairs<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// The commonest frames have four to six members.
const USUAL: usize = 6;

impl<'a> Object<'a> {
    /// Reads a whole frame.
    ///
    /// # Errors
    /// [`Malformed`] if the text is not one JSON object.
    pub fn parse(frame: &'a Text) -> Result<Self, Malformed> {
        Self::read(frame, frame)
    }

    /// Reads an object inside `frame`; `None` if `raw` is another type.
    #[must_use]
    pub fn inside(frame: &'a Text, raw: &'a RawValue) -> Option<Self> {
        raw.get().starts_with('{').then(|| Self::read(frame, raw.get()).ok()).flatten()
    }

    fn read(frame: &'a Text, text: &'a str) -> Result<Self, Malformed> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let mut object = Self { frame, members: Pairs::with_capacity(USUAL) };
        match Members(&mut object.members).deserialize(&mut deserializer).and_then(|()| deserializer.end()) {
            Ok(()) => Ok(object),
            Err(error) if error.is_data() => Err(Malformed::NotAnObject),
            Err(error) => Err(Malformed::Syntax { line: error.line(), column: error.column() }),
        }
    }

    /// The text of the frame that the object is, or is part of.
    #[must_use]
    pub fn frame(&self) -> &'a Text {
        self.frame
    }

    /// The members in the order they came, repeats included.
    pub fn members(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.members.iter().map(|(name, value)| (name.as_ref(), *value))
    }

    /// A member as it came. Of repeated members the last counts, as for every common JSON parser.
    #[must_use]
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.members.iter().rev().find(|(member, _)| member == name).map(|(_, value)| *value)
    }

    /// A string member. Lone surrogates become U+FFFD.
    #[must_use]
    pub fn str(&self, name: &str) -> Option<Text> {
        string::text(self.frame, self.raw(name)?)
    }

    /// A string member, without counting a reference.
    #[must_use]
    pub fn cow(&self, name: &str) -> Option<Cow<'a, str>> {
        string::cow(self.raw(name)?)
    }

    /// A boolean member.
    #[must_use]
    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.raw(name)?.get() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// Whether a member is there and neither `null`, `false`, zero nor empty: what loosely typed peers take for true.
    #[must_use]
    pub fn truthy(&self, name: &str) -> bool {
        self.raw(name).is_some_and(is_truthy)
    }

    /// A member that is a whole number, not negative, in whatever notation.
    #[must_use]
    pub fn u64(&self, name: &str) -> Option<u64> {
        whole_number(self.raw(name)?)
    }

    /// A number member.
    #[must_use]
    pub fn f64(&self, name: &str) -> Option<f64> {
        self.raw(name)?.get().parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// A member as JSON, whatever its type; `None` for `null`, too.
    #[must_use]
    pub fn json(&self, name: &str) -> Option<Json> {
        self.raw(name).filter(|raw| raw.get() != "null").map(|raw| Json::slice_of(self.frame, raw))
    }

    /// An object member.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Self> {
        Self::inside(self.frame, self.raw(name)?)
    }

    /// The elements of an array member; none if it is another type.
    #[must_use]
    pub fn array(&self, name: &str) -> Vec<&'a RawValue> {
        self.raw(name).map(elements).unwrap_or_default()
    }

    /// Those elements of an array member that are objects.
    pub fn objects(&self, name: &str) -> impl Iterator<Item = Self> + use<'a> {
        let frame = self.frame;
        self.array(name).into_iter().filter_map(move |raw| Self::inside(frame, raw))
    }

    /// Those elements of an array member that are strings.
    pub fn strs(&self, name: &str) -> impl Iterator<Item = Text> + use<'a> {
        let frame = self.frame;
        self.array(name).into_iter().filter_map(move |raw| string::text(frame, raw))
    }
}

impl fmt::Debug for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.members()).finish()
    }
}

/// The elements of an array; none if `raw` is another type.
pub(crate) fn elements(raw: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

/// See [`Object::truthy`].
pub(crate) fn is_truthy(raw: &RawValue) -> bool {
    match raw.get() {
        "null" | "false" | "\"\"" => false,
        text if text.starts_with('"') => true,
        text => match text.strip_prefix(['[', '{']).and_then(|rest| rest.strip_suffix([']', '}'])) {
            Some(inside) => !inside.trim().is_empty(),
            None => text.parse() != Ok(0.0_f64),
        },
    }
}

pub(crate) fn whole_number(raw: &RawValue) -> Option<u64> {
    /// Beyond it a double does not hold every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let text = raw.get();
    text.parse().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        // In range and whole, so the conversion is exact.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
    })
}

/// Some members of the object `raw` in one pass, without a list of all of them. For the frames that come by the thousand.
pub(crate) fn pick<'a, const N: usize>(raw: &'a RawValue, names: [&str; N]) -> [Option<&'a RawValue>; N] {
    serde_json::Deserializer::from_str(raw.get()).deserialize_map(Pick(names)).unwrap_or([None; N])
}

/// The name of a member as it came, quotes and escapes included, made readable.
fn name(raw: &RawValue) -> Cow<'_, str> {
    string::cow(raw).unwrap_or_default()
}

/// Collects all pairs of a map.
struct Members<'m, 'de>(&'m mut Pairs<'de>);

impl<'de> DeserializeSeed<'de> for Members<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        // Names are taken raw as well: serde_json would refuse one that holds a lone surrogate.
        while let Some((member, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            self.0.push((name(member), value));
        }
        Ok(())
    }
}

/// Collects the named values of a map.
struct Pick<'n, const N: usize>([&'n str; N]);

impl<'de, const N: usize> Visitor<'de> for Pick<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut picked = [None; N];
        while let Some((member, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            let member = name(member);
            for (slot, wanted) in picked.iter_mut().zip(self.0) {
                if member == wanted {
                    *slot = Some(value);
                }
            }
        }
        Ok(picked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_bytes_and_the_last_repeat_counts() {
        let frame = Text::from_static(r#"{"b":12345678901234567890123,"a":1e400,"b":"\ud83d","\u0061b":{"c":[1 ,2]}}"#);
        let object = Object::parse(&frame).unwrap();
        let members: Vec<_> = object.members().map(|(name, value)| (name.to_owned(), value.get().to_owned())).collect();
        let want = [("b", "12345678901234567890123"), ("a", "1e400"), ("b", r#""\ud83d""#), ("ab", r#"{"c":[1 ,2]}"#)];
        assert_eq!(members, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(object.str("b").as_deref(), Some("\u{fffd}"));
        assert_eq!(object.object("ab").unwrap().array("c").len(), 2);
    }

    #[test]
    fn a_name_with_half_a_character_is_survived() {
        let frame = Text::from_static(r#"{"\ud83d":1,"type":"x"}"#);
        assert_eq!(Object::parse(&frame).unwrap().str("type").as_deref(), Some("x"));
    }

    #[test]
    fn another_type_is_none() {
        let frame = Text::from_static(r#"{"s":"x","t":true,"n":3,"f":2.0,"neg":-1,"o":{},"a":[{},1,"y"],"z":null}"#);
        let object = Object::parse(&frame).unwrap();
        assert_eq!((object.str("n"), object.str("z"), object.str("missing")), (None, None, None));
        assert_eq!((object.bool("t"), object.bool("s")), (Some(true), None));
        assert_eq!((object.u64("n"), object.u64("f"), object.u64("neg"), object.u64("s")), (Some(3), Some(2), None, None));
        assert_eq!((object.f64("f"), object.f64("s")), (Some(2.0), None));
        assert!(object.object("o").is_some() && object.object("a").is_none());
        assert_eq!((object.objects("a").count(), object.strs("a").count(), object.array("o").len()), (1, 1, 0));
        assert_eq!((object.json("z"), object.json("o").unwrap().as_str()), (None, "{}"));
    }

    #[test]
    fn truth_is_that_of_loosely_typed_peers() {
        for (json, truth) in [
            ("null", false),
            ("false", false),
            ("true", true),
            ("0", false),
            ("-0.0", false),
            ("0e5", false),
            ("1", true),
            ("\"\"", false),
            ("\"0\"", true),
            ("[]", false),
            ("[ ]", false),
            ("{}", false),
            ("{ }", false),
            ("[0]", true),
            ("[[]]", true),
            ("[ [] ]", true),
            (r#"{"a":{}}"#, true),
            (r#"{"":[]}"#, true),
        ] {
            let raw = RawValue::from_string(json.to_owned()).unwrap();
            assert_eq!(is_truthy(&raw), truth, "{json}");
        }
    }

    #[test]
    fn what_is_no_object_says_so() {
        for text in ["null", "[]", "3", "\"x\"", "true", " null "] {
            assert_eq!(Object::parse(&Text::from(text)).unwrap_err(), Malformed::NotAnObject, "{text}");
        }
        for text in ["", " ", "{", "{\"a\":}", "{} {}", "nul", "{1:2}", "{\"a\":\"\u{1}\"}"] {
            assert!(matches!(Object::parse(&Text::from(text)), Err(Malformed::Syntax { .. })), "{text}");
        }
    }

    #[test]
    fn depth_is_no_matter() {
        let deep = format!("{{\"type\":\"x\",\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(Object::parse(&Text::from(deep)).unwrap().str("type").as_deref(), Some("x"));
    }

    #[test]
    fn picks_in_one_pass() {
        let raw = RawValue::from_string(r#"{"a":1,"x":2,"b":"t","a":3}"#.to_owned()).unwrap();
        let picked = pick(&raw, ["a", "b", "c"]).map(|raw| raw.map(RawValue::get));
        assert_eq!(picked, [Some("3"), Some("\"t\""), None]);
        assert_eq!(pick(&RawValue::from_string("[1]".to_owned()).unwrap(), ["a"]).map(|raw| raw.is_some()), [false]);
    }
}
