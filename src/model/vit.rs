//! Vision Transformer without the classifier: timm's `vit_small_patch16_224` and its kin, name for name and number for number.

use super::Encoder;
use super::fit::OtherNames;
use super::layers::{LayerNorm, Linear, trunc_normal};
use super::resnet::check_images;
use super::store::{Path, Store, is_float};
use crate::config::model::VitConfig;
use crate::error::{Error, Result};
use tch::{Device, Kind, Tensor};

/// The standard deviation that positions and linear layers start with.
const STD: f64 = 0.02;
/// What timm adds to the variance in layer normalisation.
const EPS: f64 = 1e-6;

/// The largest patches, in pixels an edge, between which weights are resampled: the matrix of that has the fourth power of it.
const MOST_RESAMPLED: i64 = 64;

/// Images to one vector a patch: a convolution whose kernels do not overlap.
#[derive(Debug)]
struct Patches {
    weight: Tensor,
    bias: Tensor,
    patch: i64,
}

impl Patches {
    /// Initialised as `torch.nn.Conv2d`, which timm leaves as it is.
    fn new(path: &Path, patch: i64, width: i64) -> Result<Patches> {
        let bound = 1.0 / ((3 * patch * patch) as f64).sqrt();
        let drawn = |size: &[i64]| {
            Ok::<_, Error>(Tensor::f_empty(size, (Kind::Float, Device::Cpu))?.f_uniform_(-bound, bound)?)
        };
        let weight = path.parameter("weight", drawn(&[width, 3, patch, patch])?)?;
        Ok(Patches { weight, bias: path.parameter("bias", drawn(&[width])?)?, patch })
    }

    /// [B, 3, H, W] to [B, patches, width], row by row of the image.
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let x = images.f_conv2d(&self.weight, Some(&self.bias), self.patch, 0, 1, 1)?;
        Ok(x.f_flatten(2, -1)?.f_transpose(1, 2)?)
    }
}

/// Multi-head self-attention.
#[derive(Debug)]
struct Attention {
    qkv: Linear,
    proj: Linear,
    heads: i64,
}

impl Attention {
    fn new(path: &Path, width: i64, heads: i64) -> Result<Attention> {
        Ok(Attention {
            qkv: Linear::trunc_normal(&(path / "qkv"), width, 3 * width, STD)?,
            proj: Linear::trunc_normal(&(path / "proj"), width, width, STD)?,
            heads,
        })
    }

    /// What the first `queries` tokens gather from all of them: [B, tokens, width] to [B, queries, width].
    fn forward(&self, x: &Tensor, queries: i64) -> Result<Tensor> {
        let (batch, tokens, width) = x.size3()?;
        let qkv = self.qkv.forward(x)?.f_reshape([batch, tokens, 3, self.heads, width / self.heads])?;
        let qkv = qkv.f_permute([2, 0, 3, 1, 4])?;
        let (q, k, v) = (qkv.f_get(0)?.f_narrow(2, 0, queries)?, qkv.f_get(1)?, qkv.f_get(2)?);
        let mask = None::<&Tensor>;
        let x = Tensor::f_scaled_dot_product_attention(&q, &k, &v, mask, 0.0, false, None, false)?;
        self.proj.forward(&x.f_transpose(1, 2)?.f_reshape([batch, queries, width])?)
    }
}

/// A block with its normalisations ahead of attention and perceptron.
#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Block {
    fn new(path: &Path, width: i64, heads: i64) -> Result<Block> {
        let mlp = path / "mlp";
        Ok(Block {
            norm1: LayerNorm::new(&(path / "norm1"), width, EPS)?,
            attn: Attention::new(&(path / "attn"), width, heads)?,
            norm2: LayerNorm::new(&(path / "norm2"), width, EPS)?,
            fc1: Linear::trunc_normal(&(&mlp / "fc1"), width, 4 * width, STD)?,
            fc2: Linear::trunc_normal(&(&mlp / "fc2"), 4 * width, width, STD)?,
        })
    }

    /// The first `kept` tokens after the block: [B, tokens, width] to [B, kept, width].
    fn forward(&self, x: &Tensor, kept: i64) -> Result<Tensor> {
        let attended = self.attn.forward(&self.norm1.forward(x)?, kept)?;
        let x = x.f_narrow(1, 0, kept)?.f_add(&attended)?;
        let hidden = self.fc1.forward(&self.norm2.forward(&x)?)?.f_gelu("none")?;
        Ok(x.f_add(&self.fc2.forward(&hidden)?)?)
    }
}

