//! The four shapes of a raw configuration: a value, a section, a list and named entries, each with
//! its place in the file.
//!
//! A value of the wrong type must not end the reading, because all problems are to be reported at
//! once. So a [`Slot`] takes whatever is written, reads it at once into its final type and keeps
//! either that or the complaint. A key without a value (`token:`) is a complaint too, never the
//! default: whoever wrote the key meant something by it.
//!
//! Only the shape around the values (unknown keys, a list where keys belong) still ends the reading
//! at the first problem.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::problem::{Place, Report};

/// A value of any kind, as written.
pub enum Node {
    Nothing,
    Bool(bool),
    Whole(u64),
    Number(f64),
    Text(String),
    List(Vec<Placed<Node>>),
    Keys(Vec<Entry>),
}

/// A key and a value under it.
pub struct Entry {
    pub at: Place,
    pub key: String,
    pub node: Node,
}

/// Why a value is not usable; `at` where that is not the beginning of the value.
pub struct Fault {
    pub at: Option<Place>,
    pub text: String,
}

impl From<String> for Fault {
    fn from(text: String) -> Fault {
        Fault { at: None, text }
    }
}

impl From<&str> for Fault {
    fn from(text: &str) -> Fault {
        Fault::from(text.to_owned())
    }
}

/// A type that one value of the file is read into.
pub trait Leaf: Sized {
    /// The value, or what is wrong with it. The complaint must not repeat the value.
    fn read(node: Node) -> Result<Self, Fault>;

    /// Its JSON Schema.
    fn schema() -> Schema;
}

/// A value that may be absent; read, or complained about.
pub struct Slot<T>(Option<(Place, Result<T, Fault>)>);

/// A value with its place.
pub struct Placed<T> {
    pub at: Place,
    pub value: T,
}

impl<T> Slot<T> {
    /// The value, if it is written and usable; the complaint goes to `report`.
    pub fn take(self, report: &mut Report) -> Option<Placed<T>> {
        let (at, read) = self.0?;
        match read {
            Ok(value) => Some(Placed { at, value }),
            Err(fault) => {
                report.problem(fault.at.unwrap_or(at), fault.text);
                None
            }
        }
    }

    /// The value and its place, without a complaint.
    pub fn peek(&self) -> Option<(Place, &T)> {
        let (at, read) = self.0.as_ref()?;
        Some((*at, read.as_ref().ok()?))
    }

    /// Whether the key is there, whatever stands under it.
    pub fn is_written(&self) -> bool {
        self.0.is_some()
    }

    /// As [`Slot::take`], with a default.
    pub fn or(self, default: T, report: &mut Report) -> T {
        self.take(report).map_or(default, |placed| placed.value)
    }

    /// As [`Slot::take`], for a key that must be there in the section that begins at `section`.
    pub fn must(self, key: &str, section: Place, report: &mut Report) -> Option<Placed<T>> {
        if self.0.is_none() {
            report.problem(section, format!("`{key}` is missing; it has no default"));
        }
        self.take(report)
    }
}

/// A section of keys.
pub struct Part<T>(pub Option<Placed<T>>);

impl<T: Default> Part<T> {
    /// The section and its place, or an empty one.
    pub fn or_empty(self) -> Placed<T> {
        self.0.unwrap_or(Placed {
            at: Place::START,
            value: T::default(),
        })
    }
}

/// A list.
pub struct List<T>(pub Option<Placed<Vec<T>>>);

/// Keys that the operator chooses, in the order written.
pub struct Named<T>(Option<Vec<Pair<T>>>);

/// A key and what stands under it.
pub type Pair<T> = (Placed<String>, T);

impl<T> Named<T> {
    /// The entries, or none.
    pub fn entries(self) -> Vec<Pair<T>> {
        self.0.unwrap_or_default()
    }
}

/// A key whose meaning this version does not have: where it is, and whether it says anything.
#[derive(Default)]
pub struct Later(pub Option<Placed<bool>>);

macro_rules! absent_by_default {
    ($($shape:ident<$t:ident>),*) => { $(
        impl<$t> Default for $shape<$t> {
            fn default() -> Self { $shape(None) }
        }
    )* };
}
absent_by_default!(Slot<T>, Part<T>, List<T>, Named<T>);

impl<'de, T: Leaf> Deserialize<'de> for Slot<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let node = Spanned::<Node>::deserialize(d)?;
        let read = match node.value {
            Node::Nothing => Err("nothing is written here; give a value or remove the key".into()),
            written => T::read(written),
        };
        Ok(Slot(Some((node.referenced.into(), read))))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Part<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        placed(d).map(|part| Part(Some(part)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        placed(d).map(|list| List(Some(list)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Pairs::deserialize(d).map(|pairs| Named(Some(pairs.0)))
    }
}

impl<'de> Deserialize<'de> for Later {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Placed { at, value } = placed::<Node, D>(d)?;
        let says_something = match value {
            Node::Nothing => false,
            Node::List(items) => !items.is_empty(),
            Node::Keys(entries) => !entries.is_empty(),
            _ => true,
        };
        Ok(Later(Some(Placed {
            at,
            value: says_something,
        })))
    }
}

fn placed<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<Placed<T>, D::Error> {
    let spanned = Spanned::<T>::deserialize(d)?;
    Ok(Placed {
        at: spanned.referenced.into(),
        value: spanned.value,
    })
}

struct Pairs<T>(Vec<Pair<T>>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct PairsVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("struct of named entries")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    let key = Placed {
                        at: key.referenced.into(),
                        value: key.value,
                    };
                    pairs.push((key, map.next_value()?));
                }
                Ok(Pairs(pairs))
            }
        }

        d.deserialize_map(PairsVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct NodeVisitor;

        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Nothing)
            }

            fn visit_bool<E>(self, v: bool) -> Result<Node, E> {
                Ok(Node::Bool(v))
            }

            fn visit_u64<E>(self, v: u64) -> Result<Node, E> {
                Ok(Node::Whole(v))
            }

            fn visit_i64<E>(self, v: i64) -> Result<Node, E> {
                Ok(Node::Number(v as f64))
            }

            fn visit_f64<E>(self, v: f64) -> Result<Node, E> {
                Ok(Node::Number(v))
            }

            fn visit_str<E>(self, v: &str) -> Result<Node, E> {
                Ok(Node::Text(v.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element::<Spanned<Node>>()? {
                    items.push(Placed {
                        at: item.referenced.into(),
                        value: item.value,
                    });
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    entries.push(Entry {
                        at: key.referenced.into(),
                        key: key.value,
                        node: map.next_value()?,
                    });
                }
                Ok(Node::Keys(entries))
            }
        }

        d.deserialize_any(NodeVisitor)
    }
}

impl<T: Leaf> JsonSchema for Slot<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Value".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        T::schema()
    }
}

impl<T: JsonSchema> JsonSchema for Part<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: JsonSchema> JsonSchema for List<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "List".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "items": generator.subschema_for::<T>() })
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Named".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "additionalProperties": generator.subschema_for::<T>() })
    }
}
