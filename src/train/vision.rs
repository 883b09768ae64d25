//! Vision pretraining: two augmented views of each image.

use super::plan::Plan;
use super::step::{Learner, is_finite};
use super::task::Task;
use crate::checkpoint::{Value, safetensors, sha256_of, torch_file, write_bytes};
use crate::config::augment::NormalizeConfig;
use crate::config::eval::KnnConfig;
use crate::config::model::EncoderConfig;
use crate::config::vision::{Views, VisionConfig};
use crate::data::{self, AugmentedImages, Batch, ImageSet, Split};
use crate::dist::Group;
use crate::error::Result;
use crate::eval::{knn, run::features_of};
use crate::loss::Layout;
use crate::model::{Model, Store, channels_last};
use crate::report::contact_sheet::{View, contact_sheet};
use crate::run::RunFolder;
use std::ops::Range;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Training on images.
pub struct Vision {
    images: Arc<ImageSet>,
    monitor: Option<Monitor>,
}

/// The labelled images of the evaluation while training.
struct Monitor {
    train: Arc<ImageSet>,
    test: ImageSet,
}

/// Encoder and projector, and how views pass them.
pub struct VisionModel {
    /// Encoder and projector.
    pub model: Model,
    /// How the views pass the encoder.
    pub views: Views,
    /// Whether images come channels last in memory.
    pub channels_last: bool,
}

impl Learner for VisionModel {
    /// Two views, [B, 3, H, W] each.
    type Batch = [Tensor; 2];

    fn parameters(&self) -> Vec<(String, Tensor)> {
        self.model.parameters()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.model.buffers()
    }

    fn samples([view_1, _]: &[Tensor; 2]) -> i64 {
        view_1.size().first().copied().unwrap_or(0)
    }

    fn part(views: &[Tensor; 2], samples: Range<i64>) -> Result<[Tensor; 2]> {
        let cut = |view: &Tensor| view.f_narrow(0, samples.start, samples.end - samples.start);
        Ok([cut(&views[0])?, cut(&views[1])?])
    }

    fn embed(&self, [view_1, view_2]: &[Tensor; 2]) -> Result<(Tensor, Tensor)> {
        let laid_out = |view: &Tensor| if self.channels_last { channels_last(view) } else { Ok(view.shallow_clone()) };
        let (view_1, view_2) = (laid_out(view_1)?, laid_out(view_2)?);
        Ok(match self.views {
            Views::Separate => (self.model.forward(&view_1, true)?.1, self.model.forward(&view_2, true)?.1),
            Views::Joint => {
                let n = view_1.size()[0];
                let z = self.model.forward(&Tensor::f_cat(&[view_1, view_2], 0)?, true)?.1;
                (z.f_narrow(0, 0, n)?, z.f_narrow(0, n, n)?)
            }
        })
    }

    fn fault(&self, views: &[Tensor; 2]) -> Result<Option<String>> {
        for (name, view) in ["view 1", "view 2"].into_iter().zip(views) {
            if !is_finite(view)? {
                return Ok(Some(format!("the images of {name} are not finite")));
            }
        }
        Ok(None)
    }
}

impl Task for Vision {
    type Config = VisionConfig;
    type Model = VisionModel;
    type Source = AugmentedImages;

    const UNIT: &'static str = "images";
    const OTHERS: &'static str = "of other names or classes";

    fn layout(_: &VisionConfig) -> Layout {
        Layout::TwoView
    }

    fn open(config: &VisionConfig) -> Result<Vision> {
        let images = Arc::new(data::load(&config.data, Split::Pretrain)?);
        let monitor = if config.eval.knn_every > 0 {
            let apart = config.data.pretrains_apart();
            let train = if apart { Arc::new(data::load(&config.data, Split::Train)?) } else { images.clone() };
            Some(Monitor { train, test: data::load(&config.data, Split::Test)? })
        } else {
            None
        };
        Ok(Vision { images, monitor })
    }

    fn model(&self, config: &VisionConfig, device: Device, group: &Group) -> Result<VisionModel> {
        let model = Model::new(&config.model, config.augment.view_size(self.images.shape())?)?;
        model.to_device(device)?;
        if config.train.sync_batch_norm && !group.is_alone() {
            model.encoder.synchronise(group)?;
        }
        if config.channels_last && device.is_cuda() {
            model.encoder.store().channels_last()?;
        }
        Ok(VisionModel { model, views: config.train.views, channels_last: config.channels_last })
    }

    fn spared(model: &VisionModel) -> Vec<String> {
        model.model.no_weight_decay()
    }

    fn code_sha256(config: &VisionConfig) -> Result<Option<String>> {
        match &config.model.encoder {
            EncoderConfig::Torchscript(c) => sha256_of(&c.path).map(Some),
            _ => Ok(None),
        }
    }

    fn parts(model: &VisionModel) -> Vec<(&'static str, &Store)> {
        vec![("model", model.model.encoder.store()), ("projector", model.model.projector.store())]
    }

    fn load_weights(plan: &Plan<Vision>) -> Result<Vec<String>> {
        let weights = plan.config.model.weights.as_ref();
        weights.map_or(Ok(Vec::new()), |config| plan.stepper.model.model.load_file(config))
    }

    fn samples(&self) -> usize {
        self.images.len()
    }

