//! Features and labels of a data set: read from safetensors files, written to them, or extracted from an encoder.

use crate::checkpoint;
use crate::error::{Error, Result};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// Key of the metadata under which a file says what its features were made from.
const ORIGIN: &str = "made_from";

/// Frozen features of a data set, one row a sample, with the sample's class.
///
/// # Shapes
/// n samples, d dimensions; both at least 1.
#[derive(Debug)]
pub struct Features {
    features: Tensor,
    labels: Tensor,
    label_values: Vec<i64>,
}

impl Features {
    /// Takes features and labels after checking them: shapes, finite float32 values, labels not negative.
    ///
    /// # Shapes
    /// `features` [n, d] of any float kind, `labels` `[n]` of any integer kind.
    ///
    /// # Errors
    /// [`Error::Input`] for shapes and kinds, [`Error::NonFinite`] for values, naming the first row.
    pub fn new(features: &Tensor, labels: &Tensor) -> Result<Features> {
        let shape = features.size();
        let (&[n, d], kind) = (shape.as_slice(), features.kind()) else {
            return Err(Error::Input(format!(
                "features have shape {shape:?}; expected two dimensions, [samples, dimensions]"
            )));
        };
        if !matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double) {
            return Err(Error::Input(format!("features are {kind:?}; expected floating-point numbers")));
        }
        if n == 0 || d == 0 {
            return Err(Error::Input(format!(
                "features have shape [{n}, {d}]; expected at least one sample and one dimension"
            )));
        }
        if !matches!(labels.kind(), Kind::Int64 | Kind::Int | Kind::Int16 | Kind::Int8 | Kind::Uint8) {
            return Err(Error::Input(format!("labels are {:?}; expected integers", labels.kind())));
        }
        if labels.size() != [n] {
            return Err(Error::Input(format!(
                "labels have shape {:?}; expected [{n}], one label for each of the {n} rows of features",
                labels.size()
            )));
        }
        let _guard = tch::no_grad_guard();
        let given = features.f_detach()?.f_to_device(Device::Cpu)?;
        let features = given.f_to_kind(Kind::Float)?.f_contiguous()?;
        let finite_rows = features.f_isfinite()?.f_all_dim(1, false)?;
        let bad = finite_rows.f_logical_not()?;
        let count = bad.f_sum(Kind::Int64)?.f_int64_value(&[])?;
        if count > 0 {
            let row = bad.f_to_kind(Kind::Uint8)?.f_argmax(0, false)?.f_int64_value(&[])?;
            let width = if kind == Kind::Double { " or beyond the range of float32" } else { "" };
            return Err(Error::NonFinite(format!(
                "features are not finite{width} in {count} of {n} rows, the first of them row {row}; find where the encoder \
                 diverged, or leave these samples out"
            )));
        }
        let zero_rows = |t: &Tensor| t.f_eq(0.0)?.f_all_dim(1, false);
        let vanished = zero_rows(&features)?.f_sum(Kind::Int64)?.f_sub(&zero_rows(&given)?.f_sum(Kind::Int64)?)?;
        let vanished = vanished.f_int64_value(&[])?;
        if vanished > 0 {
            return Err(Error::Input(format!(
                "{vanished} of {n} rows of features are not 0 but too small for float32, which would make them 0; scale the features up"
            )));
        }
        let labels = labels.f_to_device(Device::Cpu)?.f_to_kind(Kind::Int64)?.f_contiguous()?;
        let values = Vec::<i64>::try_from(&labels)?;
        if let Some(row) = values.iter().position(|&l| l < 0) {
            return Err(Error::Input(format!(
                "label {} of row {row} is negative; expected classes from 0 upwards (unlabelled samples must be left out)",
                values[row]
            )));
        }
        Ok(Features { features, labels, label_values: values })
    }

    /// Reads the keys `features` ([n, d], F16, BF16, F32 or F64) and `labels` (`[n]`, I64, I32 or U8) of a safetensors file.
    ///
    /// # Errors
    /// An unreadable file, one that is no safetensors, missing keys, and what [`Features::new`] refuses; each names the file.
    pub fn read(path: &Path) -> Result<Features> {
        let bytes = std::fs::read(path).map_err(Error::io(path, "cannot read the features"))?;
        Features::from_bytes(&bytes, path)
    }

    /// As [`Features::read`], from the file's bytes; `path` names it in errors.
    ///
    /// # Errors
    /// As [`Features::read`].
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Features> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| {
            Error::data(
                path,
                None,
                format!(
                    "no safetensors file ({e}; {} bytes); expected one with the keys `features` and `labels`, as \
                     safetensors.torch.save_file writes it",
                    bytes.len()
                ),
            )
        })?;
        let get = |key: &str, allowed: &[(Dtype, Kind)]| -> Result<Tensor> {
            let view = file.tensor(key).map_err(|_| {
                let mut names = file.names();
                names.sort_unstable();
                names.truncate(20);
                Error::data(
                    path,
                    None,
                    format!("has no key `{key}`; it has {names:?}; expected `features` [n, d] and `labels` [n]"),
                )
            })?;
            let kind =
                allowed.iter().find(|(dtype, _)| *dtype == view.dtype()).map(|(_, kind)| *kind).ok_or_else(|| {
                    let names: Vec<String> = allowed.iter().map(|(dtype, _)| format!("{dtype:?}")).collect();
                    Error::data(
                        path,
                        None,
                        format!("`{key}` is {:?}; expected one of {}", view.dtype(), names.join(", ")),
                    )
                })?;
            let shape = view.shape().iter().map(|&s| i64::try_from(s)).collect::<std::result::Result<Vec<_>, _>>();
            let shape =
                shape.map_err(|_| Error::data(path, None, format!("`{key}` has the shape {:?}", view.shape())))?;
            if view.data().is_empty() {
                return Err(Error::data(
                    path,
                    None,
                    format!("`{key}` is empty, shape {shape:?}; expected at least one sample"),
                ));
            }
            Ok(Tensor::f_from_data_size(view.data(), &shape, kind)?)
        };
        let floats = [
            (Dtype::F16, Kind::Half),
            (Dtype::BF16, Kind::BFloat16),
            (Dtype::F32, Kind::Float),
            (Dtype::F64, Kind::Double),
        ];
        let integers = [(Dtype::I64, Kind::Int64), (Dtype::I32, Kind::Int), (Dtype::U8, Kind::Uint8)];
        Features::new(&get("features", &floats)?, &get("labels", &integers)?).map_err(|e| match e {
            Error::Input(message) => Error::data(path, None, message),
            Error::NonFinite(message) => Error::NonFinite(format!("{}: {message}", path.display())),
            other => other,
        })
    }

    /// Writes the features (F32) and labels (I64) as a safetensors file, and in its metadata what they were made from.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn write(&self, path: &Path, origin: &str) -> Result<()> {
        let named = [("features", &self.features), ("labels", &self.labels)];
        let tensors = named.map(|(name, t)| (name.to_string(), t.shallow_clone()));
        checkpoint::safetensors::save(path, &tensors, &BTreeMap::from([(ORIGIN.into(), origin.into())]))
    }

    /// Reads what [`Features::write`] wrote; none where the file was made from something else.
    ///
    /// # Errors
    /// As [`Features::read`].
    pub fn read_from(path: &Path, origin: &str) -> Result<Option<Features>> {
        let bytes = std::fs::read(path).map_err(Error::io(path, "cannot read the features"))?;
        let metadata = SafeTensors::read_metadata(&bytes)
            .map_err(|e| Error::data(path, None, format!("no safetensors file: {e}")))?;
        let found = metadata.1.metadata().as_ref().and_then(|m| m.get(ORIGIN));
        if found.is_none_or(|found| found != origin) {
            return Ok(None);
        }
        Features::from_bytes(&bytes, path).map(Some)
    }

    /// The features without as many as are more than full batches of `batch`, as a loader with `drop_last` gives them: the last
    /// ones, or, with a seed, those at the end of an order that it draws.
    ///
    /// # Errors
    /// Less than a batch.
    pub fn drop_last(&self, batch: usize, order: Option<u64>) -> Result<Features> {
        let n = self.samples();
        let kept = n / batch * batch;
        if kept == 0 {
            return Err(Error::Input(format!(
                "{n} samples are less than a batch of {batch}: dropping the last batch leaves none; leave --drop-last out"
            )));
        }
        let mut indices: Vec<i64> = (0..n as i64).collect();
        if let Some(seed) = order {
            indices.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        indices.truncate(kept);
        indices.sort_unstable();
        let rows = Tensor::f_from_slice(&indices)?;
        Features::new(&self.features.f_index_select(0, &rows)?, &self.labels.f_index_select(0, &rows)?)
    }

    /// The features, float32 on the CPU.
    ///
    /// # Shapes
    /// [n, d]
    pub fn features(&self) -> &Tensor {
        &self.features
    }

    /// The labels, int64 on the CPU.
    ///
    /// # Shapes
    /// `[n]`
    pub fn labels(&self) -> &Tensor {
        &self.labels
    }

    /// The labels as numbers.
    pub fn label_values(&self) -> &[i64] {
        &self.label_values
    }

    /// n, the number of samples.
    pub fn samples(&self) -> usize {
        self.label_values.len()
    }

    /// d, the number of dimensions.
    pub fn dim(&self) -> usize {
        self.features.size().last().map_or(0, |&d| d as usize)
    }
}