#[derive(Debug)]
struct Layers {
    cls_token: Tensor,
    pos_embed: Tensor,
    patches: Patches,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

/// A Vision Transformer that gives the normalised class token.
///
/// # Shapes
/// Images [B, 3, S, S] of the one size S that it was made for to features [B, width].
///
/// # Source
/// timm 1.0.31, `create_model("vit_small_patch16_224", num_classes=0, img_size=S, patch_size=P)`: A. Dosovitskiy et al., *An
/// Image is Worth 16x16 Words*, 2021, in the small size of DeiT.
#[derive(Debug)]
pub struct Vit {
    layers: Layers,
    store: Store,
    size: i64,
    width: i64,
}

impl Vit {
    /// A freshly initialised transformer for images of `size` pixels an edge, on the CPU, from LibTorch's generator
    /// (`tch::manual_seed`).
    ///
    /// # Errors
    /// Values that the configuration does not allow, a size that is no multiple of the patches', and whatever LibTorch reports.
    pub fn new(config: &VitConfig, size: usize) -> Result<Vit> {
        config.validate()?;
        let &VitConfig { patch_size: patch, width, depth, heads } = config;
        let edge = size as i64;
        let grid = edge / patch;
        if grid < 1 || edge % patch != 0 {
            let fits = (1..=patch.min(edge)).rev().find(|p| edge % p == 0).unwrap_or(1);
            return Err(Error::Config(format!(
                "model.encoder.patch_size: views of {edge} pixels an edge are not made of whole patches of {patch}; expected \
                 augment.size as a multiple of it, such as {}, or another patch_size, such as {fits}",
                edge.div_euclid(patch).saturating_add(1) * patch
            )));
        }
        let (layers, store) = Store::build(|root| {
            // In timm's order of drawing, which is not that of the names.
            let pos_embed = trunc_normal(&[1, 1 + grid * grid, width], STD)?;
            let cls_token = Tensor::f_empty([1, 1, width], (Kind::Float, Device::Cpu))?.f_normal_(0.0, 1e-6)?;
            Ok(Layers {
                cls_token: root.parameter("cls_token", cls_token)?,
                pos_embed: root.parameter("pos_embed", pos_embed)?,
                patches: Patches::new(&(root / "patch_embed" / "proj"), patch, width)?,
                blocks: (0..depth).map(|i| Block::new(&(root / "blocks" / i), width, heads)).collect::<Result<_>>()?,
                norm: LayerNorm::new(&(root / "norm"), width, EPS)?,
            })
        })?;
        Ok(Vit { layers, store, size: edge, width })
    }
}

impl Encoder for Vit {
    /// Training and evaluation compute the same: nothing is dropped.
    fn forward(&self, images: &Tensor, _train: bool) -> Result<Tensor> {
        check_images(images)?;
        let (batch, _, height, width) = images.size4()?;
        if (height, width) != (self.size, self.size) {
            return Err(Error::Input(format!(
                "encoder: expected images of {0}x{0} pixels, for which its position embeddings are, found {height}x{width}; \
                 resize the images, or make the encoder for their size",
                self.size
            )));
        }
        let Layers { cls_token, pos_embed, patches, blocks, norm } = &self.layers;
        let patches = patches.forward(images)?;
        let mut x = Tensor::f_cat(&[cls_token.f_expand([batch, -1, -1], false)?, patches], 1)?.f_add(pos_embed)?;
        let tokens = x.size3()?.1;
        for (i, block) in blocks.iter().enumerate() {
            // Of the last block, and of the normalisation after it, nothing but the class token is used.
            x = block.forward(&x, if i + 1 < blocks.len() { tokens } else { 1 })?;
        }
        norm.forward(&x.f_select(1, 0)?)
    }

