//! placeholder until the real one is merged
use crate::error::Result;
use tch::Tensor;
/// The processes of a run.
#[derive(Clone, Debug)]
pub struct Group;
impl Group {
    /// One.
    pub fn alone() -> Group {
        Group
    }
    /// Rank.
    pub fn rank(&self) -> usize {
        0
    }
    /// Size.
    pub fn size(&self) -> usize {
        1
    }
    /// Alone.
    pub fn is_alone(&self) -> bool {
        true
    }
    /// Gather.
    pub fn gather(&self, local: &Tensor, _rows: &[i64]) -> Result<Tensor> {
        Ok(local.shallow_clone())
    }
    /// Texts.
    pub fn texts(&self, here: &str) -> Result<Vec<String>> {
        Ok(vec![here.to_string()])
    }
    /// Sum.
    pub fn sum(&self, _tensor: &mut Tensor) -> Result<()> {
        Ok(())
    }
}
