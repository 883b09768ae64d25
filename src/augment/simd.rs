//! One place that picks the widest vector instructions of the CPU, so that kernels stay plain loops.
//!
//! Wider instructions can't change a result: the kernels use integer arithmetic and single IEEE operations, which the compiler
//! neither reorders nor contracts.

/// Runs a kernel compiled for the vector instructions that this CPU has. The closure and everything
/// it calls must be `#[inline(always)]`: a call that stays a call runs the plain version.
#[inline(always)]
pub(crate) fn dispatch<R>(kernel: impl FnOnce() -> R) -> R {
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

/// 2^23: adding it pushes the fraction out of a number, rounded, and leaves the integer in the low bits.
const SHIFT: f32 = 8_388_608.0;

/// Cuts a number from 0 to 255 to an integer.
///
/// # Numerics
/// `x as u8` for such numbers. The compiler makes scalar code of that cast, as it must mind NaN and overflow.
#[inline(always)]
pub(super) fn cut(x: f32) -> u8 {
    let shifted = x + SHIFT;
    (shifted.to_bits() as u8).wrapping_sub(u8::from(shifted - SHIFT > x))
}

/// Cuts 255 times a number from 0 to 1 to an integer, as if the product were exact.
///
/// # Numerics
/// 255 x = 256 x - x; the first is exact, and what the difference loses is known exactly (Dekker), so that a product just below an
/// integer is not taken for it.
#[inline(always)]
pub(super) fn cut_255(x: f32) -> u8 {
    let big = 256.0 * x;
    let product = big - x;
    let lost = (big - product) - x;
    let shifted = product + SHIFT;
    (shifted.to_bits() as u8).wrapping_sub(u8::from((shifted - SHIFT) - product > lost))
}

/// As [`cut`], in double precision: the integer, still as a floating-point number.
#[inline(always)]
pub(super) fn whole(x: f64) -> f64 {
    const SHIFT: f64 = 4_503_599_627_370_496.0;
    let near = (x + SHIFT) - SHIFT;
    near - if near > x { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_those_of_a_cast() {
        for n in 0..=255_u8 {
            let x = f32::from(n);
            for x in [
                x,
                x.next_up(),
                x + 0.25,
                x + 0.5,
                (x + 0.5).next_up(),
                x + 0.999,
                (x + 1.0).next_down(),
                x.next_down(),
            ] {
                if (0.0..256.0).contains(&x) {
                    assert_eq!(cut(x), x as u8, "{x}");
                    assert_eq!(whole(f64::from(x)), f64::from(x).floor(), "{x}");
                }
            }
        }
    }

    #[test]
    fn quotients_of_bytes_are_cut_as_in_double_precision() {
        for b in 1..=255_u8 {
            for a in 0..=b {
                let x = f32::from(a) / f32::from(b);
                assert_eq!(cut_255(x), (f64::from(x) * 255.0) as u8, "{a} / {b}");
            }
        }
    }
}
