//! The stratified validation split: the same share of every class, drawn by the seed alone.

use crate::error::{Error, Result};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Indices of the samples to fit on and of those to choose with; both ascending, disjoint, together everything.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// Samples to fit on.
    pub fit: Vec<i64>,
    /// Samples held out.
    pub validation: Vec<i64>,
}

/// Holds out the share `fraction` of every class, rounded to the nearest count, but at least one sample of a class that
/// has two, and never all of a class. A fraction of 0 holds out nothing.
///
/// # Errors
/// [`Error::Input`] where a share is wanted and no class has two samples.
pub fn stratified(classes: &[usize], count: usize, fraction: f64, seed: u64) -> Result<Split> {
    let mut members: Vec<Vec<i64>> = vec![Vec::new(); count];
    for (i, &class) in classes.iter().enumerate() {
        members[class].push(i as i64);
    }
    let mut split = Split { fit: Vec::new(), validation: Vec::new() };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for mut group in members {
        group.shuffle(&mut rng);
        let most = group.len().saturating_sub(1);
        let held = if fraction > 0.0 { ((group.len() as f64 * fraction).round() as usize).max(1).min(most) } else { 0 };
        split.validation.extend(&group[..held]);
        split.fit.extend(&group[held..]);
    }
    if fraction > 0.0 && split.validation.is_empty() {
        return Err(Error::Input(format!(
            "no validation split can be drawn: none of the {count} classes has two training samples; give more samples, or a \
             validation fraction of 0 (with eval-linear together with a single L2 value)"
        )));
    }
    split.fit.sort_unstable();
    split.validation.sort_unstable();
    Ok(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_gives_its_share_and_nothing_is_lost() {
        let classes: Vec<usize> = (0..200).map(|i| if i < 150 { 0 } else { 1 + i % 2 }).chain([3, 4, 4]).collect();
        let split = stratified(&classes, 5, 0.1, 7).unwrap();
        let held: Vec<usize> =
            (0..5).map(|c| split.validation.iter().filter(|&&i| classes[i as usize] == c).count()).collect();
        assert_eq!(held, [15, 3, 3, 0, 1]);
        let mut all: Vec<i64> = split.fit.iter().chain(&split.validation).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..203).collect::<Vec<i64>>());
        assert_eq!(split, stratified(&classes, 5, 0.1, 7).unwrap());
        assert_ne!(split, stratified(&classes, 5, 0.1, 8).unwrap());
    }

    #[test]
    fn single_samples_cannot_be_split() {
        assert!(stratified(&[0, 1, 2], 3, 0.5, 0).is_err());
        assert_eq!(stratified(&[0, 1, 2], 3, 0.0, 0).unwrap().fit, [0, 1, 2]);
    }
}
