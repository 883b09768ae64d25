//! What the claims of the theory compute, as pictures: `verify-theory --out`.

use super::figure::{Axis, LineChart, Mark, Point, Rule, Series};
use super::picture::Picture;
use crate::Result;
use crate::evt::Z_95;
use crate::theory::claims::{Curve, Draw, Plot};

/// The picture of a plot; intervals are those of 95 %.
///
/// # Errors
/// No point that its axes can show.
pub fn picture(plot: &Plot) -> Result<Picture> {
    let y = if plot.log_y { Axis::log(plot.y) } else { Axis::linear(plot.y) };
    let chart = LineChart {
        title: plot.title.clone(),
        x: Axis::log(plot.x),
        y,
        series: plot.curves.iter().map(series).collect(),
        rules: plot.levels.iter().map(|(at, what)| Rule::Horizontal(*at, what.clone())).collect(),
    };
    Picture::of_lines(plot.name, &chart)
}

fn series(curve: &Curve) -> Series {
    let mark = match curve.draw {
        Draw::Sampled => Mark::Dots,
        Draw::Exact => Mark::LineDots,
        Draw::Law => Mark::Dashed,
        Draw::Bound => Mark::Line,
    };
    let point = |(i, &[x, y]): (usize, &[f64; 2])| {
        let half = curve.errors.get(i).map(|error| Z_95 * error);
        Point { x, y, band: half.map(|half| [y - half, y + half]) }
    };
    Series {
        label: curve.label.clone(),
        colour: curve.colour,
        mark,
        points: curve.points.iter().enumerate().map(point).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_becomes_files_with_its_numbers() {
        let curve = |label: &str, draw: Draw, errors: Vec<f64>| Curve {
            label: label.into(),
            draw,
            colour: 1,
            points: vec![[1.0, 0.5], [10.0, 0.25]],
            errors,
        };
        let plot = Plot {
            name: "two-points",
            title: "Two points".into(),
            x: "k",
            y: "nats",
            log_y: true,
            curves: vec![curve("seen", Draw::Sampled, vec![0.0, 0.1]), curve("law", Draw::Law, Vec::new())],
            levels: vec![(0.2, "floor".into())],
        };
        let folder = tempfile::tempdir().unwrap();
        let files = picture(&plot).unwrap().write(folder.path()).unwrap();
        let names: Vec<_> = files.iter().map(|f| f.file_name().unwrap().to_str().unwrap().to_string()).collect();
        assert_eq!(names, ["two-points.svg", "two-points.png", "two-points.csv"]);
        let csv = std::fs::read_to_string(&files[2]).unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[..2], ["series,x,y,low,high", "seen,1,0.5,0.5,0.5"]);
        let ends: Vec<f64> = lines[2].split(',').skip(3).map(|v| v.parse().unwrap()).collect();
        assert!((ends[0] - 0.0540036).abs() < 1e-7 && (ends[1] - 0.4459964).abs() < 1e-7, "{csv}");
        assert_eq!(lines[3..], ["law,1,0.5,,", "law,10,0.25,,", "floor,,0.2,,"]);
        let svg = std::fs::read_to_string(&files[0]).unwrap();
        assert!(["Two points", "seen", "law", "floor", "nats"].iter().all(|text| svg.contains(text)), "{svg}");
        let nothing = Plot { curves: Vec::new(), ..plot };
        assert!(picture(&nothing).unwrap_err().to_string().contains("no point that its axes can show"));
    }
}
