//! The ELF note by which a described guest is recognized, and the numbers that the file may take
//! from it. Every field has a range, so that what follows from a note is checked with the file.

use super::error::{Fault, ensure};
use super::file::{NoteFieldTable, NoteTable, Number as NumberTable, Or};
use super::limits;
use crate::symbols::image::Image;

/// The rules of a note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NoteRule {
    owner: String,
    kind: u32,
    size: usize,
    fields: Vec<NoteField>,
    /// Indices of the fields that the guest's name shows.
    shown: Vec<usize>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct NoteField {
    name: String,
    offset: usize,
    size: usize,
    accept: Option<Vec<u64>>,
    min: u64,
    max: u64,
}

/// A number that the file states, or that is in the note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Number {
    Fixed(i64),
    /// A field of the note, at most `most`.
    Note {
        field: usize,
        most: u64,
    },
}

impl NoteRule {
    /// Checks the table.
    pub(super) fn compile(table: NoteTable) -> Result<Self, Fault> {
        let NoteTable { owner, kind, size, shown, fields } = table;
        let is_owner = (1..=limits::NAME).contains(&owner.len()) && limits::is_printable(&owner);
        ensure(
            is_owner,
            "note.owner",
            || format!("{owner:?} is not 1 to {} printable characters", limits::NAME),
            "give the name in the note, without its terminating zero",
        )?;
        let kind = u32::try_from(kind).map_err(|_| {
            let problem = format!("{kind} is not a number of 32 bits");
            Fault::new("note.type", problem, "give the type in the note")
        })?;
        let bytes = usize::try_from(size).ok().filter(|size| (1..=limits::NOTE).contains(size));
        let bytes = bytes.ok_or_else(|| {
            let problem = format!("{size} is not 1 to {}", limits::NOTE);
            Fault::new("note.size", problem, "give the bytes of the note's contents")
        })?;
        ensure(
            (1..=limits::FIELDS).contains(&fields.len()),
            "note.fields",
            || format!("{} fields; 1 to {} are possible", fields.len(), limits::FIELDS),
            "describe the version at least",
        )?;
        let fields: Vec<_> = fields
            .into_iter()
            .map(|(name, field)| NoteField::compile(name, &field, bytes))
            .collect::<Result<_, _>>()?;
        ensure(
            fields.iter().any(|field| field.accept.is_some()),
            "note.fields",
            || "no field says which versions are accepted".to_owned(),
            "give the version's field `accept = [...]`",
        )?;
        let rule = Self { owner, kind, size: bytes, fields, shown: Vec::new() };
        let shown =
            shown.iter().map(|name| rule.find(name, "note.shown")).collect::<Result<_, _>>();
        Ok(Self { shown: shown?, ..rule })
    }

    fn find(&self, name: &str, key: &str) -> Result<usize, Fault> {
        self.fields.iter().position(|field| field.name == name).ok_or_else(|| {
            let problem = format!("the note has no field {name:?}");
            Fault::new(key, problem, "name one of [note.fields]")
        })
    }

    /// A number that may come from the note, within `range`.
    pub(super) fn number(
        &self,
        table: &NumberTable,
        key: &str,
        range: core::ops::RangeInclusive<i64>,
    ) -> Result<Number, Fault> {
        let (least, greatest) = (*range.start(), *range.end());
        match table {
            Or::Constant(number) => {
                ensure(
                    range.contains(number),
                    key,
                    || format!("{number} is not {least} to {greatest}"),
                    "give a number in this range",
                )?;
                Ok(Number::Fixed(*number))
            }
            Or::Table(table) => {
                let index = self.find(&table.note, key)?;
                let most = table.most.map_or(Ok(u64::MAX), |most| {
                    let problem = || format!("most = {most} is negative");
                    u64::try_from(most).map_err(|_| Fault::new(key, problem(), "give a limit"))
                })?;
                let (min, max) = self.range(index, most);
                ensure(
                    i128::from(min) >= i128::from(least) && i128::from(max) <= i128::from(greatest),
                    key,
                    || {
                        format!(
                            "the note's field {} may be {min} to {max}; only {least} to {greatest} is possible here",
                            table.note
                        )
                    },
                    "give the field `accept`, or `min` and `max`",
                )?;
                Ok(Number::Note { field: index, most })
            }
        }
    }

    /// The index of a field, for values.
    pub(super) fn field(&self, name: &str, key: &str) -> Result<usize, Fault> {
        self.find(name, key)
    }

    fn range(&self, field: usize, most: u64) -> (u64, u64) {
        let Some(field) = self.fields.get(field) else { return (0, 0) };
        let accept = field.accept.as_deref();
        let min = accept.and_then(|all| all.iter().min().copied()).unwrap_or(field.min);
        let max = accept.and_then(|all| all.iter().max().copied()).unwrap_or(field.max);
        (min.min(most), max.min(most))
    }

