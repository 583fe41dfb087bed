//! Names and addresses of a kernel's symbols.

use super::effort::Effort;

/// Maximum size of a compressed name: a two-byte length and 511 characters without a token.
pub(super) const NAME: usize = 513;

/// A name's length, and the size of its encoding (ULEB128, at most two bytes). Empty names do not
/// exist.
pub(super) fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*bytes.first()?);
    let (len, head) = if first & 0x80 == 0 {
        (first, 1)
    } else {
        ((first & 0x7f) | usize::from(*bytes.get(1)?) << 7, 2)
    };
    (len > 0 && len < NAME).then_some((len, head))
}

/// Maximum number of symbols. A kernel of 2026 has 200,000.
pub(super) const MAX_SYMBOLS: usize = 1 << 20;
/// Maximum size of all names together.
const MAX_TEXT: usize = 64 << 20;
/// KSYM_NAME_LEN.
const MAX_NAME: usize = 512;

/// The tokens that names are made of.
#[derive(Debug)]
pub(super) struct Tokens(pub(super) Vec<Vec<u8>>);

/// Symbols with virtual addresses, as [`super::Kernel`] provides them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbols {
    text: String,
    /// Ascending by address, as in the kernel's own table.
    all: Vec<Symbol>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Symbol {
    address: u64,
    at: u32,
    len: u16,
    kind: u8,
}

/// Why a symbol has no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SymbolError {
    /// No symbol has this name.
    #[error("the guest's kernel has no symbol {0}")]
    Missing(String),
    /// Several symbols (static functions) have this name.
    #[error("the guest's kernel has {1} symbols {0}")]
    Several(String, usize),
}

impl Symbols {
    pub(super) fn decode(
        names: &[u8],
        tokens: &Tokens,
        values: &[u64],
        effort: &mut Effort,
    ) -> Option<Self> {
        let (mut at, mut text) = (0, Vec::new());
        let mut all = Vec::with_capacity(values.len());
        for address in values {
            let (len, head) = length(names.get(at..)?)?;
            let codes = names.get(at + head..at + head + len)?;
            at += head + len;
            let begin = text.len();
            for code in codes {
                text.extend_from_slice(tokens.0.get(usize::from(*code))?);
                if text.len() - begin > MAX_NAME || text.len() > MAX_TEXT {
                    return None;
                }
            }
            effort.take(1 + (text.len() - begin) / 64)?;
            // The type comes before the name.
            let (kind, len) = (*text.get(begin)?, text.len() - begin - 1);
            let at = u32::try_from(begin + 1).ok()?;
            all.push(Symbol { address: *address, at, len: u16::try_from(len).ok()?, kind });
        }
        let text = String::from_utf8(text).ok()?;
        Some(Self { text, all })
    }

    fn text_of(&self, symbol: &Symbol) -> &str {
        let begin = symbol.at as usize;
        self.text.get(begin..begin + usize::from(symbol.len)).unwrap_or("")
    }

    /// All addresses with this name. A linear search: only a dozen names are looked up, each once.
    pub fn addresses<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u64> + 'a {
        let same_len = self.all.iter().filter(|symbol| usize::from(symbol.len) == name.len());
        same_len.filter(move |symbol| self.text_of(symbol) == name).map(|symbol| symbol.address)
    }

    /// The address of the only symbol of this name.
    ///
    /// # Errors
    /// When there is none, or several.
    pub fn address(&self, name: &str) -> Result<u64, SymbolError> {
        let mut all = self.addresses(name);
        match (all.next(), all.count()) {
            (Some(address), 0) => Ok(address),
            (None, _) => Err(SymbolError::Missing(name.to_owned())),
            (_, more) => Err(SymbolError::Several(name.to_owned(), more + 1)),
        }
    }

    /// Address, type (as nm prints it) and name of each symbol, ascending by address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, char, &str)> {
        self.all
            .iter()
            .map(|symbol| (symbol.address, char::from(symbol.kind), self.text_of(symbol)))
    }

    /// Number of symbols.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no symbols.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn shift(&mut self, by: u64) {
        for symbol in &mut self.all {
            symbol.address = symbol.address.wrapping_add(by);
        }
    }
}
