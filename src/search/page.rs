//! The page of a search and the table for a terminal.

use super::Analysis;
use super::words::{self, Section};
use crate::report::picture::Shown;
use crate::report::table::Table;
use std::fmt::Write;

/// What a reader has to know who has not read the theory.
const READ: &str = "An *anchor* is what one searches with, its *positive* the right *item*, and the *corpus* all items; \
    the encoder makes a unit vector of each, and nearer means a larger cosine. The *softmax* turns an anchor's cosines, \
    divided by the *temperature*, into probabilities of the items. Losses are in *nats*: 0.1 less makes a probability a \
    tenth larger. *Negatives*, k of them, are the items that an anchor is compared with in a training step. Intervals are \
    of 95 %; where one does not decide, the sentence says so.";

/// The page: what matters in some sentences, then each figure and picture with what it means. Pictures are linked by their
/// names, beside the page.
pub fn to_markdown(title: &str, analysis: &Analysis, pictures: &[Shown]) -> String {
    let sections = words::sections(analysis);
    let mut out = format!("# {title}\n");
    if !analysis.violations.is_empty() {
        let _ = write!(
            out,
            "\n## Broken inequalities\n\nThese hold for every set of unit vectors. That they do not is an error of the \
             program or of the hardware: do not use the figures below, and report it.\n\n"
        );
        analysis.violations.iter().for_each(|v| out.push_str(&format!("- {v}\n")));
    }
    out.push_str("\n## In short\n\n");
    words::briefs(&sections).for_each(|brief| out.push_str(&format!("- {brief}\n")));
    let _ = write!(out, "\n{READ}\n");
    let mut left: Vec<&Shown> = pictures.iter().collect();
    for Section { heading, facts, pictures, .. } in &sections {
        let _ = write!(out, "\n## {heading}\n\n");
        for fact in facts {
            let _ = writeln!(out, "- **{}: {}.** {}", fact.name, fact.value, fact.text);
        }
        for name in *pictures {
            left.retain(|shown| {
                let here = shown.picture.name == **name;
                if here {
                    show(&mut out, shown);
                }
                !here
            });
        }
    }
    if !left.is_empty() {
        out.push_str("\n## Other figures\n");
        left.into_iter().for_each(|shown| show(&mut out, shown));
    }
    out
}

fn show(out: &mut String, Shown { picture, caption }: &Shown) {
    let _ = write!(out, "\n![{0}]({1}.png)\n\n{caption} Numbers: `{1}.csv`.\n", picture.title, picture.name);
}

/// A short table for a terminal, and what matters in some sentences below it.
pub fn to_text(analysis: &Analysis) -> String {
    let sections = words::sections(analysis);
    let rows = words::rows(analysis);
    let columns = vec!["value".to_string(), "95 %".to_string()];
    let mut out = Table { corner: "search".into(), columns, rows }.to_text();
    out.push('\n');
    for violation in &analysis.violations {
        let _ = writeln!(out, "BROKEN: {violation}");
    }
    words::briefs(&sections).for_each(|brief| out.push_str(&format!("{brief}\n")));
    out
}
