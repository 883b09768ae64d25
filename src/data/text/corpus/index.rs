//! Where the examples of a corpus begin: the place of one in sixteen, and no more of them than the file has room for.

/// Examples of a block.
const EXAMPLES: u64 = 16;
/// A block ends earlier where the next example is farther away, so that finding one never reads much that is left out.
const BYTES: u64 = 64 << 10;

/// An example whose place is known, and those that follow it up to the next such one.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The number of its first example.
    first: u64,
    /// Where that one begins.
    offset: u64,
}

/// The places of a corpus's examples.
#[derive(Debug, Default)]
pub(super) struct Index {
    blocks: Vec<Block>,
    examples: u64,
}

impl Index {
    /// Adds the next example.
    pub(super) fn add(&mut self, offset: u64) {
        let same = |block: &Block| self.examples - block.first < EXAMPLES && offset - block.offset < BYTES;
        if !self.blocks.last().is_some_and(same) {
            self.blocks.push(Block { first: self.examples, offset });
        }
        self.examples += 1;
    }

    /// Examples added.
    pub(super) fn len(&self) -> u64 {
        self.examples
    }

    /// A place at or before an example, and how many usable ones are to be passed over from there.
    pub(super) fn near(&self, example: u64) -> Option<(usize, u64)> {
        let after = self.blocks.partition_point(|block| block.first <= example);
        let block = self.blocks.get(after.checked_sub(1)?)?;
        (example < self.examples).then_some((block.offset as usize, example - block.first))
    }

    /// Gives back memory that was only for growing.
    pub(super) fn close(&mut self) {
        self.blocks.shrink_to_fit();
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }
}
