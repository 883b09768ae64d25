// Whether NCCL's and CUDA's headers are all there; build.rs preprocesses it.
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
