//! Which of several cursors stands at the least entry?
//!
//! A loser tree: each inner node holds who lost the match there, so that after the winner has moved one
//! match per level is played, against a player that lies in the node itself. A heap plays two per level, and
//! moves entries besides.

/// What a cursor stands at: (hash, greatest rank first), as one number, and the cursor. Of equals the
/// first cursor comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Player {
    at: u128,
    cursor: u32,
}

impl Player {
    /// One with nothing left: behind all that have.
    const OUT: Player = Player {
        at: u128::MAX,
        cursor: u32::MAX,
    };

    /// What stands at this hash, in a file of this rank.
    fn of(cursor: u32, stand: Option<(u64, u64)>) -> Player {
        stand.map_or(Player::OUT, |(hash, rank)| Player {
            at: u128::from(hash) << 64 | u128::from(!rank),
            cursor,
        })
    }

    fn is_before(&self, other: &Player) -> bool {
        // No branch: who wins is not to be foreseen.
        (self.at < other.at) | ((self.at == other.at) & (self.cursor < other.cursor))
    }
}

/// The cursors of a merge.
#[derive(Debug)]
pub(super) struct Tournament {
    /// The winner, then the losers of all matches: of node `n`, nodes `2 n` and `2 n + 1` come before.
    nodes: Vec<Player>,
}

impl Tournament {
    /// Of cursors by what they stand at, (hash, rank): `None` where nothing is left.
    pub fn new(stands: impl ExactSizeIterator<Item = Option<(u64, u64)>>) -> Tournament {
        let leaves = stands.len().max(1);
        // Players in the order of the leaves, behind as many inner nodes.
        let mut winners = vec![Player::OUT; leaves];
        for (cursor, stand) in (0..).zip(stands) {
            winners.push(Player::of(cursor, stand));
        }
        winners.resize(2 * leaves, Player::OUT);
        let mut nodes = vec![Player::OUT; leaves];
        for n in (1..leaves).rev() {
            let (left, right) = (winners[2 * n], winners[2 * n + 1]);
            (winners[n], nodes[n]) = match left.is_before(&right) {
                true => (left, right),
                false => (right, left),
            };
        }
        nodes[0] = winners[1];
        Tournament { nodes }
    }

    /// The cursor at the least hash, of several the one of the greatest rank, and that hash.
    pub fn first(&self) -> Option<(usize, u64)> {
        let winner = self.nodes[0];
        let hash = (winner.at >> 64) as u64;
        (winner != Player::OUT).then_some((winner.cursor as usize, hash))
    }

    /// The first cursor has moved.
    pub fn moved(&mut self, stand: Option<(u64, u64)>) {
        let leaves = self.nodes.len();
        let cursor = self.nodes[0].cursor;
        let mut player = Player::of(cursor, stand);
        let mut node = (leaves + cursor as usize) / 2;
        while node > 0 {
            let other = self.nodes[node];
            let stays = player.is_before(&other);
            (player, self.nodes[node]) = match stays {
                true => (player, other),
                false => (other, player),
            };
            node /= 2;
        }
        self.nodes[0] = player;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries come out in the order of (hash, greatest rank first, cursor), however many cursors there are.
    #[test]
    fn a_tournament_of_any_size_gives_what_sorting_gives() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = crate::units::mix64(state);
            state % below
        };
        for cursors in 0..40usize {
            let runs: Vec<Vec<(u64, u64)>> = (0..cursors)
                .map(|_| {
                    let rank = [0, 1, 5, u64::MAX][crate::units::to_usize(random(4))];
                    let mut run: Vec<u64> = (0..random(30)).map(|_| random(50)).collect();
                    run.extend([u64::MAX, 0].iter().take(crate::units::to_usize(random(3))));
                    run.sort_unstable();
                    run.dedup();
                    run.into_iter().map(|hash| (hash, rank)).collect()
                })
                .collect();
            let mut expected: Vec<(u64, u64, usize)> = Vec::new();
            for (cursor, run) in runs.iter().enumerate() {
                expected.extend(run.iter().map(|(hash, rank)| (*hash, !*rank, cursor)));
            }
            expected.sort_unstable();
            let mut at = vec![0; cursors];
            let mut tournament = Tournament::new(runs.iter().map(|run| run.first().copied()));
            let mut found = Vec::new();
            while let Some((cursor, hash)) = tournament.first() {
                found.push((hash, !runs[cursor][at[cursor]].1, cursor));
                at[cursor] += 1;
                tournament.moved(runs[cursor].get(at[cursor]).copied());
            }
            assert_eq!(found, expected, "{cursors} cursors");
        }
    }
}
