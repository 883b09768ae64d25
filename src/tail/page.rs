//! The page of a diagnosis, as Markdown: words first, then figures and the table.

use super::words::Word;
use crate::report::picture::Shown;
use std::fmt::Write;

/// A part of the page: a state of an encoder, or what was given.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    /// Its headline.
    pub title: String,
    /// The folder of its pictures, from the page; empty for the page's own.
    pub folder: String,
    /// What was found.
    pub words: &'a [Word],
    /// Names and numbers.
    pub table: Vec<(String, String)>,
    /// Its pictures.
    pub pictures: Vec<Shown>,
}

/// The page.
pub fn to_markdown(source: &str, parts: &[Part]) -> String {
    let mut out = format!("# Tail diagnosis\n\nOf {source}.\n");
    for part in parts {
        if !part.title.is_empty() {
            let _ = write!(out, "\n## {}\n", part.title);
        }
        let (cautions, findings): (Vec<&Word>, Vec<&Word>) = part.words.iter().partition(|w| w.caution);
        for (heading, words) in [("Found", findings), ("To know about it", cautions)] {
            if !words.is_empty() {
                let _ = write!(out, "\n### {heading}\n\n");
                words.iter().for_each(|word| out.push_str(&format!("- {}\n", word.text)));
            }
        }
        if !part.pictures.is_empty() {
            let _ = write!(out, "\n### Figures\n");
        }
        for Shown { picture, caption } in &part.pictures {
            let place = if part.folder.is_empty() { String::new() } else { format!("{}/", part.folder) };
            let _ = write!(
                out,
                "\n![{0}]({place}{1}.png)\n\n{caption} Numbers: `{place}{1}.csv`.\n",
                picture.title, picture.name
            );
        }
        if !part.table.is_empty() {
            let _ = write!(out, "\n### Numbers\n\n| | |\n|:---|:---|\n");
            for (name, value) in &part.table {
                let _ = writeln!(out, "| {} | {} |", name.replace('|', "\\|"), value.replace('|', "\\|"));
            }
        }
    }
    out
}
