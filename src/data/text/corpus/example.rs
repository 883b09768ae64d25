//! What an example of a corpus is made of, and when its text can be used.

use super::report::Defect;
use std::borrow::Cow;

/// Something for each side of an example: its texts, or what its columns are called, or where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sides<T> {
    /// The sentence.
    pub text: T,
    /// The sentence that belongs to it, in a corpus of pairs.
    pub positive: Option<T>,
    /// A sentence that looks alike and means something else, in a corpus of triples.
    pub hard_negative: Option<T>,
}

/// An example of a corpus. No text of it is empty, and none has white space at its ends.
pub type Example = Sides<String>;

impl<T> Sides<T> {
    /// The sides that there are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        [Some(&self.text), self.positive.as_ref(), self.hard_negative.as_ref()].into_iter().flatten()
    }

    /// The same sides of something else, each with its key in the configuration.
    pub(super) fn try_map<U, E>(self, mut f: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Sides<U>, E> {
        Ok(Sides {
            text: f("text", self.text)?,
            positive: self.positive.map(|side| f("positive", side)).transpose()?,
            hard_negative: self.hard_negative.map(|side| f("hard_negative", side)).transpose()?,
        })
    }

    /// References to the sides.
    pub(super) fn as_ref(&self) -> Sides<&T> {
        Sides { text: &self.text, positive: self.positive.as_ref(), hard_negative: self.hard_negative.as_ref() }
    }
}

impl<'a> Sides<Cow<'a, str>> {
    /// The texts without white space at their ends, or why they cannot be used.
    pub(super) fn usable(self) -> Result<Self, Defect> {
        if self.iter().any(|side| memchr::memchr(0, side.as_bytes()).is_some()) {
            return Err(Defect::Nul);
        }
        if !self.iter().all(|side| has_visible(side)) {
            return Err(Defect::Empty);
        }
        self.try_map(|_, side| {
            Ok(match side {
                Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
                Cow::Owned(text) if text.trim().len() == text.len() => Cow::Owned(text),
                Cow::Owned(text) => Cow::Owned(text.trim().to_string()),
            })
        })
    }
}

/// Whether a text has any character that can be seen.
pub(in crate::data::text) fn has_visible(text: &str) -> bool {
    text.chars().any(|c| !c.is_whitespace() && !c.is_control() && !is_ignorable(c))
}

/// Unicode's `Default_Ignorable_Code_Point`: zero-width spaces and joiners, soft hyphens, directions, byte order marks and such.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}
