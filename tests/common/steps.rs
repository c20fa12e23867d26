//! Random operations of a model test: how they are drawn, shrunk, and told of.

use std::fmt::Debug;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};

/// One operation; the seed says how exactly.
#[derive(Clone, Copy)]
pub struct Step<K> {
    pub kind: K,
    pub keys: usize,
    pub seed: u64,
}

impl<K: Debug> Debug for Step<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({}, {:#x})", self.kind, self.keys, self.seed)
    }
}

/// So many operations, of kinds that come so often; shrinking goes to the first.
pub fn steps<K: Copy + Debug + 'static>(
    kinds: &[(usize, K)],
    operations: usize,
) -> impl Strategy<Value = Vec<Step<K>>> + use<K> {
    let kinds: Vec<K> = kinds
        .iter()
        .flat_map(|(n, kind)| std::iter::repeat_n(*kind, *n))
        .collect();
    let step = (
        proptest::sample::select(kinds),
        1usize..=100,
        any::<u64>().no_shrink(),
    );
    let step = step.prop_map(|(kind, keys, seed)| Step { kind, keys, seed });
    proptest::collection::vec(step, operations)
}

/// Cases of a test: so many, or its share of `PROPTEST_CASES`.
pub fn cases(default: u32, share: u32) -> u32 {
    let given = std::env::var("PROPTEST_CASES").ok();
    given.map_or(default, |n| (n.parse::<u32>().unwrap() / share).max(1))
}

/// Runs cases of a test (its file and name); a failing one is kept beside the file, and told by `tell`.
pub fn run<S: Strategy>(
    cases: u32,
    (file, name): (&'static str, &'static str),
    strategy: &S,
    case: impl Fn(S::Value),
    tell: impl Fn(&S::Value) -> String,
) {
    let config = Config {
        cases,
        max_shrink_iters: 200,
        source_file: Some(file),
        test_name: Some(name),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let result = TestRunner::new(config).run(strategy, |value| {
        case(value);
        Ok::<(), TestCaseError>(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("{reason}"),
        Err(TestError::Fail(reason, value)) => panic!("{reason}\n{}", tell(&value)),
    }
}
