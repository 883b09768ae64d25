//! Charts are whole documents that show what they should, and only what their axes can.

use super::*;

fn chart(y: Axis, points: &[(f64, f64)]) -> LineChart {
    let points = points.iter().map(|(x, y)| Point { x: *x, y: *y, band: Some([y - 0.1, y + 0.1]) }).collect();
    let series = vec![Series { label: "a <b> & \"c\"".into(), colour: 0, mark: Mark::Line, points }];
    LineChart { title: "T".into(), x: Axis::linear("step"), y, series, rules: vec![] }
}

#[test]
fn ticks_are_round_and_inside() {
    let scale = |axis: Axis, low: f64, high: f64| Scale::new(&axis, [low, high].into_iter(), 0.0).unwrap();
    let labels = |s: Scale| s.ticks(6).into_iter().map(|t| s.label(t)).collect::<Vec<_>>();
    assert_eq!(labels(scale(Axis::linear(""), 0.0, 1.0)), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    assert_eq!(labels(scale(Axis::linear(""), -0.3, 0.3)), ["-0.3", "-0.2", "-0.1", "0", "0.1", "0.2", "0.3"]);
    assert_eq!(labels(scale(Axis::log(""), 1e-5, 1.0)), ["1e-5", "1e-4", "0.001", "0.01", "0.1", "1"]);
    assert_eq!(labels(scale(Axis::log(""), 1.0, 20.0)), ["1", "2", "5", "10", "20"]);
    assert_eq!(labels(scale(Axis::log(""), 4.0, 5.0)), ["4", "4.2", "4.4", "4.6", "4.8", "5"]);
    assert_eq!(labels(scale(Axis::linear(""), 0.0, 3e7)), ["0", "5e6", "1e7", "1.5e7", "2e7", "2.5e7", "3e7"]);
    for (low, high) in [(5.0, 5.0), (0.0, 0.0), (1e-12, 2e-12), (-1e300, 1e300), (1e9, 1e9 + 1.0)] {
        let s = scale(Axis::linear(""), low, high);
        assert!((2..=14).contains(&s.ticks(6).len()), "{low} {high}: {:?}", s.ticks(6));
    }
}

#[test]
fn charts_are_whole_documents_with_escaped_text() {
    let svg = chart(Axis::linear("loss (nats)"), &[(0.0, 1.0), (1.0, 2.0)]).to_svg().unwrap();
    assert!(
        svg.starts_with("<svg width=\"640\" height=\"380\" viewBox=\"0 0 2560 1520\"")
            && svg.trim_end().ends_with("</svg>")
    );
    assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;") && svg.contains("loss (nats)"));
    assert!(svg.contains("<polygon"), "the band is drawn");
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn what_an_axis_cannot_show_is_left_out() {
    let odd = [(0.0, f64::NAN), (1.0, -1.0), (2.0, 0.01), (3.0, 1.0), (f64::INFINITY, 1.0)];
    let svg = chart(Axis::log("l"), &odd).to_svg().unwrap();
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    assert!(chart(Axis::log("l"), &odd[..2]).to_svg().is_err());
    assert!(chart(Axis::linear("l"), &[]).to_svg().is_err());
    assert!(chart(Axis::linear("l"), &[(1.0, 1.0)]).to_svg().unwrap().contains("<circle"));
}

#[test]
fn histogram_counts_as_numpy() {
    // numpy.histogram([0, 0.1, 0.5, 0.5, 0.9, 1.0], 4) gives [2, 0, 2, 2].
    let h =
        Histogram { title: "t".into(), x: "x".into(), values: vec![0.0, 0.1, 0.5, 0.5, 0.9, 1.0, f64::NAN], bins: 4 };
    assert_eq!(h.count().unwrap(), (vec![0.0, 0.25, 0.5, 0.75, 1.0], vec![2, 0, 2, 2]));
    assert!(h.to_svg().unwrap().matches("<rect").count() >= 4);
    let constant = Histogram { values: vec![3.0; 5], ..h.clone() };
    assert_eq!(constant.count().unwrap().1.iter().sum::<u64>(), 5);
    assert!(Histogram { values: vec![f64::NAN], ..h.clone() }.to_svg().is_err());
    assert!(Histogram { bins: 0, ..h }.to_svg().is_err());
}

#[test]
fn intervals_show_means_ends_and_single_values() {
    let chart = IntervalChart {
        title: "t".into(),
        y: "accuracy (%)".into(),
        series: vec![("a".into(), 0, vec![80.0, 84.0]), ("b".into(), 1, vec![90.0]), ("c".into(), 2, vec![])],
    };
    let svg = chart.to_svg().unwrap();
    assert!(svg.contains("82.00") && svg.contains("90.00"));
    assert_eq!(svg.matches("<circle").count(), 5, "three values and two means");
    // The interval of 80 and 84 is 82 +- 25.4: the axis shows it, and a single value has none.
    assert!(svg.contains("\n100\n") && svg.contains("\n60\n"));
    assert!(IntervalChart { series: vec![("x".into(), 0, vec![])], ..chart.clone() }.to_svg().is_err());
    let sheet = sheet(&[svg.clone(), svg.clone(), svg], 2);
    assert!(sheet.starts_with("<svg width=\"1280\" height=\"760\""));
    assert_eq!((sheet.matches("<svg").count(), sheet.matches("</svg>").count()), (4, 4));
    assert!(sheet.contains("<svg x=\"640\" y=\"0\"") && sheet.contains("<svg x=\"0\" y=\"380\""));
}

#[test]
fn bars_show_means_and_single_values() {
    let bars = BarChart {
        title: "t".into(),
        y: "accuracy (%)".into(),
        series: vec![("a".into(), 0), ("b".into(), 1)],
        groups: vec![("linear".into(), vec![vec![80.0, 84.0], vec![90.0]]), ("kNN".into(), vec![vec![], vec![70.0]])],
    };
    let svg = bars.to_svg().unwrap();
    assert!(svg.contains("82.0") && svg.contains("90.0") && svg.contains("70.0"));
    assert_eq!(svg.matches("<circle").count(), 2, "dots where there is more than one value");
    assert!(BarChart { groups: vec![("x".into(), vec![vec![]])], ..bars }.to_svg().is_err());
}
