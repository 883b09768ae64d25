//! Rows of runs: images and sentences, as their encoders see them in evaluation, under views, and as the loss sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tch::{Device, Kind, Tensor};
use weince::augment::{Canvas, Views};
use weince::checkpoint::{safetensors, sha256_of, torch_file};
use weince::config::text_model::Pooler;
use weince::data::{Decoder, Look, Split, eval_batches, pictures};
use weince::error::Error;
use weince::eval::embed::DEFAULT_BATCH;
use weince::eval::{Features, Matrix, RunEncoder, Space, TextRunEncoder, run};
use weince::model::{Bert, BertConfig};

/// More images than a batch of an evaluation has.
const IMAGES: &str = "
data: {kind: synthetic, train: 300, test: 40, size: 8}
augment: {size: 8}
model:
  encoder: {kind: resnet18, stem: small, width: 4}
  projector: {dim: 6, hidden: 5}
loss: {kind: infonce}
optim: {kind: adam, lr: 1.0e-3}
train: {epochs: 1, batch_size: 64}
";

/// A finished run in a folder of its own.
fn pretrained(binary: &str, config: &str, folder: &Path) -> PathBuf {
    let (file, run) = (folder.join("c.yaml"), folder.join("run"));
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(binary);
    command.arg("--config").arg(file).arg("--run-dir").arg(&run).args(["--device", "cpu"]);
    let out = command.env("OMP_NUM_THREADS", "1").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    run
}

fn images() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let run = pretrained(env!("CARGO_BIN_EXE_pretrain-vision"), IMAGES, folder.path());
    (folder, run)
}

fn open(run: &Path, checkpoint: Option<&Path>, space: Space) -> weince::Result<RunEncoder> {
    RunEncoder::open(run, checkpoint, space, Device::Cpu)
}

fn said<T>(result: weince::Result<T>) -> String {
    result.err().expect("must be refused").to_string()
}

fn remove_states(run: &Path) {
    let states = weince::run::RunFolder::open(run).unwrap().series().newest_first().unwrap();
    states.iter().for_each(|state| std::fs::remove_file(state).unwrap());
}

fn all(m: &Matrix) -> Vec<f32> {
    m.read(0..m.rows()).unwrap()
}

fn tensor(m: &Matrix) -> Tensor {
    Tensor::from_slice(&all(m)).view([m.rows() as i64, m.columns() as i64])
}

/// The largest difference, as a share of the largest number.
fn apart(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a - b).abs().max().double_value(&[]) / b.abs().max().double_value(&[])
}

/// float32 sums of other batches and in other orders.
const CLOSE: f64 = 1e-5;

#[test]
fn plain_rows_are_the_features_that_evaluations_keep() {
    let (_folder, run) = images();
    let features = run::inputs(&run, None, Device::Cpu).unwrap();
    let encoder = open(&run, None, Space::Encoder).unwrap();
    for (split, count, file, found) in
        [(Split::Train, 300, "train", &features.train), (Split::Test, 40, "test", &features.test)]
    {
        assert_eq!(encoder.images(split).unwrap(), count);
        assert_eq!(encoder.labels(split).unwrap(), found.label_values());
        let indices: Vec<usize> = (0..count).collect();
        let rows = tensor(&encoder.plain(split, &indices).unwrap());
        let kept = Features::read(&run.join(format!("results/features_{file}.safetensors"))).unwrap();
        assert!(rows.equal(kept.features()) && rows.equal(found.features()));
        // Some of them, in another order: the same rows.
        let some = [17, 3, 3, 39];
        let rows = tensor(&encoder.plain(split, &some).unwrap());
        let expected = kept.features().index_select(0, &Tensor::from_slice(&some.map(|i| i as i64)));
        assert!(apart(&rows, &expected) < CLOSE);
    }
    // What a run pretrains on are its training images.
    assert_eq!(encoder.labels(Split::Pretrain).unwrap(), encoder.labels(Split::Train).unwrap());
    let source = encoder.source().unwrap();
    assert_eq!(source["checkpoint_sha256"], sha256_of(&run.join("checkpoints/encoder.safetensors")).unwrap());
    assert_eq!((&source["space"], &source["step"], encoder.step()), (&"encoder".into(), &().into(), None));
    assert_eq!(source["data"]["train"]["sha256"], features.data.train.sha256);
    assert_eq!(source["data"]["test"]["sha256"], features.data.test.sha256);
    assert_eq!(features.checkpoint_sha256.as_deref(), Some(encoder.checkpoint_sha256()));
}

