//! Pretraining: the loop, on one screen, and what it stands on.

mod chunk;
pub mod command;
mod describe;
mod plan;
mod recorder;
mod state;
mod step;
mod task;
mod text;
mod vision;

pub use plan::{Plan, Summary};
pub use step::{Learner, StepOptions, StepScalars, Stepper};
pub use task::Task;
pub use text::{Text, TextModel};
pub use vision::{Vision, VisionModel};

use crate::error::{Error, Result};
use crate::run::RunFolder;
use plan::Ending;
use recorder::{Broken, Recorder};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs from `step` updates to the plan's end; gives the number of updates made in all.
///
/// Every random choice is a function of seed, step and sample, so that a run continued from any step ends like one that
/// was never stopped. Several processes go through the same steps together; the first one has the folder.
fn run<T: Task>(
    plan: &mut Plan<T>,
    folder: Option<&RunFolder>,
    mut step: u64,
    stop: &AtomicBool,
    recorder: &mut Recorder,
) -> Result<u64> {
    let mut loader = plan.batches(step)?;
    let mut saved = None;
    while step < plan.total_steps() {
        let Some(batch) = loader.next() else { break };
        if let Some(ending) = plan.ending(stop.load(Ordering::Relaxed), batch.as_ref().err())? {
            if let Some(broken) = recorder.flush(loader.waited())? {
                return Err(explain(plan, broken));
            }
            if saved != Some(step) {
                plan.save(folder, step)?;
            }
            return Err(match (batch, ending) {
                (Err(error), _) => {
                    recorder.say(&format!("the state after step {step} is saved"));
                    error
                }
                (_, Ending::Failure(error)) => error,
                (Ok(_), Ending::Stop) => plan.interrupted(step, folder),
            });
        }
        let batch = batch?;
        let (epoch, lr) = (step / plan.steps_per_epoch, plan.schedule.lr(step));
        let seed = plan.step_seed(step);
        let packed = plan.stepper.step(&T::on_device(&batch, plan.device)?, lr, seed)?;
        step += 1;

        let epoch_ends = step.is_multiple_of(plan.steps_per_epoch);
        let saves = plan.checkpoint_due(step);
        let mut broken = recorder.push(step, epoch, lr, packed, T::indices(&batch), loader.waited())?;
        if broken.is_none() && (epoch_ends || saves) {
            broken = recorder.flush(loader.waited())?;
        }
        if let Some(broken) = broken {
            return Err(explain(plan, broken));
        }
        if plan.after(step, recorder)? {
            plan.save_best(folder, step)?;
        }
        if saves {
            plan.save(folder, step)?;
            saved = Some(step);
        }
    }
    Ok(step)
}

/// The error for a step that was not finite: its number, its samples, and which quantity it was.
fn explain<T: Task>(plan: &mut Plan<T>, broken: Broken) -> Error {
    let cause = plan.batch(broken.step - 1).and_then(|batch| {
        let seed = plan.step_seed(broken.step - 1);
        plan.stepper.explain(&T::on_device(&batch, plan.device)?, seed)
    });
    let cause = cause.unwrap_or_else(|e| format!("computing the batch once more failed: {e}"));
    let whose = if plan.group.is_alone() { "Its" } else { "This process's" };
    Error::NonFinite(format!(
        "step {} (epoch {}): loss {}, gradient norm {}: {cause}. {whose} {} are {:?}. No weight was changed by this step, and \
         the last checkpoint is as it was; a lower optim.lr, a longer schedule.warmup_epochs or a higher loss.temperature \
         may help",
        broken.step,
        broken.epoch,
        broken.scalars.loss,
        broken.scalars.grad_norm,
        T::UNIT,
        broken.indices
    ))
}
