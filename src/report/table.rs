//! Tables of figures, as text for a terminal, as Markdown and as HTML.

use crate::stats::Spread;
use std::fmt::Write;

/// How a column's figures are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A fraction as percent with two decimals.
    Percent,
    /// That many decimals.
    Decimals(usize),
}

/// Rows of figures below named columns.
#[derive(Debug, Clone)]
pub struct Table {
    /// What the rows are.
    pub corner: String,
    /// Columns: name with unit.
    pub columns: Vec<String>,
    /// Rows: name, and one figure a column.
    pub rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// Aligned columns for a terminal.
    pub fn to_text(&self) -> String {
        let grid = self.grid();
        let columns = grid.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| grid.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for (index, row) in grid.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = " ".repeat(width - cell.chars().count());
                let (before, after) = if column == 0 { ("", gap.as_str()) } else { (gap.as_str(), "") };
                let between = if column == 0 { "" } else { "   " };
                let _ = write!(line, "{between}{before}{cell}{after}");
            }
            out.push_str(line.trim_end());
            out.push('\n');
            if index == 0 {
                let rules: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
                out.push_str(&(rules.join("   ") + "\n"));
            }
        }
        out
    }

    /// A Markdown table.
    pub fn to_markdown(&self) -> String {
        let mut out = String::new();
        for (index, row) in self.grid().iter().enumerate() {
            let cells: Vec<String> = row.iter().map(|c| c.replace('|', "\\|")).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
            if index == 0 {
                let _ = writeln!(out, "|:---|{}", "---:|".repeat(self.columns.len()));
            }
        }
        out
    }

    /// A `<table>` element with escaped text.
    pub fn to_html(&self) -> String {
        let mut out = String::from("<table class=\"figures\">\n");
        for (index, row) in self.grid().iter().enumerate() {
            let tag = if index == 0 { "th scope=\"col\"" } else { "td" };
            out.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let tag = if column == 0 && index > 0 { "th scope=\"row\"" } else { tag };
                let end = &tag[..2];
                let _ = write!(out, "<{tag}>{}</{end}>", escape(cell));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table>\n");
        out
    }

    /// All cells as text, the names of the columns first.
    fn grid(&self) -> Vec<Vec<String>> {
        let line = |first: &String, others: &[String]| [std::slice::from_ref(first), others].concat();
        let rows = self.rows.iter().map(|(label, cells)| line(label, cells));
        std::iter::once(line(&self.corner, &self.columns)).chain(rows).collect()
    }
}

/// `mean ± std (n)`, the one value there is, or `-`.
pub(super) fn write_figure(figure: Option<Spread>, format: Format) -> String {
    let Some(Spread { mean, std, n }) = figure else { return "-".to_string() };
    let (factor, decimals) = match format {
        Format::Percent => (100.0, 2),
        Format::Decimals(decimals) => (1.0, decimals),
    };
    let mean = mean * factor;
    std.map_or(format!("{mean:.decimals$}"), |std| format!("{mean:.decimals$} ± {:.decimals$} ({n})", std * factor))
}

/// Text as HTML content or as a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            corner: "loss".into(),
            columns: vec!["linear (%)".into(), "loss|x".into()],
            rows: [("infonce", [&[0.8, 0.82][..], &[5.25]]), ("<b>", [&[], &[]])]
                .map(|(label, [linear, loss])| {
                    let cells = [(linear, Format::Percent), (loss, Format::Decimals(3))];
                    (label.into(), cells.map(|(values, format)| write_figure(Spread::of(values), format)).to_vec())
                })
                .to_vec(),
        }
    }

    #[test]
    fn spread_equals_numpy() {
        // numpy.std([2, 4, 4, 4, 5, 5, 7, 9], ddof=1) = 2.138089935299395, and the same far from zero.
        for shift in [0.0, 1e9] {
            let s = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].map(|v| v + shift)).unwrap();
            assert_eq!((s.mean, s.n), (5.0 + shift, 8));
            assert!((s.std.unwrap() - 2.138089935299395).abs() < 1e-12);
        }
        assert_eq!(Spread::of(&[3.0]), Some(Spread { mean: 3.0, std: None, n: 1 }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn text_is_aligned() {
        let expected = "\
loss            linear (%)   loss|x
-------   ----------------   ------
infonce   81.00 ± 1.41 (2)    5.250
<b>                      -        -
";
        assert_eq!(table().to_text(), expected);
    }

    #[test]
    fn markdown_and_html_escape_what_would_break_them() {
        let expected = "\
| loss | linear (%) | loss\\|x |
|:---|---:|---:|
| infonce | 81.00 ± 1.41 (2) | 5.250 |
| <b> | - | - |
";
        assert_eq!(table().to_markdown(), expected);
        let html = table().to_html();
        assert!(html.contains("<tr><th scope=\"row\">&lt;b&gt;</th><td>-</td><td>-</td></tr>"), "{html}");
        assert!(html.contains("<td>81.00 ± 1.41 (2)</td>") && !html.contains("<b>"));
    }
}