#[test]
fn the_projectors_rows_are_its_two_layers_over_the_encoders() {
    let (_folder, run) = images();
    let state = run.join("checkpoints/step-000000004.pt");
    let projected = open(&run, None, Space::Projector).unwrap();
    assert_eq!((projected.step(), projected.weights()), (Some(4), state.as_path()));
    let encoder = open(&run, Some(&state), Space::Encoder).unwrap();
    assert_eq!(encoder.step(), Some(4));
    let value = torch_file::load(&state).unwrap();
    let layers: BTreeMap<String, Tensor> = value.get("projector").unwrap().tensors().unwrap().into_iter().collect();
    let by_hand = |h: &Tensor| h.matmul(&layers["0.weight"].tr()).relu().matmul(&layers["2.weight"].tr());
    let indices: Vec<usize> = (0..300).rev().collect();
    let pairs = [
        (projected.plain(Split::Train, &indices), encoder.plain(Split::Train, &indices)),
        (projected.views(Split::Train, &indices, 3, 1), encoder.views(Split::Train, &indices, 3, 1)),
    ];
    for (z, h) in pairs.map(|(z, h)| (z.unwrap(), h.unwrap())) {
        assert_eq!((z.rows(), z.columns(), h.columns()), (300, 6, 32));
        assert!(apart(&tensor(&z), &by_hand(&tensor(&h))) < CLOSE);
    }
    let source = projected.source().unwrap();
    assert_eq!((&source["space"], &source["step"]), (&"projector".into(), &4.into()));
    // The state's encoder is the one that the run ended with.
    let ended = open(&run, None, Space::Encoder).unwrap();
    assert_eq!(all(&ended.plain(Split::Test, &[5]).unwrap()), all(&encoder.plain(Split::Test, &[5]).unwrap()));
}

#[test]
fn a_view_is_the_same_picture_whatever_else_is_asked_for() {
    let (_folder, run) = images();
    let encoder = open(&run, None, Space::Encoder).unwrap();
    let set = encoder.set(Split::Train).unwrap();
    let views = Views::new(&encoder.config().augment, encoder.size()).unwrap();
    let of = |indices: &[usize], look| pictures(set, &views, indices, look, &mut Vec::new()).unwrap();
    let look = |seed, number| Look::View { seed, number };
    let every: Vec<usize> = (0..300).collect();
    let first = of(&every, look(7, 0));
    let some = [299, 4, 4, 120];
    let places = Tensor::from_slice(&some.map(|i| i as i64));
    assert!(of(&some, look(7, 0)).equal(&first.index_select(0, &places)));
    let differ =
        |a: &Tensor, b: &Tensor| a.ne_tensor(b).flatten(1, -1).any_dim(1, false).sum(Kind::Int64).int64_value(&[]);
    let others = [of(&every, look(7, 1)), of(&every, look(8, 0)), of(&every, Look::Plain)];
    // Nearly all: a few may be the same crop of a smooth image.
    assert!(others.iter().all(|other| differ(other, &first) > 290));
    // Neither is it one of the run's own two views of that epoch.
    let mut numbers = vec![0.0f32; 3 * 8 * 8];
    let (mut decoder, mut canvas) = (Decoder::default(), Canvas::default());
    for own in [0, 1] {
        let image = set.image(4, &mut decoder).unwrap();
        views.make(image, [7, 0, 4], own, &mut canvas, &mut numbers);
        assert_ne!(Vec::<f32>::try_from(first.get(4).flatten(0, -1)).unwrap(), numbers);
    }
    // A plain picture is that of evaluation.
    let batch = eval_batches(set, encoder.size(), encoder.config().augment.normalize.as_ref(), 300).unwrap().next();
    assert!(batch.unwrap().unwrap().images.equal(&others[2]));

    let whole = tensor(&encoder.views(Split::Train, &every, 7, 0).unwrap());
    assert!(whole.equal(&tensor(&encoder.views(Split::Train, &every, 7, 0).unwrap())));
    let rows = tensor(&encoder.views(Split::Train, &some, 7, 0).unwrap());
    assert!(apart(&rows, &whole.index_select(0, &places)) < CLOSE);
    let other = tensor(&encoder.views(Split::Train, &every, 7, 1).unwrap());
    assert!(differ(&other, &whole) > 290);
}

