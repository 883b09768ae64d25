//! How often values fall into bins, as counts or as a density with curves over it.

use super::line::{Series, inside, keys, marks};
use super::rule::{self, Rule};
use super::scale::{Scale, bounds};
use super::{Key, SUBPIXELS, draw, frame, header, mesh, palette, pixels, tint};
use crate::error::{Error, Result};
use plotters::prelude::*;

/// Values that are counted together.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The legend's text; empty leaves the sample out of the legend.
    pub label: String,
    /// The colour's place in the palette of seven.
    pub colour: usize,
    /// The values; those that are not finite are left out.
    pub values: Vec<f64>,
}

/// How often values fall into bins of equal width: bars for one sample, outlines on the same bins for several.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// The headline.
    pub title: String,
    /// What the values are, with their unit.
    pub x: String,
    /// The samples.
    pub samples: Vec<Sample>,
    /// The number of bins, between the least and the greatest value of all samples.
    pub bins: usize,
    /// Whether each sample's bins are scaled to the area 1, as curves of densities need.
    pub density: bool,
    /// What is drawn over the bins; what is outside of the plane is cut off, and intervals are not drawn.
    pub curves: Vec<Series>,
    /// Reference lines; the axes reach as far as they do.
    pub rules: Vec<Rule>,
}

/// What a histogram counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Bins {
    /// Edges, one more than bins.
    pub edges: Vec<f64>,
    /// For each sample, the number of its values in each bin; the last bin includes its upper edge, as in numpy.
    pub counts: Vec<Vec<u64>>,
}

impl Bins {
    /// For each sample, its counts divided by the bin's width and the sample's number of finite values, as numpy does
    /// with `density=True`; 0 for a sample without values.
    pub fn densities(&self) -> Vec<Vec<f64>> {
        let of = |counts: &Vec<u64>| {
            let n = counts.iter().sum::<u64>().max(1) as f64;
            self.edges.windows(2).zip(counts).map(|(e, count)| *count as f64 / n / (e[1] - e[0])).collect()
        };
        self.counts.iter().map(of).collect()
    }
}

impl Histogram {
    /// Counts the values.
    ///
    /// # Errors
    /// No bins, no finite value, or values so near to one another that float64 cannot tell the bins' edges apart.
    pub fn count(&self) -> Result<Bins> {
        let finite = |s: &Sample| s.values.iter().copied().filter(|v| v.is_finite()).collect::<Vec<f64>>();
        let values: Vec<Vec<f64>> = self.samples.iter().map(finite).collect();
        let all = || values.iter().flatten().copied();
        let (mut low, mut high) = bounds(all()).filter(|_| self.bins > 0).ok_or_else(|| {
            let (n, bins) = (all().count(), self.bins);
            Error::Input(format!("figure `{}`: {n} finite values and {bins} bins; it needs one of each", self.title))
        })?;
        if low == high {
            (low, high) = (low - 0.5, high + 0.5);
        }
        let width = (high - low) / self.bins as f64;
        let edges: Vec<f64> = (0..self.bins).map(|i| low + width * i as f64).chain([high]).collect();
        if !edges.windows(2).all(|e| e[0] < e[1]) || !width.is_finite() {
            let text = "float64 has no such edges; take fewer bins, or values less far away";
            return Err(Error::Input(format!(
                "figure `{}`: {} bins of equal width between {low:?} and {high:?}: {text}",
                self.title, self.bins
            )));
        }
        let mut counts = vec![vec![0; self.bins]; values.len()];
        for (sample, counts) in values.iter().zip(&mut counts) {
            for value in sample {
                // The last edge that is not above the value; comparing with the edges themselves avoids a rounded division.
                let bin = edges.partition_point(|e| e <= value).saturating_sub(1).min(self.bins - 1);
                counts[bin] += 1;
            }
        }
        Ok(Bins { edges, counts })
    }

