//! Views against torchvision's on PIL images: pixels operation by operation, and the distributions of the parameters.
//! Golden files: `tests/golden/augment`, made by `scripts/fixtures/augment.py`.

use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weince::augment::color::{self, Adjustment};
use weince::augment::crop::Crop;
use weince::augment::random::{Keyed, Purpose};
use weince::augment::{Canvas, Planes, PlanesRef, Views, blur, flip, resize};
use weince::config::augment::{AugmentConfig, BlurConfig, NormalizeConfig};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/augment").join(name)
}

fn index() -> Value {
    serde_json::from_slice(&std::fs::read(golden("index.json")).unwrap()).unwrap()
}

fn planes(tensors: &SafeTensors, name: &str) -> Planes {
    let tensor = tensors.tensor(name).unwrap();
    let [channels, height, width] = tensor.shape() else { panic!("{name}: {:?}", tensor.shape()) };
    Planes { channels: *channels, height: *height, width: *width, bytes: tensor.data().to_vec() }
}

fn run(case: &Value, image: &mut Planes) {
    let number = |key: &str| case[key].as_f64().unwrap();
    match case["op"].as_str().unwrap() {
        "crop" => {
            let crop: Vec<usize> =
                case["crop"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
            let crop = Crop { top: crop[0], left: crop[1], height: crop[2], width: crop[3] };
            let source = std::mem::take(image);
            let size = number("size") as usize;
            let mut scratch = resize::Scratch::default();
            resize::resized_crop(source.borrowed(), crop, [size; 2], &mut scratch, image);
        }
        "flip" => flip::horizontal(image),
        "grey" => color::to_grey(image),
        "brightness" => Adjustment::Brightness(number("factor")).apply(image),
        "contrast" => Adjustment::Contrast(number("factor")).apply(image),
        "saturation" => Adjustment::Saturation(number("factor")).apply(image),
        "hue" => Adjustment::Hue(number("factor")).apply(image),
        "blur" => blur::gaussian(image, number("kernel") as usize, number("sigma"), &mut blur::Scratch::default()),
        other => panic!("unknown operation {other}"),
    }
}

#[test]
fn each_operation_gives_torchvisions_bytes() {
    let file = std::fs::read(golden("operations.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let index = index();
    let mut counts = BTreeMap::<&str, usize>::new();
    for case in index["cases"].as_array().unwrap() {
        let mut image = planes(&tensors, case["in"].as_str().unwrap());
        let grey = image.channels == 1;
        run(case, &mut image);
        let expected = planes(&tensors, case["out"].as_str().unwrap());
        let bytes = if grey { image.bytes.repeat(3) } else { image.bytes };
        assert_eq!(
            (image.height, image.width, bytes.len()),
            (expected.height, expected.width, expected.bytes.len()),
            "{case}"
        );
        let op = case["op"].as_str().unwrap();
        // The blur sums in another order than torchvision's convolution: a value next to a half may round the other way.
        let allowed = u8::from(op == "blur");
        let worst = bytes.iter().zip(&expected.bytes).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= allowed, "{case}: differs by {worst}");
        *counts.entry(op).or_default() += 1;
    }
    assert_eq!(counts.len(), 8, "{counts:?}");
}

#[test]
fn hue_gives_pils_bytes_for_every_colour() {
    let index = index();
    for (factor, expected) in index["hue_of_all_colours_sha256"].as_object().unwrap() {
        let mut digest = Sha256::new();
        for red in 0..=255_u8 {
            let mut bytes = vec![red; 1 << 16];
            bytes.extend((0..1 << 16).map(|i: u32| (i >> 8) as u8));
            bytes.extend((0..1 << 16).map(|i: u32| i as u8));
            let mut image = Planes { channels: 3, height: 256, width: 256, bytes };
            Adjustment::Hue(factor.parse().unwrap()).apply(&mut image);
            digest.update(&image.bytes);
        }
        let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&found, expected.as_str().unwrap(), "turn {factor}");
    }
}

/// Largest difference of two cumulative distributions allowed for as many samples each: the Kolmogorov-Smirnov bound that equal
/// distributions exceed once in a million times.
fn allowed_difference(samples: usize) -> f64 {
    ((2.0_f64 / 1e-6).ln() / 2.0 * 2.0 / samples as f64).sqrt()
}

fn check_distribution(name: &str, theirs: &Value, ours: &[f64]) {
    let n = ours.len() as f64;
    let share_below = |bound: f64| ours.iter().filter(|x| **x <= bound).count() as f64 / n;
    let points: Vec<(f64, f64)> = if let Some(counts) = theirs["counts"].as_array() {
        let counts: Vec<f64> = counts.iter().map(|c| c.as_f64().unwrap()).collect();
        let total: f64 = counts.iter().sum();
        let sums = counts.iter().scan(0.0, |sum, c| {
            *sum += c;
            Some(*sum / total)
        });
        sums.enumerate().map(|(value, share)| (value as f64, share)).collect()
    } else {
        let values = theirs["percentiles"].as_array().unwrap();
        values.iter().enumerate().map(|(i, v)| (v.as_f64().unwrap(), (i + 1) as f64 / 100.0)).collect()
    };
    let worst = points.iter().map(|(value, share)| (share_below(*value) - share).abs()).fold(0.0, f64::max);
    assert!(worst < allowed_difference(ours.len()), "{name}: cumulative distributions differ by {worst}");
}

#[test]
fn parameters_have_torchvisions_distributions() {
    let index = index();
    let samples = index["samples"].as_u64().unwrap();
    let theirs = &index["distributions"];
    let config = AugmentConfig { blur: Some(BlurConfig::default()), ..AugmentConfig::default() };
    let draws = |height, width| {
        let views = Views::new(&config, 32).unwrap();
        let shape = [height, width];
        (0..samples).map(move |sample| views.draw(shape, &mut Keyed::new(11, 0, Purpose::View { sample, view: 0 })))
    };
    for (height, width) in [(32, 32), (96, 64), (20, 90)] {
        let crops: Vec<Crop> = draws(height, width).map(|d| d.crop).collect();
        let check = |part: &str, of: fn(&Crop) -> usize| {
            let name = format!("crop_{height}x{width}.{part}");
            check_distribution(&name, &theirs[&name], &crops.iter().map(|c| of(c) as f64).collect::<Vec<_>>());
        };
        check("top", |c| c.top);
        check("left", |c| c.left);
        check("height", |c| c.height);
        check("width", |c| c.width);
    }

    // Strengths as SimCLR's, jitter always on, so that there are as many draws as torchvision made.
    let mut values = BTreeMap::<&str, Vec<f64>>::new();
    for sample in 0..samples {
        let steps = color::jitter([0.8, 0.8, 0.8, 0.2], &mut Keyed::new(11, 0, Purpose::View { sample, view: 0 }));
        let mut order = 0.0;
        for step in steps.into_iter().flatten() {
            let (name, code, factor) = match step {
                Adjustment::Brightness(f) => ("jitter.brightness", 0.0, f),
                Adjustment::Contrast(f) => ("jitter.contrast", 1.0, f),
                Adjustment::Saturation(f) => ("jitter.saturation", 2.0, f),
                Adjustment::Hue(f) => ("jitter.hue", 3.0, f),
            };
            values.entry(name).or_default().push(factor);
            order = order * 4.0 + code;
        }
        values.entry("jitter.order").or_default().push(order);
    }
    assert_eq!(values.len(), 5);
    for (name, ours) in &values {
        check_distribution(name, &theirs[name], ours);
    }
    let sigmas: Vec<f64> = draws(32, 32).filter_map(|d| d.blur).collect();
    check_distribution("blur.sigma", &theirs["blur.sigma"], &sigmas);

    // Shares of the optional steps: five standard deviations of a binomial share.
    let share =
        |of: &dyn Fn(&weince::augment::ViewChoices) -> bool| draws(32, 32).filter(of).count() as f64 / samples as f64;
    for (name, found, expected) in [
        ("flip", share(&|d| d.flip), 0.5_f64),
        ("jitter", share(&|d| d.jitter.iter().any(Option::is_some)), 0.8),
        ("grey", share(&|d| d.grey), 0.2),
        ("blur", share(&|d| d.blur.is_some()), 0.5),
    ] {
        let deviation = (expected * (1.0 - expected) / samples as f64).sqrt();
        assert!((found - expected).abs() < 5.0 * deviation, "{name}: {found}");
    }
}

#[test]
fn a_view_is_its_operations_one_after_another() {
    let normalize = NormalizeConfig { mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616] };
    let config = AugmentConfig {
        blur: Some(BlurConfig { p: 1.0, sigma: [0.5, 1.0] }),
        normalize: Some(normalize.clone()),
        size: Some(24),
        ..AugmentConfig::default()
    };
    let views = Views::new(&config, 24).unwrap();
    let image: Vec<u8> = (0..3 * 32 * 40_u32).map(|i| (i * i / 7) as u8).collect();
    let source = PlanesRef { channels: 3, height: 32, width: 40, bytes: &image };
    let (mut canvas, mut out) = (Canvas::default(), vec![0.0; 3 * 24 * 24]);
    for sample in 0..20 {
        let choices = views.draw([32, 40], &mut Keyed::new(5, 1, Purpose::View { sample, view: 1 }));
        views.render(source, &choices, &mut canvas, &mut out);
        let mut planes = Planes::default();
        resize::resized_crop(source, choices.crop, [24, 24], &mut resize::Scratch::default(), &mut planes);
        if choices.flip {
            flip::horizontal(&mut planes);
        }
        choices.jitter.iter().flatten().for_each(|step| step.apply(&mut planes));
        if choices.grey {
            color::to_grey(&mut planes);
        }
        blur::gaussian(&mut planes, 3, choices.blur.unwrap(), &mut blur::Scratch::default());
        for (i, x) in out.iter().enumerate() {
            let channel = i / (24 * 24);
            let expected = (f32::from(planes.bytes[i]) / 255.0 - normalize.mean[channel]) / normalize.std[channel];
            assert_eq!(*x, expected);
        }
    }
}

