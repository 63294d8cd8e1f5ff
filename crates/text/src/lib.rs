//! Text from processes of other users, made safe to print.
//!
//! A process chooses its own name, the messages that it reports and the answers that it gives. On a terminal their control
//! characters move the cursor, change what was printed before, or make the terminal answer in the place of the user. Every
//! text that another user's process can choose passes [`visible`] where it is read, before anything is done with it.

#![forbid(unsafe_code)]

use std::borrow::Cow;

/// Returns a text with its control characters, line breaks included, written as `\u{1b}`. The same is done to characters that
/// show nothing or change the direction of what follows. Doing it twice changes nothing.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// Returns a text of several lines as [`visible`] does, with its line breaks and tabulators.
#[must_use]
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| is_hidden(character) && character != '\n' && character != '\t')
}

/// Returns the beginning of a text as [`visible`] does, at most `most` characters of it.
#[must_use]
pub fn visible_within(text: &str, most: usize) -> Cow<'_, str> {
    match visible(text) {
        Cow::Borrowed(text) => Cow::Borrowed(first(text, most)),
        Cow::Owned(text) => Cow::Owned(first(&text, most).to_owned()),
    }
}

fn first(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

fn escaped(text: &str, is_hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_hidden(character) {
            visible.extend(character.escape_unicode());
        } else {
            visible.push(character);
        }
    }
    Cow::Owned(visible)
}

/// Returns whether a terminal acts on a character, or shows nothing for it: categories Cc, Zl and Zp of Unicode, and those
/// of Cf that reorder, join or tag text.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_visible() {
        let title = "\u{1b}]0;owned\u{7}\u{1b}[2Jabey: all is well\r";
        assert_eq!(visible(title), r"\u{1b}]0;owned\u{7}\u{1b}[2Jabey: all is well\u{d}");
        assert_eq!(visible("a\nb\tc"), r"a\u{a}b\u{9}c");
        assert_eq!(visible_lines("a\nb\tc\u{9b}"), "a\nb\tc\\u{9b}");
        assert_eq!(visible("\u{202e}fdp.exe\u{200b}"), r"\u{202e}fdp.exe\u{200b}");
    }

    #[test]
    fn what_a_terminal_shows_stays_and_twice_is_once() {
        for text in ["", "nginx: worker", "μs, 日本, é", r"\u{1b}"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        for text in ["\u{7f}\0", "a\u{85}b"] {
            assert_eq!(visible(&visible(text)), visible(text));
        }
    }

    #[test]
    fn every_character_is_shown_or_escaped() {
        for character in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let text = character.to_string();
            assert!(!visible(&text).chars().any(char::is_control), "{character:?}");
        }
    }

    #[test]
    fn the_length_is_limited_in_characters() {
        assert_eq!(visible_within("éééé", 3), "ééé");
        assert_eq!(visible_within("\u{1b}\u{1b}", 8), r"\u{1b}\u");
        assert_eq!(visible_within("ab", 3), "ab");
    }
}