    fn list_sha256(&self) -> &str {
        &self.images.list_sha256
    }

    fn location(config: &VisionConfig) -> String {
        config.data.location()
    }

    fn memory(&self) -> usize {
        let monitor = self.monitor.as_ref().map_or(0, |m| {
            let train = if Arc::ptr_eq(&m.train, &self.images) { 0 } else { m.train.memory_bytes() };
            train + m.test.memory_bytes()
        });
        self.images.memory_bytes() + monitor
    }

    fn source(&self, config: &VisionConfig) -> Result<(AugmentedImages, usize)> {
        Ok((AugmentedImages::new(self.images.clone(), &config.augment)?, config.data.threads()))
    }

    fn on_device(batch: &Batch, device: Device) -> Result<[Tensor; 2]> {
        Ok([batch.view_1.f_to_device(device)?, batch.view_2.f_to_device(device)?])
    }

    fn indices(batch: &Batch) -> Vec<i64> {
        batch.indices.clone()
    }

    fn evaluate(plan: &Plan<Vision>, step: u64) -> Result<Option<(&'static str, f64)>> {
        let due = step.is_multiple_of(plan.steps_per_epoch.saturating_mul(plan.config.eval.knn_every.max(1)));
        let Some(Monitor { train, test }) = plan.task.monitor.as_ref().filter(|_| due) else { return Ok(None) };
        let size = plan.config.augment.view_size(plan.task.images.shape())?;
        let encoder = plan.stepper.model.model.encoder.as_ref();
        let features = |set: &ImageSet, name| features_of(encoder, &plan.config, set, size, plan.device, name);
        let (bank, queries) = (features(train, "training images")?, features(test, "test images")?);
        let config = KnnConfig { validation: 0.0, ..KnnConfig::default() };
        let found = knn::evaluate(&config, &bank, &queries, knn::DEFAULT_BATCH, plan.device, &mut |_, _| ())?;
        Ok(Some(("knn_accuracy", found.test_accuracy)))
    }

    /// The list of the files that are left out, if there are some: path, tab, reason.
    fn write_notes(plan: &Plan<Vision>, folder: &RunFolder) -> Result<()> {
        let bad = &plan.task.images.bad_files;
        if bad.is_empty() {
            return Ok(());
        }
        let lines = bad.iter().map(|bad| format!("{}\t{}\n", bad.path.display(), bad.reason));
        write_bytes(&folder.bad_files(), lines.collect::<String>())
    }

    /// A sheet of the first augmented pairs: view 1 above view 2, 12 images a row of pairs.
    fn write_pictures(plan: &Plan<Vision>, folder: &RunFolder) -> Result<()> {
        const PAIRS: i64 = 12;
        let first = plan.batch(0)?;
        let mut rows = Vec::new();
        for view in [&first.view_1, &first.view_2] {
            let n = PAIRS.min(view.size()[0]);
            let bytes = pixels(&view.f_narrow(0, 0, n)?, plan.config.augment.normalize.as_ref())?;
            let (height, width) = (bytes.size()[2] as usize, bytes.size()[3] as usize);
            let sheet = (0..n).map(|i| {
                let pixels = Vec::<u8>::try_from(bytes.f_get(i)?.f_flatten(0, -1)?)?;
                Ok(View { height, width, pixels })
            });
            rows.push(sheet.collect::<Result<Vec<View>>>()?);
        }
        let scale = 64usize.div_ceil(rows[0][0].width).clamp(1, 6);
        let path = folder.report().join("views.png");
        let png = contact_sheet(&rows, scale)?;
        write_bytes(&path, png)
    }

    /// Encoder and projector, each as safetensors and as a torch.save file, under the names of torchvision, timm and the authors.
    fn write_weights(plan: &mut Plan<Vision>, folder: &RunFolder) -> Result<()> {
        let model = &plan.stepper.model.model;
        for (name, store) in [("encoder", model.encoder.store()), ("projector", model.projector.store())] {
            let path = folder.checkpoints().join(name);
            let tensors: Vec<(String, Tensor)> = store.state_dict();
            safetensors::save(&path.with_extension("safetensors"), &tensors, &Default::default())?;
            torch_file::save(&path.with_extension("pt"), &Value::state_dict(tensors))?;
        }
        Ok(())
    }

    fn name(plan: &Plan<Vision>) -> String {
        plan.config.model.encoder.name().to_string()
    }

    fn features(plan: &Plan<Vision>) -> Option<i64> {
        Some(plan.stepper.model.model.encoder.features())
    }

    fn dimensions(plan: &Plan<Vision>) -> Option<i64> {
        Some(plan.config.model.projector.dim)
    }
}

/// Images as bytes again, after the normalisation is taken back.
fn pixels(images: &Tensor, normalize: Option<&NormalizeConfig>) -> Result<Tensor> {
    let mut images = images.shallow_clone();
    if let Some(n) = normalize {
        let channels = |values: &[f32; 3]| Tensor::from_slice(values).f_view([1, 3, 1, 1]);
        images = images.f_mul(&channels(&n.std)?)?.f_add(&channels(&n.mean)?)?;
    }
    Ok(images.f_mul_scalar(255.0)?.f_round()?.f_clamp(0.0, 255.0)?.f_to_kind(Kind::Uint8)?)
}
