//! Reference lines: dashed and grey, behind what is drawn, with a short label where there is room for it.

use super::line::{dashes, inside};
use super::scale::Scale;
use super::{Canvas, Drawn, Key, RULE, SUBPIXELS, breadth, pixels, text};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A reference line.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// At that ordinate, with a label in the plane; an empty one is not written.
    Horizontal(f64, String),
    /// At that abscissa, with a label in the plane; an empty one is not written.
    Vertical(f64, String),
    /// Where the ordinate equals the abscissa, with a label in the legend.
    Diagonal(String),
}

/// A label in the plane, at a pixel of the plane's own.
pub(super) struct Label<'a> {
    text: &'a str,
    left: i32,
    middle: i32,
}

const SIZE: f64 = 11.0;
/// Height of a label, and how far it stays from its line.
const TALL: i32 = 14 * SUBPIXELS;
const AWAY: i32 = 4 * SUBPIXELS;

impl Rule {
    /// The abscissa that the axis has to show.
    pub(super) fn x(&self) -> Option<f64> {
        if let Rule::Vertical(at, _) = self { Some(*at) } else { None }
    }

    /// The ordinate that the axis has to show.
    pub(super) fn y(&self) -> Option<f64> {
        if let Rule::Horizontal(at, _) = self { Some(*at) } else { None }
    }

    /// The line's ends or points, in places of the plane.
    fn places(&self, x: &Scale, y: &Scale) -> Vec<(f64, f64)> {
        let shown = |scale: &Scale, at: f64| at.is_finite() && (!scale.log || at > 0.0);
        match self {
            Rule::Horizontal(at, _) if shown(y, *at) => vec![(x.low, y.place(*at)), (x.high, y.place(*at))],
            Rule::Vertical(at, _) if shown(x, *at) => vec![(x.place(*at), y.low), (x.place(*at), y.high)],
            Rule::Diagonal(_) => {
                // Straight where both axes are of one kind, else a curve.
                let steps = if x.log == y.log { 1 } else { 400 };
                let at = |i: i32| x.low + (x.high - x.low) * f64::from(i) / f64::from(steps);
                let value = |place: f64| if x.log { 10_f64.powf(place) } else { place };
                let all = (0..=steps).map(|i| (at(i), value(at(i)))).filter(|(_, v)| shown(y, *v));
                all.map(|(place, v)| (place, y.place(v))).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The legend's entries for rules: diagonals, whose labels would stand in the way of the points around them.
pub(super) fn keys(rules: &[Rule]) -> impl Iterator<Item = Key<'_>> {
    rules.iter().filter_map(|rule| match rule {
        Rule::Diagonal(label) => Some(Key { label, colour: RULE, mark: Some(super::Mark::Dashed) }),
        _ => None,
    })
}

/// Draws the lines, and finds places for their labels, which are to be written last. `drawn` are the polylines that the labels
/// should keep clear of, in places of the plane.
pub(super) fn draw<'r>(
    chart: &mut Canvas,
    rules: &'r [Rule],
    x: &Scale,
    y: &Scale,
    drawn: &[Vec<(f64, f64)>],
) -> Drawn<Vec<Label<'r>>> {
    let (across, down) = chart.plotting_area().get_pixel_range();
    let (wide, tall) = (across.end - across.start, down.end - down.start);
    let mut labels: Vec<Label> = Vec::new();
    let lines: Vec<_> = rules.iter().map(|rule| rule.places(x, y)).collect();
    for (rule, places) in rules.iter().zip(&lines) {
        let Some(first) = places.first().copied() else { continue };
        for part in inside(places, x, y) {
            dashes(chart, part, RULE.stroke_width(pixels(1.2)))?;
        }
        let (text, candidates): (&str, Vec<(i32, i32)>) = match rule {
            Rule::Horizontal(_, text) => {
                let at = ((y.high - first.1) / (y.high - y.low) * f64::from(tall)) as i32;
                let rows = [at - TALL / 2 - SUBPIXELS, at + TALL / 2 + SUBPIXELS];
                let room = wide - width(text) - 2 * AWAY;
                let lefts = [8, 0, 4, 6, 2, 7, 5, 3, 1].map(|eighths| AWAY + room * eighths / 8);
                (text, lefts.iter().flat_map(|left| rows.map(|row| (*left, row))).collect())
            }
            Rule::Vertical(_, text) => {
                let at = ((first.0 - x.low) / (x.high - x.low) * f64::from(wide)) as i32;
                let rows = (0..tall / TALL).map(|row| TALL * row + TALL / 2 + AWAY);
                (text, rows.flat_map(|row| [(at + AWAY, row), (at - AWAY - width(text), row)]).collect())
            }
            Rule::Diagonal(_) => continue,
        };
        if text.is_empty() {
            continue;
        }
        let hidden = |&(left, middle): &(i32, i32)| {
            let (right, top, bottom) = (left + width(text), middle - TALL / 2, middle + TALL / 2);
            let over = |l: &&Label| (middle - l.middle).abs() < TALL && left < l.left + width(l.text) && l.left < right;
            let out = left < 0 || right > wide || top < 0 || bottom > tall;
            let part = |scale: &Scale, share: f64| scale.low + share * (scale.high - scale.low);
            let (across, down) =
                (|v: i32| f64::from(v) / f64::from(wide), |v: i32| 1.0 - f64::from(v) / f64::from(tall));
            let around_x = Scale { low: part(x, across(left)), high: part(x, across(right)), ..*x };
            let around_y = Scale { low: part(y, down(bottom)), high: part(y, down(top)), ..*y };
            let crossed: usize = drawn.iter().chain(&lines).map(|line| inside(line, &around_x, &around_y).len()).sum();
            (out, labels.iter().filter(over).count(), crossed)
        };
        // The first of those that hide least.
        let Some((left, middle)) = candidates.into_iter().min_by_key(hidden) else { continue };
        labels.push(Label { text, left, middle });
    }
    Ok(labels)
}

/// Writes the labels, on a white ground that lets them be read over lines.
pub(super) fn write(chart: &mut Canvas, labels: Vec<Label>) -> Drawn<()> {
    let area = chart.plotting_area().strip_coord_spec();
    for Label { text: label, left, middle } in labels {
        let ground = [(left - SUBPIXELS, middle - TALL / 2 + SUBPIXELS), (left + width(label), middle + TALL / 2)];
        area.draw(&Rectangle::new(ground, WHITE.mix(0.75).filled()))?;
        let style = text(SIZE).color(&RULE).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(label.to_string(), (left, middle), style))?;
    }
    Ok(())
}

fn width(label: &str) -> i32 {
    pixels(breadth(label, SIZE)) as i32
}