#[test]
fn what_a_vision_run_cannot_give_is_said() {
    let (folder, run) = images();
    let encoder = open(&run, None, Space::Encoder).unwrap();
    let e = said(encoder.plain(Split::Test, &[3, 40]));
    assert!(e.contains("image 40") && e.contains("of 40"), "{e}");
    let e = said(encoder.views(Split::Test, &[], 0, 0));
    assert!(e.contains("test images") && e.contains("none asked for"), "{e}");
    let own = run.join("checkpoints/encoder.safetensors");
    let e = said(open(&run, Some(&own), Space::Projector));
    assert!(e.contains("encoder.safetensors") && e.contains("projector") && e.contains("step-000000004.pt"), "{e}");
    assert!(e.contains("--checkpoint") && e.contains("--space encoder"), "{e}");
    remove_states(&run);
    let e = said(open(&run, None, Space::Projector));
    assert!(e.contains("no training state") && e.contains("step-N.pt") && e.contains("--space encoder"), "{e}");
    // The encoder alone is still there.
    open(&run, None, Space::Encoder).unwrap();
    let e = said(open(folder.path(), None, Space::Encoder));
    assert!(e.contains("no run folder"), "{e}");
    let e = said(TextRunEncoder::open_run(&run, None, None, Space::Encoder, Device::Cpu));
    assert!(e.contains("a run of pretrain-vision"), "{e}");
}

/// A little BERT with weights of its own, whose training drops `share` of its numbers.
pub(crate) fn bert(folder: &Path, share: f64) -> PathBuf {
    let folder = folder.join("bert");
    std::fs::create_dir_all(&folder).unwrap();
    let words = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bird", "cat", "dog", "runs", "sleeps", "sings", "red",
        "old",
    ];
    std::fs::write(folder.join("vocab.txt"), words.join("\n")).unwrap();
    let config = BertConfig {
        model_type: "bert".into(),
        vocab_size: words.len() as i64,
        hidden_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 20,
        hidden_dropout_prob: share,
        attention_probs_dropout_prob: share,
        max_position_embeddings: 16,
        ..BertConfig::default()
    };
    std::fs::write(folder.join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
    tch::manual_seed(5);
    let state = Bert::zeros(&config, false).unwrap().store().state_dict();
    let drawn: Vec<(String, Tensor)> = state
        .iter()
        .map(|(name, t)| (name.clone(), Tensor::randn(t.size(), (Kind::Float, Device::Cpu)) * 0.3))
        .collect();
    safetensors::save(&folder.join("model.safetensors"), &drawn, &BTreeMap::new()).unwrap();
    folder
}

const SENTENCES: [&str; 5] = ["a cat sleeps", "a dog runs", "a cat sleeps", "an old red bird sings a", "dog"];

/// Whether something holds that draws from LibTorch's generator after seeding it. The generator is the process's, and other tests draw from
/// it at the same time: some of many tries are undisturbed.
fn undisturbed(holds: impl Fn() -> bool) -> bool {
    (0..200).any(|_| holds())
}

fn rows_of(m: &Matrix, row: usize) -> Vec<f32> {
    m.read(row..row + 1).unwrap()
}

#[test]
fn sentences_of_a_model_are_eval_sts_s_and_dropout_makes_views() {
    let folder = tempfile::tempdir().unwrap();
    let path = bert(folder.path(), 0.1);
    let model = TextRunEncoder::open_model(&path, Some(Pooler::Avg), None, Device::Cpu).unwrap();
    let plain = model.sentences(&SENTENCES).unwrap();
    assert_eq!((plain.rows(), plain.columns()), (5, 12));
    assert!(tensor(&plain).equal(&model.embed(&SENTENCES, DEFAULT_BATCH).unwrap()));
    for (row, sentence) in SENTENCES.iter().enumerate() {
        let tokens = model.tokenizer().encode(&[sentence]).unwrap();
        let vector = tch::no_grad(|| model.encoder().forward(&tokens.ids, tokens.mask.as_ref(), false)).unwrap();
        assert!(apart(&Tensor::from_slice(&rows_of(&plain, row)).unsqueeze(0), &vector) < CLOSE);
    }
    assert_eq!(rows_of(&plain, 0), rows_of(&plain, 2));
    let view = model.dropout(&SENTENCES, 1).unwrap();
    assert!(undisturbed(|| all(&model.dropout(&SENTENCES, 1).unwrap()) == all(&model.dropout(&SENTENCES, 1).unwrap())));
    let other = model.dropout(&SENTENCES, 2).unwrap();
    for row in 0..5 {
        assert!(rows_of(&view, row) != rows_of(&other, row) && rows_of(&view, row) != rows_of(&plain, row));
    }
    // Equal sentences have masks of their own.
    assert_ne!(rows_of(&view, 0), rows_of(&view, 2));
    let source = model.source().unwrap();
    assert_eq!((&source["pooler"], &source["max_length"]), (&"avg".into(), &16.into()));
    assert_eq!(source["checkpoint_sha256"], sha256_of(&path.join("model.safetensors")).unwrap());

    // Where nothing is dropped, views are the sentences' vectors.
    let path = bert(folder.path(), 0.0);
    let model = TextRunEncoder::open_model(&path, Some(Pooler::Avg), None, Device::Cpu).unwrap();
    assert_eq!(all(&model.dropout(&SENTENCES, 1).unwrap()), all(&model.sentences(&SENTENCES).unwrap()));

    assert!(said(model.sentences(&[])).contains("expected sentences"));
    let e = said(TextRunEncoder::open_model(&path, None, None, Device::Cpu));
    assert!(e.contains("pooler"), "{e}");
}

