//! How much of a history stays verbatim, and where a chunk ends. Pure; positions are indexes into the items behind the
//! watermark, and every one is a cut of [`history::groups`](crate::history::groups).

/// What may be covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Whole turns.
    Turns,
    /// Also the older steps of the newest turn: its opener is then shown behind the summary (C21).
    Steps,
}

/// What planning knows of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Estimated tokens.
    pub tokens: u64,
    /// It opens a turn.
    pub opens_turn: bool,
}

/// Where the verbatim tail begins: the newest whole turns within `share`, and at least the newest one; with
/// [`Scope::Steps`], where not even that fits, the newest groups within it, and at least one. 0: everything is tail.
pub fn tail_start(items: &[Weight], cuts: &[usize], share: u64, scope: Scope) -> usize {
    let mut behind = vec![0; items.len() + 1];
    for at in (0..items.len()).rev() {
        behind[at] = items[at].tokens.saturating_add(behind[at + 1]);
    }
    if behind[0] <= share {
        return 0;
    }
    let fits = |cut: &usize| behind[*cut] <= share;
    let turns = || cuts.iter().copied().filter(|cut| items[*cut].opens_turn);
    if let Some(start) = turns().find(fits) {
        return start;
    }
    match scope {
        Scope::Turns => turns().next_back().unwrap_or(0),
        Scope::Steps => cuts.iter().copied().find(fits).or_else(|| cuts.last().copied()).unwrap_or(0),
    }
}

/// Where a chunk ends that has room for `room` of the `sizes` before `end`: at a turn if it can, else at a step. None if not
/// even what stands before the first cut fits.
pub fn chunk_end(items: &[Weight], sizes: &[u64], cuts: &[usize], end: usize, room: u64) -> Option<usize> {
    let mut filled = vec![0_u64];
    for size in sizes {
        filled.push(filled.last().copied().unwrap_or_default().saturating_add(*size));
    }
    let ends = cuts.iter().copied().filter(|cut| *cut < end).chain((end > 0).then_some(end));
    let fitting: Vec<usize> = ends.filter(|cut| filled[*cut] <= room).collect();
    let turn = |cut: &&usize| **cut == end || items[**cut].opens_turn;
    fitting.iter().rev().find(turn).or(fitting.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(sizes: &[u64]) -> (Vec<Weight>, Vec<usize>) {
        // A text and its answer each.
        let items: Vec<Weight> = sizes
            .iter()
            .flat_map(|size| {
                [Weight { tokens: 0, opens_turn: true }, Weight { tokens: *size, opens_turn: false }]
            })
            .collect();
        let cuts = (1..items.len()).collect();
        (items, cuts)
    }

    #[test]
    fn part_6_the_tail() {
        let (items, cuts) = turns(&[7_000, 4_000, 9_000, 6_000]);
        assert_eq!(tail_start(&items, &cuts, 20_723, Scope::Turns), 2, "19,000 in three turns");
        assert_eq!(tail_start(&items, &cuts, 5_000, Scope::Turns), 6, "the newest turn at least");
        assert_eq!(tail_start(&items, &cuts, 5_000, Scope::Steps), 7, "one group at least");
        assert_eq!(tail_start(&items, &cuts, 26_000, Scope::Turns), 0, "everything");
        assert_eq!(tail_start(&[], &[], 10, Scope::Steps), 0);
    }

    #[test]
    fn part_6_packing_takes_whole_turns_and_splits_one_that_is_too_large() {
        let (items, cuts) = turns(&[12_000, 15_000, 8_000]);
        let sizes: Vec<u64> = items.iter().map(|item| item.tokens).collect();
        let room = 39_216 - 5_000 - 60 - 200;
        assert_eq!(room, 33_956);
        assert_eq!(chunk_end(&items, &sizes, &cuts, items.len(), room), Some(4), "the first two");
        assert_eq!(chunk_end(&items, &sizes, &cuts, items.len(), 35_000), Some(6));
        let steps: Vec<Weight> = (0..6).map(|at| Weight { tokens: 10, opens_turn: at == 0 }).collect();
        let sizes = [10; 6];
        assert_eq!(chunk_end(&steps, &sizes, &[2, 4], 6, 45), Some(4), "C22: at a group");
        assert_eq!(chunk_end(&steps, &sizes, &[2, 4], 6, 15), None);
        assert_eq!(chunk_end(&steps, &sizes, &[2, 4], 0, 15), None);
    }
}
