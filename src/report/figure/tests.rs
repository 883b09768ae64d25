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

fn histogram(values: &[f64], bins: usize) -> Histogram {
    let samples = vec![Sample { label: "s".into(), colour: 0, values: values.to_vec() }];
    let (title, x) = ("t".into(), "x".into());
    Histogram { title, x, samples, bins, density: false, curves: vec![], rules: vec![] }
}

#[test]
fn histogram_counts_as_numpy() {
    // numpy.histogram([0, 0.1, 0.5, 0.5, 0.9, 1.0], 4) gives [2, 0, 2, 2], and with density=True these by 6 * 0.25.
    let h = histogram(&[0.0, 0.1, 0.5, 0.5, 0.9, 1.0, f64::NAN], 4);
    let bins = h.count().unwrap();
    assert_eq!((&bins.edges[..], &bins.counts[..]), (&[0.0, 0.25, 0.5, 0.75, 1.0][..], &[vec![2, 0, 2, 2]][..]));
    assert_eq!(bins.densities(), [[2.0, 0.0, 2.0, 2.0].map(|c| c / 6.0 / 0.25)]);
    assert!(h.to_svg().unwrap().matches("<rect").count() >= 4);
    let constant = histogram(&[3.0; 5], 4);
    assert_eq!(constant.count().unwrap().counts[0].iter().sum::<u64>(), 5);
    assert!(histogram(&[f64::NAN], 4).to_svg().is_err());
    assert!(histogram(&[1.0], 0).to_svg().is_err());
    assert!(histogram(&[-f64::MAX, f64::MAX], 4).to_svg().unwrap_err().to_string().contains("no such edges"));
    assert!(histogram(&[1.0, 1.0 + f64::EPSILON], 4).to_svg().is_err());
}

#[test]
fn several_samples_share_their_bins() {
    let mut h = histogram(&[0.0, 1.0, 1.0], 2);
    h.samples.push(Sample { label: "other".into(), colour: 1, values: vec![4.0] });
    h.samples.push(Sample { label: "none".into(), colour: 2, values: vec![] });
    let bins = h.count().unwrap();
    assert_eq!((bins.edges.as_slice(), bins.counts.len()), (&[0.0, 2.0, 4.0][..], 3));
    assert_eq!(bins.counts, [[3, 0], [0, 1], [0, 0]]);
    assert_eq!(bins.densities(), [[0.5, 0.0], [0.0, 0.5], [0.0, 0.0]]);
    let svg = h.to_svg().unwrap();
    assert_eq!(svg.matches("<polygon").count(), 3, "outlines");
    assert!(["s", "other", "none"].iter().all(|label| svg.contains(&format!("\n{label}\n"))));
}