/// The classes of the training part, numbered by the order of their labels, and the test samples in these numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Classes {
    /// The labels that occur in the training part, ascending; a class's number is its place here.
    pub labels: Vec<i64>,
    /// Class number of each training sample.
    pub train: Vec<usize>,
    /// Class number of each test sample; none where the class does not occur in the training part: never predicted right.
    pub test: Vec<Option<usize>>,
    /// The labels that occur in the test part only, ascending.
    pub only_in_test: Vec<i64>,
}

impl Classes {
    /// Numbers the classes of two sets of features that belong together.
    ///
    /// # Errors
    /// [`Error::Input`] where their dimensions differ.
    pub fn of(train: &Features, test: &Features) -> Result<Classes> {
        if train.dim() != test.dim() {
            return Err(Error::Input(format!(
                "training features have {} dimensions and test features {}; both must come from the same encoder",
                train.dim(),
                test.dim()
            )));
        }
        let labels: Vec<i64> = train.label_values.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let number: BTreeMap<i64, usize> = labels.iter().enumerate().map(|(i, &l)| (l, i)).collect();
        let test_numbers = test.label_values.iter().map(|l| number.get(l).copied()).collect();
        let unseen: BTreeSet<i64> = test.label_values.iter().copied().filter(|l| !number.contains_key(l)).collect();
        Ok(Classes {
            train: train.label_values.iter().filter_map(|l| number.get(l).copied()).collect(),
            test: test_numbers,
            only_in_test: unseen.into_iter().collect(),
            labels,
        })
    }

