//! The C++ bridge: what LibTorch offers and tch does not reach. All of the crate's `unsafe` is in this folder.

mod amp;
mod cuda;
mod ffi;
mod fused;
mod generator;
mod gradient;
mod mapped;
mod measure;
mod norm;
mod process_group;
mod script;
mod smallest;
mod storage;
mod version;
mod workers;

pub use amp::{allow_tf32, autocast, unscale};
pub use cuda::{CudaDevice, CudaStatus, cuda_status};
pub use fused::{AdamArgs, SgdArgs, fused_adam, fused_sgd};
pub use generator::generator_state;
pub use gradient::{clear_gradients, known_gradient, total_norm};
pub use mapped::{Mapped, Stamp};
pub use measure::{Mark, allocated_bytes, device_memory};
pub use norm::batch_norm;
pub use process_group::{Keys, Reducer, Wire, has_nccl};
pub use script::{Baked, Member, Script};
pub use smallest::{smallest, smallest_with_columns};
pub(crate) use storage::as_bytes;
pub use storage::{filled, with_bytes, with_floats};
pub use version::{LIBTORCH_FOLDER, SUPPORTED_LIBTORCH, cpu_capability, libtorch_version};
pub use workers::workers;