    /// The chart as an SVG document.
    ///
    /// # Errors
    /// As [`Histogram::count`].
    pub fn to_svg(&self) -> Result<String> {
        let bins = self.count()?;
        let edges = &bins.edges;
        let as_floats = |counts: &Vec<u64>| counts.iter().map(|c| *c as f64).collect();
        let heights: Vec<Vec<f64>> =
            if self.density { bins.densities() } else { bins.counts.iter().map(as_floats).collect() };
        let reach = self.rules.iter().filter_map(Rule::x).filter(|v| v.abs() <= 1e300);
        let (low, high) = bounds(reach.chain([edges[0], edges[self.bins]])).unwrap_or((0.0, 1.0));
        let x = Scale { log: false, low, high };
        let tallest = heights.iter().flatten().copied().fold(f64::MIN_POSITIVE, f64::max);
        // A law may be infinite at its end: a curve stretches the axis by half at most.
        let points = self.curves.iter().flat_map(|c| &c.points).filter(|p| (low..=high).contains(&p.x));
        let curves = points.map(|p| p.y).filter(|v| v.is_finite()).fold(0.0, f64::max).min(1.5 * tallest);
        let rules = self.rules.iter().filter_map(Rule::y).filter(|v| v.abs() <= 1e300);
        let (least, most) = bounds(rules.chain([0.0, tallest, curves])).unwrap_or((0.0, 1.0));
        let y = Scale { log: false, low: least, high: most + 0.05 * (most - least) };
        let mark = (self.samples.len() > 1).then_some(super::Mark::Line);
        let samples = self.samples.iter().map(|s| Key { label: &s.label, colour: palette(s.colour), mark });
        let legend: Vec<_> = samples.chain(keys(&self.curves)).chain(rule::keys(&self.rules)).collect();
        draw(|root| {
            let area = header(root, &self.title, &legend)?;
            let mut chart = frame(&area, x.range(7), y.range(6), 44)?;
            mesh(&mut chart, &x, Some(&self.x), &y, if self.density { "density" } else { "count" })?;
            for (sample, heights) in self.samples.iter().zip(&heights) {
                let colour = palette(sample.colour);
                if self.samples.len() == 1 {
                    let style = tint(colour).filled();
                    chart.draw_series(edges.windows(2).zip(heights).map(|(edge, height)| {
                        let mut bar = Rectangle::new([(edge[0], 0.0), (edge[1], *height)], style);
                        bar.set_margin(0, 0, SUBPIXELS as u32 / 2, SUBPIXELS as u32 / 2);
                        bar
                    }))?;
                    continue;
                }
                let tops = edges.windows(2).zip(heights).flat_map(|(e, height)| [(e[0], *height), (e[1], *height)]);
                let outline: Vec<_> =
                    [(edges[0], 0.0)].into_iter().chain(tops).chain([(edges[self.bins], 0.0)]).collect();
                chart.draw_series([Polygon::new(outline.clone(), colour.mix(0.1).filled())])?;
                chart.draw_series([PathElement::new(outline, colour.stroke_width(pixels(1.6)))])?;
            }
            let curves = self.curves.iter().map(|c| c.points.iter().map(|p| (p.x, p.y)).collect::<Vec<_>>());
            let stems = heights
                .iter()
                .flat_map(|of| edges.windows(2).zip(of).map(|(e, height)| (0.5 * (e[0] + e[1]), *height)));
            let stems = stems.filter(|(_, height)| *height > 0.0).map(|(at, height)| vec![(at, 0.0), (at, height)]);
            let drawn: Vec<_> = curves.chain(stems).collect();
            let labels = rule::draw(&mut chart, &self.rules, &x, &y, &drawn)?;
            for curve in &self.curves {
                let places: Vec<_> = curve.points.iter().map(|p| (p.x, p.y)).collect();
                if curve.mark == super::Mark::Dots {
                    let shown = |p: &(f64, f64)| (x.low..=x.high).contains(&p.0) && (y.low..=y.high).contains(&p.1);
                    marks(&mut chart, curve, places.into_iter().filter(shown).collect())?;
                } else {
                    for part in inside(&places, &x, &y) {
                        marks(&mut chart, curve, part)?;
                    }
                }
            }
            rule::write(&mut chart, labels)
        })
    }
}
