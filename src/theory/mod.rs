//! How well a similarity search generalises that was trained with InfoNCE: the theory of Whiteley, *Similarity search
//! generalisation in contrastive learning with InfoNCE loss* (arXiv 2607.09405), with sharper statements, and WEINCE inside it.
//!
//! Everything is plain float64. In the names, `c` is the inverse temperature 1/τ, `k` a number of negatives, `m` the size of a
//! search corpus, `w = e^{s/τ} / Z(x)` a negative's weight (mean 1), `v` its variance and `a = e^{s⁺/τ} / Z(x)` the positive's
//! weight. Risks are in nats and normalised by `log k` as in the paper's eq. (1); subtract `log(1 + 1/k)` for the `log(k + 1)` of
//! van den Oord et al.
//!
//! - [`special`]: hypergeometric series and quadrature.
//! - [`models`]: data models with closed forms. [`engine`]: their risks at a finite `k`, exact to about 1e-13.
//! - [`bounds`]: inequalities of the risks and of the temperature. [`complexity`]: continuity and Rademacher complexity.
//! - [`weince`]: integrability and finite-k laws of the WEINCE kernel.
//! - [`estimators`]: the same quantities from embeddings.
//! - [`claims`]: every statement checked by numbers, as `verify-theory` prints them.

pub mod bounds;
pub mod claims;
pub mod complexity;
pub mod engine;
pub mod estimators;
pub mod models;
pub mod random;
pub mod special;
pub mod weince;
