//! The k smallest entries of each row, on the processor several times as fast as LibTorch's `topk`.
//!
//! `topk` carries each value's column along and compares with NaN in mind. Here a row becomes integer keys in the same
//! order as its numbers, which the standard library partitions and sorts without branches.

use crate::error::{Error, Result};
use tch::{Device, Kind, Tensor};

/// Rows that a thread must have at least for its start to be worth its while.
const ROWS_A_THREAD: usize = 32;

/// A floating-point number with integer keys in its order, alone and with a column that breaks ties.
trait Number: Copy + Default + Send + Sync + tch::kind::Element {
    type Key: Ord + Copy + Send;
    type Pair: Ord + Copy + Send;
    fn key(self) -> Self::Key;
    fn value(key: Self::Key) -> Self;
    fn pair(self, column: u32) -> Self::Pair;
    fn unpair(pair: Self::Pair) -> (Self, u32);
}

macro_rules! number {
    ($float:ty, $key:ty, $signed:ty, $pair:ty, $bits:expr) => {
        impl Number for $float {
            type Key = $key;
            type Pair = $pair;
            #[inline(always)]
            fn key(self) -> $key {
                // Two's complement order for positive numbers, reversed for negative ones: IEEE 754's total order.
                // The sum makes -0 equal to 0.
                let bits = (self + 0.0).to_bits();
                bits ^ ((((bits as $signed) >> ($bits - 1)) as $key) | (1 << ($bits - 1)))
            }
            #[inline(always)]
            fn value(key: $key) -> $float {
                <$float>::from_bits(key ^ (((((!key) as $signed) >> ($bits - 1)) as $key) | (1 << ($bits - 1))))
            }
            #[inline(always)]
            fn pair(self, column: u32) -> $pair {
                ((self.key() as $pair) << 32) | column as $pair
            }
            #[inline(always)]
            fn unpair(pair: $pair) -> ($float, u32) {
                (<$float>::value((pair >> 32) as $key), pair as u32)
            }
        }
    };
}
number!(f32, u32, i32, u64, 32);
number!(f64, u64, i64, u128, 64);

/// The `k` smallest entries of each row, ascending.
///
/// # Shapes
/// `t` [rows, columns], float32 or float64; returns [rows, k]. On the processor `t` must be contiguous.
///
/// # Errors
/// `k` outside 1..=columns, and whatever LibTorch reports.
pub fn smallest(t: &Tensor, k: i64) -> Result<Tensor> {
    check(t, k)?;
    match (t.device(), t.kind()) {
        (Device::Cpu, Kind::Float) => on_cpu::<f32>(t, k),
        (Device::Cpu, Kind::Double) => on_cpu::<f64>(t, k),
        _ => Ok(t.f_topk(k, -1, false, true)?.0),
    }
}

/// As [`smallest`], with the columns: equal entries come in the order of their columns, whatever the device.
///
/// # Shapes
/// As [`smallest`]; the columns are int64 [rows, k].
///
/// # Errors
/// As [`smallest`].
pub fn smallest_with_columns(t: &Tensor, k: i64) -> Result<(Tensor, Tensor)> {
    check(t, k)?;
    match (t.device(), t.kind()) {
        (Device::Cpu, Kind::Float) => with_columns_on_cpu::<f32>(t, k),
        (Device::Cpu, Kind::Double) => with_columns_on_cpu::<f64>(t, k),
        _ => {
            let (values, columns) = t.f_sort_stable(true, -1, false)?;
            Ok((values.f_narrow(-1, 0, k)?, columns.f_narrow(-1, 0, k)?))
        }
    }
}

fn check(t: &Tensor, k: i64) -> Result<()> {
    let columns = t.size2()?.1;
    if k < 1 || k > columns || columns > u32::MAX.into() {
        return Err(Error::Input(format!("the {k} smallest of rows of {columns}: expected between 1 and all of them")));
    }
    Ok(())
}

/// The numbers of a contiguous tensor on the processor.
fn numbers<T: Number>(t: &Tensor) -> Result<&[T]> {
    if !t.is_contiguous() || t.device() != Device::Cpu || t.kind() != T::KIND {
        return Err(Error::Input(format!("expected a contiguous {:?} tensor on the processor, found {t:?}", T::KIND)));
    }
    if t.numel() == 0 {
        return Ok(&[]);
    }
    // SAFETY: as just checked, `numel` initialised elements of this very type lie in a row at `data_ptr`; the slice borrows
    // the tensor, and nobody writes to it while we read.
    Ok(unsafe { std::slice::from_raw_parts(t.data_ptr().cast::<T>(), t.numel()) })
}