    /// Refuses a training part of one class.
    pub(super) fn refuse_one(&self) -> Result<()> {
        if self.count() < 2 {
            return Err(Error::Input(format!(
                "all training samples have the label {}; a linear probe needs two classes or more",
                self.labels[0]
            )));
        }
        Ok(())
    }

    /// The number of classes in the training part.
    pub fn count(&self) -> usize {
        self.labels.len()
    }
}

/// Extracts the features of every sample, once, in the order of the batches and without gradients.
///
/// `encode` is the encoder in evaluation mode, so that a sample's features do not depend on its batch. `progress` gets the
/// number of samples done.
///
/// # Shapes
/// A batch is images [b, ...] and labels `[b]`; `encode` gives [b, d]. b may differ from batch to batch.
///
/// # Errors
/// What the batches and the encoder report; features that are not [b, d] or not finite; no batch at all.
pub fn extract(
    batches: impl IntoIterator<Item = Result<(Tensor, Tensor)>>,
    mut encode: impl FnMut(&Tensor) -> Result<Tensor>,
    mut progress: impl FnMut(u64),
) -> Result<Features> {
    let _guard = tch::no_grad_guard();
    let (mut features, mut labels, mut done) = (Vec::new(), Vec::new(), 0);
    for batch in batches {
        let (images, batch_labels) = batch?;
        let encoded = encode(&images)?;
        let (rows, shape) = (batch_labels.size(), encoded.size());
        if shape.len() != 2 || rows != shape[..1] {
            return Err(Error::Input(format!(
                "the encoder gave features of shape {shape:?} for labels of shape {rows:?}; expected [b, d] for [b]"
            )));
        }
        features.push(encoded.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?);
        labels.push(batch_labels.f_to_device(Device::Cpu)?.f_to_kind(Kind::Int64)?);
        done += u64::try_from(shape[0]).unwrap_or(0);
        progress(done);
    }
    if features.is_empty() {
        return Err(Error::Input(
            "the data set has no batch to extract features from; expected at least one sample".into(),
        ));
    }
    Features::new(&Tensor::f_cat(&features, 0)?, &Tensor::f_cat(&labels, 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    fn write(tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (*name, TensorView::new(*dtype, shape.clone(), data).expect("a valid test tensor"))
        });
        safetensors::serialize(views, None).expect("a valid test file")
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn error(bytes: &[u8]) -> Error {
        Features::from_bytes(bytes, Path::new("f.safetensors")).expect_err("must be refused")
    }

    #[test]
    fn label_kinds_and_float_widths_are_read_alike() {
        let f64s: Vec<u8> = [1.5f64, -2.0, 0.25, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let bf16: Vec<u8> =
            [1.5f32, -2.0, 0.25, 4.0].iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let i32s: Vec<u8> = [3i32, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let i64s: Vec<u8> = [3i64, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
        for (kind, floats) in [(Dtype::F32, f32s(&[1.5, -2.0, 0.25, 4.0])), (Dtype::F64, f64s), (Dtype::BF16, bf16)] {
            for (label_kind, labels) in
                [(Dtype::I64, i64s.clone()), (Dtype::I32, i32s.clone()), (Dtype::U8, vec![3, 0])]
            {
                let bytes =
                    write(&[("features", kind, vec![2, 2], floats.clone()), ("labels", label_kind, vec![2], labels)]);
                let got = Features::from_bytes(&bytes, Path::new("f")).unwrap();
                assert_eq!(got.label_values(), [3, 0]);
                assert_eq!(Vec::<f32>::try_from(got.features().flatten(0, -1)).unwrap(), [1.5, -2.0, 0.25, 4.0]);
            }
        }
    }

    #[test]
    fn wrong_files_are_named_with_what_is_wrong() {
        let good = f32s(&[1.0, 2.0]);
        let labels = vec![0u8, 1];
        let file = |f: (Dtype, Vec<usize>, Vec<u8>), l: (Dtype, Vec<usize>, Vec<u8>)| {
            write(&[("features", f.0, f.1, f.2), ("labels", l.0, l.1, l.2)])
        };
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (vec![], "no safetensors file"),
            (vec![0xff; 64], "no safetensors file"),
            (write(&[("feats", Dtype::F32, vec![2, 1], good.clone())]), "no key `features`; it has [\"feats\"]"),
            (write(&[("features", Dtype::F32, vec![2, 1], good.clone())]), "no key `labels`"),
            (file((Dtype::I32, vec![2, 1], good.clone()), (Dtype::U8, vec![2], labels.clone())), "`features` is I32"),
            (file((Dtype::F32, vec![2, 1], good.clone()), (Dtype::F32, vec![2], good.clone())), "`labels` is F32"),
            (file((Dtype::F32, vec![2], good.clone()), (Dtype::U8, vec![2], labels.clone())), "shape [2]"),
            (
                file((Dtype::F32, vec![1, 2], good.clone()), (Dtype::U8, vec![2], labels.clone())),
                "labels have shape [2]",
            ),
            (
                file((Dtype::F32, vec![2, 1], good.clone()), (Dtype::U8, vec![2, 1], labels.clone())),
                "labels have shape [2, 1]",
            ),
            (file((Dtype::F32, vec![0, 4], vec![]), (Dtype::U8, vec![0], vec![])), "empty"),
            (file((Dtype::F32, vec![2, 1], f32s(&[1.0, f32::NAN])), (Dtype::U8, vec![2], labels.clone())), "row 1"),
            (
                file((Dtype::F32, vec![1, 1], f32s(&[1.0])), (Dtype::I32, vec![1], (-1i32).to_le_bytes().to_vec())),
                "negative",
            ),
            (file((Dtype::F64, vec![1, 1], 1e300f64.to_le_bytes().to_vec()), (Dtype::U8, vec![1], vec![0])), "float32"),
        ];
        for (bytes, expected) in cases {
            let message = error(&bytes).to_string();
            assert!(message.contains(expected) && message.contains("f.safetensors"), "{message} ({expected})");
        }
    }

    #[test]
    fn every_truncation_is_an_error_and_never_a_panic() {
        let bytes = write(&[
            ("features", Dtype::F32, vec![2, 1], f32s(&[1.0, 2.0])),
            ("labels", Dtype::U8, vec![2], vec![0, 1]),
        ]);
        for n in 0..bytes.len() {
            error(&bytes[..n]);
        }
    }

    #[test]
    fn rows_that_float32_would_make_zero_are_refused_and_single_values_are_not() {
        let labels = Tensor::from_slice(&[0i64, 1]);
        let new = |rows: &[f64; 4]| Features::new(&Tensor::from_slice(rows).view([2, 2]), &labels);
        let e = new(&[1.0, 2.0, 1e-300, 1e-200]).unwrap_err().to_string();
        assert!(e.contains("1 of 2 rows") && e.contains("too small for float32"), "{e}");
        assert!(new(&[1.0, 1e-300, 0.0, 0.0]).is_ok());
    }

    #[test]
    fn written_features_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.safetensors");
        let made = Features::new(&Tensor::from_slice2(&[[0.1f32, 2.0], [3.0, -4.0]]), &Tensor::from_slice(&[7i64, 2]))
            .unwrap();
        made.write(&path, "weights a").unwrap();
        for read in [Features::read(&path).unwrap(), Features::read_from(&path, "weights a").unwrap().unwrap()] {
            assert!(read.features().equal(made.features()) && read.label_values() == [7, 2]);
        }
        assert!(Features::read_from(&path, "weights b").unwrap().is_none());
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(Features::read_from(&path, "weights a").is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the file");
    }

    #[test]
    fn extraction_sees_every_sample_once_whatever_the_batches() {
        let images = Tensor::arange(7 * 12, (Kind::Float, Device::Cpu)).view([7, 3, 2, 2]);
        let labels = Tensor::arange(7, (Kind::Int64, Device::Cpu));
        let run = |sizes: &[i64]| {
            let batches: Vec<Result<(Tensor, Tensor)>> =
                images.split_with_sizes(sizes, 0).into_iter().zip(labels.split_with_sizes(sizes, 0)).map(Ok).collect();
            let mut seen = 0;
            let got = extract(batches, |x| Ok(x.f_mean_dim([2i64, 3].as_slice(), false, Kind::Float)?), |n| seen = n)
                .unwrap();
            assert_eq!(seen, 7);
            got
        };
        let whole = run(&[7]);
        assert_eq!(whole.label_values(), [0, 1, 2, 3, 4, 5, 6]);
        for sizes in [vec![1; 7], vec![3, 4], vec![6, 1]] {
            assert!(run(&sizes).features().equal(whole.features()));
        }
        let none: Vec<Result<(Tensor, Tensor)>> = Vec::new();
        assert!(extract(none, |x| Ok(x.shallow_clone()), |_| ()).is_err());
    }

    #[test]
    fn classes_are_numbered_by_the_training_part() {
        let one = |labels: &[i64]| {
            Features::new(
                &Tensor::ones([labels.len() as i64, 2], (Kind::Float, Device::Cpu)),
                &Tensor::from_slice(labels),
            )
            .unwrap()
        };
        let got = Classes::of(&one(&[900, 5, 900]), &one(&[5, 6, 900, 6])).unwrap();
        assert_eq!(got.labels, [5, 900]);
        assert_eq!(got.train, [1, 0, 1]);
        assert_eq!(got.test, [Some(0), None, Some(1), None]);
        assert_eq!(got.only_in_test, [6]);
        let other =
            Features::new(&Tensor::ones([1, 3], (Kind::Float, Device::Cpu)), &Tensor::from_slice(&[5i64])).unwrap();
        assert!(Classes::of(&one(&[5]), &other).unwrap_err().to_string().contains("dimensions"));
    }
}
