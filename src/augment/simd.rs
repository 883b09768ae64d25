//! One place that picks the widest vector instructions of the CPU, so that kernels stay plain loops.
//!
//! Wider instructions can't change a result: the kernels use integer arithmetic and single IEEE operations, which the compiler
//! neither reorders nor contracts.

/// Runs a kernel compiled for the vector instructions that this CPU has. Everything it calls must be `#[inline(always)]`.
#[inline(always)]
pub(super) fn dispatch<R>(kernel: impl FnOnce() -> R) -> R {
    struct Kernel<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Kernel<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Kernel(kernel))
}
