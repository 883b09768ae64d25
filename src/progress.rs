//! The progress bar of long work.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on stderr with rate and time left, that disappears where stderr is no terminal.
pub fn progress_bar(unit: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = format!("{{bar:40}} {{pos}}/{{len}} {unit}  {{per_sec}}  {{elapsed}} (left {{eta}})");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}
