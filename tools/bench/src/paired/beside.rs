//! How do two builds meet the same moments of a machine whose speed changes?
//!
//! They run at the same time, each on processors of its own. A thread's processors are its children's:
//! so each build is started, and waited for, by a thread that was put there first.

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The processors of this process in two halves of the same size.
///
/// # Errors
/// There is only one.
pub fn halves() -> Result<[CpuSet; 2]> {
    let own = sched_getaffinity(Pid::from_raw(0)).context("ask for the processors")?;
    let all: Vec<usize> = (0..CpuSet::count())
        .filter(|cpu| own.is_set(*cpu).unwrap_or(false))
        .collect();
    ensure!(
        all.len() > 1,
        "--beside needs two processors, and this process may use {}",
        all.len()
    );
    let half = |cpus: &[usize]| -> Result<CpuSet> {
        let mut set = CpuSet::new();
        cpus.iter().try_for_each(|cpu| set.set(*cpu))?;
        Ok(set)
    };
    let (first, second) = all.split_at(all.len() / 2);
    Ok([half(first)?, half(&second[..first.len()])?])
}

/// Does `run` for both sides at the same time, each on its processors.
///
/// # Errors
/// The first side's error, or the second's.
pub fn both<T: Send>(
    processors: [&CpuSet; 2],
    run: impl Fn(usize) -> Result<T> + Sync,
) -> Result<[T; 2]> {
    let there = |side: usize| {
        let this = Pid::from_raw(0);
        sched_setaffinity(this, processors[side]).context("choose processors")?;
        run(side)
    };
    let [first, second] = std::thread::scope(|scope| {
        [0, 1]
            .map(|side| scope.spawn(move || there(side)))
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked")))
    });
    Ok([first??, second??])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(set: &CpuSet) -> Vec<usize> {
        let is_set = |cpu: &usize| set.is_set(*cpu).unwrap();
        (0..CpuSet::count()).filter(is_set).collect()
    }

    #[test]
    fn each_side_has_its_own_processors_and_its_result() {
        let Ok(sides) = halves() else {
            assert_eq!(std::thread::available_parallelism().unwrap().get(), 1);
            return;
        };
        let found = both([&sides[1], &sides[0]], |side| {
            Ok((side, cpus(&sched_getaffinity(Pid::from_raw(0))?)))
        });
        assert_eq!(found.unwrap(), [(0, cpus(&sides[1])), (1, cpus(&sides[0]))]);
        assert!(
            cpus(&sides[0])
                .iter()
                .all(|cpu| !cpus(&sides[1]).contains(cpu))
        );
        let failed = both([&sides[0], &sides[1]], |side| {
            ensure!(side == 0, "side 1 fails");
            Ok(())
        });
        assert_eq!(failed.unwrap_err().to_string(), "side 1 fails");
    }
}