#[test]
fn a_text_runs_rows_are_of_its_weights_and_of_the_pooler_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let path = bert(folder.path(), 0.1);
    let lines: Vec<String> = ["cat", "dog", "bird"]
        .iter()
        .flat_map(|animal| {
            ["runs", "sleeps", "sings", "runs a", "sings a red"].map(|verb| format!("a {animal} {verb}"))
        })
        .collect();
    std::fs::write(folder.path().join("corpus.txt"), lines.join("\n")).unwrap();
    let config = format!(
        "data: {{path: {0}/corpus.txt}}\nmodel: {{path: {1}, pooler: cls, max_length: 12}}\noptim: {{kind: adamw, lr: 1.0e-3}}\n\
         train: {{epochs: 1, batch_size: 5}}\n",
        folder.path().display(),
        path.display()
    );
    let run = pretrained(env!("CARGO_BIN_EXE_pretrain-text"), &config, folder.path());
    let open = |checkpoint: Option<&Path>, space| TextRunEncoder::open_run(&run, checkpoint, None, space, Device::Cpu);
    let ended = open(None, Space::Encoder).unwrap();
    assert_eq!(ended.encoder().pooler(), Some(Pooler::ClsBeforePooler));
    let state = run.join("checkpoints/step-000000003.pt");
    let encoder = open(Some(&state), Space::Encoder).unwrap();
    let first = encoder.sentences(&SENTENCES).unwrap();
    assert_eq!(all(&first), all(&ended.sentences(&SENTENCES).unwrap()));
    // What the loss sees is a layer and a tanh over it.
    let trained = open(None, Space::Projector).unwrap();
    assert_eq!(trained.encoder().file(), state);
    assert_eq!(trained.source().unwrap()["pooler"], "cls");
    let weights: BTreeMap<String, Tensor> =
        torch_file::load(&state).unwrap().get("model").unwrap().tensors().unwrap().into_iter().collect();
    let by_hand = |h: &Tensor| (h.matmul(&weights["pooler.dense.weight"].tr()) + &weights["pooler.dense.bias"]).tanh();
    assert!(apart(&tensor(&trained.sentences(&SENTENCES).unwrap()), &by_hand(&tensor(&first))) < CLOSE);
    assert!(undisturbed(|| {
        let (view, of_encoder) = (trained.dropout(&SENTENCES, 4).unwrap(), encoder.dropout(&SENTENCES, 4).unwrap());
        apart(&tensor(&view), &by_hand(&tensor(&of_encoder))) < CLOSE
    }));

    let e = said(RunEncoder::open(&run, None, Space::Encoder, Device::Cpu));
    assert!(e.contains("a run of pretrain-text") && e.contains("eval-sts"), "{e}");
    assert_eq!(weince::run::RunFolder::open(&run).unwrap().command().unwrap(), "pretrain-text");
    let e = TextRunEncoder::open_model(&run, None, None, Device::Cpu).err().unwrap();
    assert!(matches!(&e, Error::Config(m) if m.contains("give --run")), "{e}");
    remove_states(&run);
    std::fs::remove_file(run.join("model/model.safetensors")).unwrap();
    assert!(said(open(None, Space::Encoder)).contains("no weights yet"));
}