    /// The least and the greatest that a number may be.
    pub(super) fn range_of(&self, number: &Number) -> (i64, i64) {
        match number {
            Number::Fixed(number) => (*number, *number),
            Number::Note { field, most } => {
                let (min, max) = self.range(*field, *most);
                let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
                (signed(min), signed(max))
            }
        }
    }

    /// Whether the image has a note of this owner and type.
    pub(super) fn is_in(&self, image: &Image<'_>) -> bool {
        image.note_of(self.owner.as_bytes(), self.kind).is_ok_and(|note| note.is_some())
    }

    /// The fields of this image's note.
    ///
    /// # Errors
    /// What the image lacks.
    pub(super) fn values(&self, image: &Image<'_>) -> Result<Vec<u64>, String> {
        let note = image.note_of(self.owner.as_bytes(), self.kind).map_err(|e| e.to_string())?;
        let note = note.ok_or_else(|| {
            format!(
                "the image has no note of {} with type {}; keep sections .note.* when linking",
                self.owner, self.kind
            )
        })?;
        if note.len() != self.size {
            return Err(format!("its note has {} bytes, not {}", note.len(), self.size));
        }
        self.fields.iter().map(|field| field.value(note)).collect()
    }

    /// The fields that the guest's name shows: `11.2.0`; empty if none is shown.
    pub(super) fn shown(&self, values: &[u64]) -> String {
        let shown = self.shown.iter().filter_map(|field| values.get(*field));
        shown.map(u64::to_string).collect::<Vec<_>>().join(".")
    }
}

impl NoteField {
    fn compile(name: String, table: &NoteFieldTable, note: usize) -> Result<Self, Fault> {
        let key = format!("note.fields.{name}");
        limits::identifier(&name, &key)?;
        let size = usize::try_from(table.size).ok().filter(|size| matches!(size, 1 | 2 | 4 | 8));
        let offset = usize::try_from(table.offset).ok();
        let place = size
            .zip(offset)
            .filter(|(size, offset)| offset.checked_add(*size).is_some_and(|end| end <= note));
        let Some((size, offset)) = place else {
            let problem = format!(
                "{} bytes at {} are not 1, 2, 4 or 8 within the note's {note}",
                table.size, table.offset
            );
            return Err(Fault::new(key, problem, "give `offset` and `size` of the field"));
        };
        let positive = |number: i64| {
            let problem = || format!("{number} is negative");
            u64::try_from(number)
                .map_err(|_| Fault::new(&key, problem(), "fields of a note are not signed"))
        };
        let accept = table.accept.as_ref().map(|all| all.iter().map(|n| positive(*n)).collect());
        let accept: Option<Vec<u64>> = accept.transpose()?;
        ensure(
            accept.as_ref().is_none_or(|all| (1..=limits::VALUES).contains(&all.len())),
            &key,
            || format!("`accept` has not 1 to {} numbers", limits::VALUES),
            "list the accepted numbers",
        )?;
        let has_range = table.min.is_some() || table.max.is_some();
        ensure(
            accept.is_none() || !has_range,
            &key,
            || "both `accept` and a range".to_owned(),
            "remove `accept`, or `min` and `max`",
        )?;
        let greatest = u64::MAX.checked_shr(64 - 8 * u32::try_from(size).unwrap_or(8)).unwrap_or(0);
        let min = table.min.map_or(Ok(0), positive)?;
        let max = table.max.map_or(Ok(greatest), positive)?.min(greatest);
        ensure(
            min <= max,
            &key,
            || format!("no number is {min} to {max}"),
            "give `min` that is not above `max`",
        )?;
        Ok(Self { name, offset, size, accept, min, max })
    }

    fn value(&self, note: &[u8]) -> Result<u64, String> {
        let bytes = note.get(self.offset..).and_then(|rest| rest.get(..self.size));
        let mut whole = [0; 8];
        let room = whole.get_mut(..self.size).zip(bytes);
        let (room, bytes) = room.ok_or_else(|| format!("its note has no {}", self.name))?;
        room.copy_from_slice(bytes);
        let value = u64::from_le_bytes(whole);
        let Self { name, accept, min, max, .. } = self;
        match accept {
            Some(accept) if !accept.contains(&value) => Err(format!(
                "its note has {name} {value}; accepted is {}",
                accept.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
            )),
            None if !(*min..=*max).contains(&value) => {
                Err(format!("its note has {name} {value}; accepted is {min} to {max}"))
            }
            _ => Ok(value),
        }
    }
}

impl Number {
    /// Its value for a guest whose note has these fields.
    pub(super) fn value(&self, note: &[u64]) -> i64 {
        match self {
            Self::Fixed(number) => *number,
            Self::Note { field, most } => {
                let value = note.get(*field).copied().unwrap_or(0).min(*most);
                i64::try_from(value).unwrap_or(i64::MAX)
            }
        }
    }
}
