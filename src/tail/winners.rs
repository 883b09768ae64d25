//! Choices of a frozen encoder, to which links are fitted: whom an anchor chooses among candidates.
//!
//! A winner is defined in one of two ways. [`Winner::Fresh`]: an anchor's candidates are other items; the winner is the one that is
//! nearest to another view of the anchor, while the scores are those of the anchor itself. Candidates are the same, and the other view is
//! the selection's noise, which is what the links are models of. [`Winner::Positive`]: the candidates are the anchor's other view and
//! other items, and the winner is the other view. That is InfoNCE's own likelihood, but good encoders separate: no maximum exists then.

use super::sample::{Draw, Rows};
use crate::evt::{Choice, LinkFit};
use crate::{Error, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// What an observed winner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Winner {
    /// The candidate that is nearest to a fresh view of the anchor.
    Fresh,
    /// The anchor's other view.
    Positive,
}

/// Choices of anchors.
#[derive(Debug, Clone, PartialEq)]
pub struct Winners {
    /// What a winner is.
    pub winner: Winner,
    /// Candidates of a choice.
    pub candidates: usize,
    /// Choices of an anchor.
    pub draws: usize,
    /// Scores, winner and anchor of each choice.
    choices: Vec<(Vec<f64>, usize, usize)>,
}

/// A link fitted to choices.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// What a winner is.
    pub winner: Winner,
    /// Candidates of a choice.
    pub candidates: usize,
    /// Choices of an anchor.
    pub draws: usize,
    /// The share of choices whose winner has the highest score.
    pub agreement: f64,
    /// The fits.
    pub fit: LinkFit,
}

impl Winners {
    /// Each anchor, once for each of `views`, among `others` candidates drawn for it from `seed`. `anchors` and `candidates` are the rows
    /// of `draw`, as they are; a view has another row of every anchor.
    ///
    /// # Errors
    /// [`Error::Input`] for no view, views of other sizes, and fewer than 2 candidates a choice.
    pub fn of(
        winner: Winner,
        draw: &Draw,
        anchors: &Rows,
        candidates: &Rows,
        views: &[Rows],
        others: usize,
        seed: u64,
    ) -> Result<Winners> {
        if views.is_empty()
            || views.iter().any(|view| (view.len(), view.width()) != (anchors.len(), anchors.width()))
            || anchors.width() != candidates.width()
        {
            return Err(Error::Input(format!(
                "winners: expected at least one other view, with a row for each of {} anchors, all rows {} wide",
                anchors.len(),
                anchors.width()
            )));
        }
        let others = others.min(draw.negatives);
        let size = others + usize::from(winner == Winner::Positive);
        if size < 2 {
            return Err(Error::Input(format!(
                "winners: a choice has {size} candidate; expected at least 2; take more candidates"
            )));
        }
        let mut choices = Vec::new();
        for a in 0..anchors.len() {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(a as u64);
            let all: Vec<usize> =
                (0..draw.candidates.len()).filter(|c| draw.candidates[*c] != draw.anchors[a]).collect();
            let chosen: Vec<usize> =
                rand::seq::index::sample(&mut rng, all.len(), others).into_iter().map(|i| all[i]).collect();
            let scores: Vec<f64> = chosen.iter().map(|c| anchors.cosine(a, candidates, *c)).collect();
            for view in views {
                match winner {
                    Winner::Fresh => {
                        let seen: Vec<f64> = chosen.iter().map(|c| view.cosine(a, candidates, *c)).collect();
                        // The first of equal ones.
                        let place = (0..others).rev().max_by(|i, j| seen[*i].total_cmp(&seen[*j])).unwrap_or(0);
                        choices.push((scores.clone(), place, a));
                    }
                    Winner::Positive => {
                        let positive = anchors.cosine(a, view, a);
                        choices.push(([&[positive], scores.as_slice()].concat(), 0, a));
                    }
                }
            }
        }
        Ok(Winners { winner, candidates: size, draws: views.len(), choices })
    }

    /// Fits the links.
    ///
    /// # Errors
    /// As [`LinkFit::of`].
    pub fn fit(&self) -> Result<Link> {
        let highest = |(scores, winner, _): &&(Vec<f64>, usize, usize)| scores.iter().all(|s| *s <= scores[*winner]);
        let agreeing = self.choices.iter().filter(highest).count();
        let choices: Vec<Choice> = self
            .choices
            .iter()
            .map(|(scores, winner, anchor)| Choice { scores, winner: *winner, anchor: *anchor })
            .collect();
        Ok(Link {
            winner: self.winner,
            candidates: self.candidates,
            draws: self.draws,
            agreement: agreeing as f64 / self.choices.len() as f64,
            fit: LinkFit::of(&choices)?,
        })
    }

    /// Scores, winner and anchor of each choice, for those who fit by other means.
    pub fn choices(&self) -> &[(Vec<f64>, usize, usize)] {
        &self.choices
    }
}

impl Link {
    /// The links by Akaike's criterion, the best first, with what the others have more.
    pub fn by_aic(&self) -> String {
        let fit = &self.fit;
        let singles =
            [("softmax", fit.softmax.as_ref().map(|s| s.aic())), ("Weibit", fit.weibit.as_ref().map(|s| s.aic()))];
        let blend = ("blend", fit.blend.as_ref().ok().map(|b| b.aic()));
        let mut there: Vec<(&str, f64)> =
            singles.into_iter().chain([blend]).filter_map(|(name, aic)| Some((name, aic?))).collect();
        there.sort_by(|a, b| a.1.total_cmp(&b.1));
        let Some(&(_, best)) = there.first() else { return "no link has a maximum".to_string() };
        let text = |(place, (name, aic)): (usize, &(&str, f64))| match place {
            0 => name.to_string(),
            _ => format!("{name} (+{:.1})", aic - best),
        };
        there.iter().enumerate().map(text).collect::<Vec<_>>().join(", ")
    }
}