/// Calls `row(input, output)` for every row, on as many threads as LibTorch uses. Rows are independent of one another.
fn for_rows<T: Sync, O: Send>(
    input: &[T],
    columns: usize,
    output: &mut [O],
    k: usize,
    row: impl Fn(&[T], &mut [O]) + Sync,
) {
    let rows = input.len() / columns;
    let threads = (tch::get_num_threads().max(1) as usize).min(rows.div_ceil(ROWS_A_THREAD)).max(1);
    let share = rows.div_ceil(threads).max(1);
    let work = |input: &[T], output: &mut [O]| {
        for (input, output) in input.chunks_exact(columns).zip(output.chunks_exact_mut(k)) {
            row(input, output);
        }
    };
    if threads == 1 {
        return work(input, output);
    }
    std::thread::scope(|scope| {
        for (input, output) in input.chunks(share * columns).zip(output.chunks_mut(share * k)) {
            scope.spawn(|| work(input, output));
        }
    });
}

fn on_cpu<T: Number>(t: &Tensor, k: i64) -> Result<Tensor> {
    let (rows, columns) = t.size2()?;
    let mut out = vec![T::default(); (rows * k) as usize];
    for_rows(numbers::<T>(t)?, columns as usize, &mut out, k as usize, |input, output| {
        let mut keys: Vec<T::Key> = input.iter().map(|&x| x.key()).collect();
        for (slot, &key) in output.iter_mut().zip(sorted_head(&mut keys, k as usize)) {
            *slot = T::value(key);
        }
    });
    Ok(Tensor::f_from_slice(&out)?.f_view([rows, k])?)
}

fn with_columns_on_cpu<T: Number>(t: &Tensor, k: i64) -> Result<(Tensor, Tensor)> {
    let (rows, columns) = t.size2()?;
    let mut out = vec![(T::default(), 0u32); (rows * k) as usize];
    for_rows(numbers::<T>(t)?, columns as usize, &mut out, k as usize, |input, output| {
        let mut pairs: Vec<T::Pair> = input.iter().zip(0u32..).map(|(&x, column)| x.pair(column)).collect();
        for (slot, &pair) in output.iter_mut().zip(sorted_head(&mut pairs, k as usize)) {
            *slot = T::unpair(pair);
        }
    });
    let values: Vec<T> = out.iter().map(|&(value, _)| value).collect();
    let columns: Vec<i64> = out.iter().map(|&(_, column)| column.into()).collect();
    Ok((Tensor::f_from_slice(&values)?.f_view([rows, k])?, Tensor::f_from_slice(&columns)?.f_view([rows, k])?))
}

/// The `k` least keys, ascending; `k` is between 1 and their number.
fn sorted_head<K: Ord>(keys: &mut [K], k: usize) -> &[K] {
    if k < keys.len() {
        keys.select_nth_unstable(k - 1);
    }
    let head = &mut keys[..k];
    head.sort_unstable();
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_order_and_value() {
        let numbers = [f32::NEG_INFINITY, -2.5, -1e-30, 0.0, 1e-30, 1.0, 2.5, f32::INFINITY];
        for pair in numbers.windows(2) {
            assert!(pair[0].key() < pair[1].key());
            assert!((pair[0] as f64).key() < (pair[1] as f64).key());
        }
        assert_eq!((-0.0f32).key(), 0.0f32.key());
        for x in numbers {
            assert_eq!(f32::value(x.key()).to_bits(), x.to_bits());
            assert_eq!(f64::unpair((x as f64).pair(7)), (x as f64, 7));
        }
    }

    #[test]
    fn equals_topk_and_stable_sort() {
        tch::manual_seed(0);
        for kind in [Kind::Float, Kind::Double] {
            // Rounded, so that there are many ties.
            let t = (Tensor::randn([130, 70], (kind, Device::Cpu)) * 8.0).round();
            for k in [1, 7, 70] {
                let (values, columns) = smallest_with_columns(&t, k).unwrap();
                let (sorted, order) = t.sort_stable(true, -1, false);
                assert!(values.equal(&sorted.narrow(1, 0, k)) && columns.equal(&order.narrow(1, 0, k)));
                assert!(smallest(&t, k).unwrap().equal(&t.topk(k, -1, false, true).0));
            }
        }
    }

    #[test]
    fn refuses_what_it_cannot_do() {
        let t = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        assert!(smallest(&t, 0).is_err() && smallest(&t, 4).is_err());
        assert!(smallest(&t.tr(), 1).is_err());
    }
}