#[test]
fn impossible_settings_are_refused_with_key_value_and_range() {
    let base = AugmentConfig::default;
    let crop =
        |scale| AugmentConfig { crop: weince::config::augment::CropConfig { scale, ..Default::default() }, ..base() };
    for (config, parts) in [
        (AugmentConfig { flip: 1.5, ..base() }, ["augment.flip", "1.5", "from 0 to 1"]),
        (AugmentConfig { size: Some(0), ..base() }, ["augment.size", "0", "1 to 4096"]),
        (crop([0.5, 0.2]), ["augment.crop.scale", "[0.5, 0.2]", "[least, greatest]"]),
        (crop([0.0, 1.0]), ["augment.crop.scale", "[0, 1]", "above 0"]),
        (crop([f64::NAN, 1.0]), ["augment.crop.scale", "NaN", "above 0"]),
        (
            AugmentConfig { size: Some(1), blur: Some(BlurConfig::default()), ..base() },
            ["augment.blur", "1 pixels", "raise augment.size"],
        ),
        (
            AugmentConfig { normalize: Some(NormalizeConfig { mean: [0.0; 3], std: [1.0, 0.0, 1.0] }), ..base() },
            ["augment.normalize.std", "0", "above 0"],
        ),
    ] {
        let e = Views::new(&config, config.size.unwrap_or(32)).unwrap_err();
        assert!(e.exit_code() == 2 && parts.iter().all(|part| e.to_string().contains(part)), "{e}");
    }
    assert!(Views::new(&base(), 0).is_err() && Views::new(&base(), 4097).is_err());
}
