//! The keys of a plugin's file, as they are written. Nothing here is checked beyond its type;
//! `compile.rs` and the files that it calls do that.

use core::fmt;
use core::marker::PhantomData;
use std::collections::BTreeMap;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Read before the rest (`compile.rs`), because another format has other keys.
    #[serde(rename = "format")]
    pub(super) _format: i64,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) supports: String,
    pub(super) bits: Option<Vec<i64>>,
    pub(super) note: NoteTable,
    #[serde(default)]
    pub(super) reads: Vec<ReadTable>,
    #[serde(default, rename = "task")]
    pub(super) tasks: BTreeMap<String, TaskTable>,
    #[serde(default, rename = "point")]
    pub(super) points: Vec<PointTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoteTable {
    pub(super) owner: String,
    #[serde(rename = "type")]
    pub(super) kind: i64,
    pub(super) size: i64,
    #[serde(default)]
    pub(super) shown: Vec<String>,
    pub(super) fields: BTreeMap<String, NoteFieldTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoteFieldTable {
    pub(super) offset: i64,
    pub(super) size: i64,
    pub(super) accept: Option<Vec<i64>>,
    pub(super) min: Option<i64>,
    pub(super) max: Option<i64>,
}

/// A number, or a field of the note.
pub(super) type Number = Or<i64, NoteNumber>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoteNumber {
    pub(super) note: String,
    pub(super) most: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadTable {
    pub(super) name: String,
    pub(super) argument: Option<i64>,
    pub(super) register: Option<String>,
    pub(super) at: Option<String>,
    pub(super) from: Option<String>,
    pub(super) symbol: Option<String>,
    pub(super) address: Option<i64>,
    pub(super) offset: Option<Number>,
    pub(super) len: Option<Number>,
    #[serde(default)]
    pub(super) may_fail: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskTable {
    pub(super) tid: Value,
    pub(super) pid: Option<Value>,
    pub(super) name: Option<Or<String, NameTable>>,
    pub(super) policy: Choice,
    pub(super) unless_zero: Option<ValueTable>,
    pub(super) otherwise: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NameTable {
    pub(super) read: String,
    #[serde(default)]
    pub(super) offset: i64,
    pub(super) len: Option<i64>,
}

/// The name of a policy or of a scheduler, or where its number is.
pub(super) type Choice = Or<String, ChoiceTable>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChoiceTable {
    pub(super) read: Option<String>,
    pub(super) note: Option<String>,
    pub(super) offset: Option<i64>,
    pub(super) size: Option<i64>,
    pub(super) values: Option<Vec<String>>,
}

/// A number, or where it is.
pub(super) type Value = Or<i64, ValueTable>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ValueTable {
    pub(super) read: Option<String>,
    pub(super) note: Option<String>,
    pub(super) offset: Option<i64>,
    pub(super) size: Option<i64>,
    pub(super) signed: Option<bool>,
    pub(super) plus: Option<PlusTable>,
    pub(super) unit_ns: Option<i64>,
    pub(super) per_second: Option<Number>,
    pub(super) subtract_from: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlusTable {
    pub(super) read: String,
    #[serde(default)]
    pub(super) offset: i64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PointTable {
    pub(super) symbol: String,
    #[serde(default)]
    pub(super) reads: Vec<ReadTable>,
    pub(super) filter: Option<FilterTable>,
    pub(super) event: EventTable,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilterTable {
    pub(super) read: String,
    pub(super) values: Vec<i64>,
}

#[expect(clippy::large_enum_variant, reason = "at most 32 exist, while a file is checked")]
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum EventTable {
    SetScheduler {
        thread: String,
        target: String,
        policy: Choice,
        flags: Option<Value>,
        nice: Option<Value>,
        priority: Option<Value>,
        runtime_ns: Option<Value>,
        deadline_ns: Option<Value>,
        period_ns: Option<Value>,
        utility: Option<Value>,
    },
    Yield {
        thread: String,
    },
    Sleep {
        thread: String,
        clock: Option<Value>,
        absolute: Or<bool, ValueTable>,
        ns: Value,
    },
    Abort {
        thread: String,
    },
    ChooseScheduler {
        thread: String,
        scheduler: Choice,
        priority: Option<Value>,
        processors: Option<Value>,
    },
    Exit {
        thread: String,
        status: Option<Value>,
        code: Option<Value>,
    },
}

/// A constant, or a table. Unlike an untagged enum of serde, it says which key of the table is
/// wrong.
#[derive(Debug)]
pub(super) enum Or<C, T> {
    Constant(C),
    Table(T),
}

impl<'de, C: Deserialize<'de>, T: Deserialize<'de>> Deserialize<'de> for Or<C, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either(PhantomData))
    }
}

struct Either<C, T>(PhantomData<(C, T)>);

impl<'de, C: Deserialize<'de>, T: Deserialize<'de>> Visitor<'de> for Either<C, T> {
    type Value = Or<C, T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a constant, or a table that says where it is read")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        C::deserialize(value.into_deserializer()).map(Or::Constant)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        C::deserialize(value.into_deserializer()).map(Or::Constant)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        C::deserialize(value.into_deserializer()).map(Or::Constant)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Or::Table)
    }
}