#[test]
fn curves_of_infinite_height_do_not_flatten_the_bins() {
    let mut h = histogram(&[0.0, 0.0, 1.0, 1.0], 2);
    h.density = true;
    let law = |x: f64| Point::new(x, 1e-6 / x);
    let points = (0..=100).map(|i| law(f64::from(i) / 50.0 - 0.5)).collect();
    h.curves.push(Series { label: "law".into(), colour: 1, mark: Mark::Line, points });
    h.curves.push(Series { label: "pole".into(), colour: 2, mark: Mark::Dashed, points: vec![law(1e-9), law(0.5)] });
    h.rules = vec![Rule::Vertical(0.5, "median".into()), Rule::Vertical(f64::NAN, "nowhere".into())];
    let svg = h.to_svg().unwrap();
    // The bins are 1 high, the axis 1.5 at most: with ticks at 0.5 steps there is no 2.
    assert!(svg.contains("\n1.5\n") && !svg.contains("\n2\n"), "the axis ends at one and a half");
    assert!(svg.contains("density") && svg.contains("median") && !svg.contains("nowhere"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn marks_are_what_they_say() {
    let with = |mark: Mark| {
        let mut chart = chart(Axis::linear("y"), &[(0.0, 1.0), (1.0, 2.0), (2.0, 1.5)]);
        chart.series[0].mark = mark;
        chart.series[0].points[1].band = Some([1.9, f64::INFINITY]);
        chart.series[0].points[2].band = Some([f64::NAN, 1.0]);
        let svg = chart.to_svg().unwrap();
        let coloured = |tag: &str| svg.matches(tag).count();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let blue = svg.lines().filter(|l| l.starts_with("<polyline") && l.contains("#0072B2")).count();
        (coloured("<circle"), coloured("<polygon"), blue)
    };
    // Each has its key in the legend: a line, two dashes, a dot, both.
    assert_eq!(with(Mark::Line), (0, 1, 2));
    let (circles, bands, dashes) = with(Mark::Dashed);
    assert!(circles == 0 && bands == 1 && dashes > 20, "{dashes} dashes");
    // Two whiskers with two caps and with one: the end of the other is not in the plane.
    assert_eq!(with(Mark::Dots), (4, 0, 2 + 3));
    assert_eq!(with(Mark::LineDots), (4, 1, 2));
}

#[test]
fn bands_need_not_be_symmetric() {
    let mut chart = chart(Axis::linear("y"), &[(0.0, 1.0), (1.0, 2.0)]);
    let one = chart.to_svg().unwrap();
    assert!(!one.contains("\n6\n"));
    chart.series[0].points[0].band = Some([0.9, 6.0]);
    assert!(chart.to_svg().unwrap().contains("\n6\n"), "the axis shows the upper end");
}

#[test]
fn rules_are_dashed_labelled_and_shown() {
    let mut plain = chart(Axis::linear("y"), &[(0.0, 1.0), (1.0, 2.0)]);
    plain.rules =
        vec![Rule::Horizontal(9.0, "bound".into()), Rule::Vertical(4.0, "end".into()), Rule::Diagonal("y = x".into())];
    let svg = plain.to_svg().unwrap();
    let grey = |svg: &str| svg.lines().filter(|l| l.starts_with("<polyline") && l.contains("#6E6E6E")).count();
    assert!(["bound", "end", "y = x"].iter().all(|label| svg.contains(&format!("\n{label}\n"))));
    assert!(svg.contains("\n8\n") && svg.contains("\n4\n"), "the axes reach as far as the rules");
    assert!(grey(&svg) > 100, "{} dashes", grey(&svg));
    // On a logarithmic axis zero has no place; a diagonal across axes of two kinds is a curve.
    let mut log = chart(Axis::log("y"), &[(1.0, 1.0), (10.0, 2.0)]);
    log.rules = vec![Rule::Horizontal(0.0, "zero".into()), Rule::Horizontal(f64::INFINITY, "far".into())];
    let without = log.to_svg().unwrap();
    assert!(grey(&without) == 0 && !without.contains("zero") && !without.contains("far"));
    log.rules.push(Rule::Diagonal(String::new()));
    let svg = log.to_svg().unwrap();
    assert!(grey(&svg) > 10 && !svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn labels_of_rules_keep_clear_of_lines_and_of_one_another() {
    let mut chart = chart(Axis::linear("y"), &[(0.0, 0.0), (90.0, 0.0), (100.0, 10.0)]);
    chart.series[0].points.iter_mut().for_each(|p| p.band = None);
    let place = |chart: &LineChart, label: &str| -> (f64, f64) {
        let svg = chart.to_svg().unwrap();
        let before = svg.split(&format!("\n{label}\n")).next().unwrap().rsplit("<text ").next().unwrap().to_string();
        let of = |name: &str| {
            let rest =
                before.split(&format!(" {name}=\"")).nth(1).or_else(|| before.strip_prefix(&format!("{name}=\"")));
            rest.unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        (of("x"), of("y"))
    };
    chart.rules = vec![Rule::Horizontal(5.0, "first".into())];
    let alone = place(&chart, "first");
    // The line rises at the right edge, where a label would stand first.
    assert!(alone.0 < 400.0, "{alone:?}");
    chart.rules.push(Rule::Horizontal(5.0, "second".into()));
    assert_eq!(place(&chart, "first"), alone);
    let (x, y) = place(&chart, "second");
    assert!((x - alone.0).abs() > 150.0 || (y - alone.1).abs() >= 50.0, "{alone:?} {x} {y}");
}

#[test]
fn polylines_are_cut_at_the_edges() {
    let unit = Scale { log: false, low: 0.0, high: 1.0 };
    let cut = |places: &[(f64, f64)]| line::inside(places, &unit, &unit);
    assert_eq!(cut(&[(-1.0, 0.5), (0.5, 0.5), (0.5, 2.0)]), [[(0.0, 0.5), (0.5, 0.5), (0.5, 1.0)]]);
    assert_eq!(cut(&[(0.2, 0.2), (0.2, 3.0), (0.8, 3.0), (0.8, 0.2)]).len(), 2, "it leaves and comes back");
    assert_eq!(cut(&[(-1.0, 0.5), (2.0, 0.5)]), [[(0.0, 0.5), (1.0, 0.5)]]);
    assert_eq!(
        cut(&[(0.1, 0.1), (0.2, f64::INFINITY), (0.3, f64::NAN), (0.4, 0.4), (0.5, 0.5)]),
        [[(0.4, 0.4), (0.5, 0.5)]]
    );
    assert!(cut(&[(-1.0, -0.5), (2.0, -0.5)]).is_empty() && cut(&[(-2.0, 0.0), (0.0, 3.0)]).is_empty());
    assert!(cut(&[(0.5, 0.5)]).is_empty() && cut(&[]).is_empty());
}

#[test]
fn long_texts_are_set_smaller() {
    let mut chart = chart(Axis::linear("y"), &[(0.0, 1.0), (1.0, 2.0)]);
    chart.title = "W".repeat(200);
    chart.series[0].label = "m".repeat(300);
    let svg = chart.to_svg().unwrap();
    let size = |text: &str| {
        let before = svg.split(text).next().unwrap();
        before.rsplit("font-size=\"").next().unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
    };
    // Letters that are as wide as high: what is drawn is no wider than the picture.
    assert!(size(&chart.title) * 200.0 <= 2560.0 * 1.05, "{}", size(&chart.title));
    assert!(size(&chart.series[0].label) * 300.0 <= 2560.0 * 1.05);
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