    fn features(&self) -> i64 {
        self.width
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn other_names(&self) -> OtherNames {
        // DeiT, DINO, MoCo v3 and MAE have timm's names.
        OtherNames {
            spellings: vec![torchvision],
            classifiers: &["head.", "heads.", "pre_logits."],
            resample: Some(resample),
            ..OtherNames::default()
        }
    }

    fn no_weight_decay(&self) -> &'static [&'static str] {
        &["cls_token", "pos_embed"]
    }
}

/// torchvision's `VisionTransformer`, which differs in its names alone.
fn torchvision(name: &str) -> String {
    const PARTS: [(&str, &str); 10] = [
        ("cls_token", "class_token"),
        ("pos_embed", "encoder.pos_embedding"),
        ("patch_embed.proj.", "conv_proj."),
        ("norm.", "encoder.ln."),
        ("norm1.", "ln_1."),
        ("norm2.", "ln_2."),
        ("attn.qkv.", "self_attention.in_proj_"),
        ("attn.proj.", "self_attention.out_proj."),
        ("mlp.fc1.", "mlp.0."),
        ("mlp.fc2.", "mlp.3."),
    ];
    let spelt = |name: &str| {
        let parts = PARTS.iter();
        let mut found = parts.filter_map(|(own, other)| Some(format!("{other}{}", name.strip_prefix(own)?)));
        found.next().unwrap_or_else(|| name.to_string())
    };
    match name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
        Some((i, rest)) => format!("encoder.layers.encoder_layer_{i}.{}", spelt(rest)),
        None => spelt(name),
    }
}

/// Positions of another grid and kernels of other patches, as timm's `checkpoint_filter_fn` fits them to a model.
fn resample(name: &str, given: &Tensor, shape: &[i64]) -> Result<Option<Tensor>> {
    let kind = given.f_kind()?;
    if !is_float(kind) {
        return Ok(None);
    }
    let found = given.size();
    let resampled = match (name, &found[..], shape) {
        ("pos_embed", &[1, tokens, w], &[1, wanted, width]) if w == width => {
            let grid = |tokens: i64| (tokens - 1).checked_isqrt().filter(|g| *g > 0 && g * g == tokens - 1);
            let (Some(old), Some(new)) = (grid(tokens), grid(wanted)) else { return Ok(None) };
            resample_positions(given, old, new)?
        }
        ("patch_embed.proj.weight", &[w, 3, old, o], &[width, 3, new, n])
            if w == width && o == old && n == new && old > 0 && old.max(new) <= MOST_RESAMPLED =>
        {
            resample_kernels(given, old, new)?
        }
        _ => return Ok(None),
    };
    Ok(Some(resampled.f_to_kind(kind)?))
}

/// timm's `resample_abs_pos_embed`: the class token's position stays, the others are an image of `old` x `old` that is resized.
fn resample_positions(given: &Tensor, old: i64, new: i64) -> Result<Tensor> {
    let width = given.size3()?.2;
    let given = given.f_to_kind(Kind::Float)?;
    let grid = given.f_narrow(1, 1, old * old)?.f_reshape([1, old, old, width])?.f_permute([0, 3, 1, 2])?;
    let grid = resize(&grid, new)?.f_permute([0, 2, 3, 1])?.f_reshape([1, new * new, width])?;
    Ok(Tensor::f_cat(&[given.f_narrow(1, 0, 1)?, grid], 1)?)
}

/// timm's `resample_patch_embed`: of all kernels of the new size those whose products with resized patches are nearest to the old
/// ones' with the patches (L. Beyer et al., *FlexiViT*, 2023).
fn resample_kernels(given: &Tensor, old: i64, new: i64) -> Result<Tensor> {
    let width = given.size4()?.0;
    let basis = Tensor::f_eye(old * old, (Kind::Float, given.device()))?.f_reshape([old * old, 1, old, old])?;
    let resizing = resize(&basis, new)?.f_reshape([old * old, new * new])?.f_tr()?;
    let inverse = resizing.f_linalg_pinv_atol_rtol_float(None, None, false)?;
    let kernels = given.f_to_kind(Kind::Float)?.f_reshape([width, 3, old * old])?.f_matmul(&inverse)?;
    Ok(kernels.f_reshape([width, 3, new, new])?)
}

/// `F.interpolate(mode="bicubic", antialias=True)` to `edge` x `edge`.
fn resize(images: &Tensor, edge: i64) -> Result<Tensor> {
    Ok(images.f_internal_upsample_bicubic2d_aa([edge, edge], false, None, None)?)
}
