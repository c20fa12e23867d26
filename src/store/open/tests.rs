//! How many files may stay open.

use super::*;
use crate::store::tests::options;

/// Half of the limit, or what was asked for, where that and some others fit or can be made to.
#[test]
fn files_stay_open_as_far_as_the_limit_of_descriptors_goes() {
    let never = |_| unreachable!("the limit is enough");
    assert_eq!(files_within(0, 1001, never), 500);
    assert_eq!(files_within(100, 1000, never), 100);
    assert_eq!(
        files_within(936, 1000, never),
        936,
        "64 are left for others"
    );
    for (raised, found) in [(1001, 937), (1000, 936), (64, 0), (10, 0)] {
        let raise = |wanted| {
            assert_eq!(wanted, 1001);
            raised
        };
        assert_eq!(files_within(937, 1000, raise), found);
    }
    let most = |asked, read_only| {
        let options = RuntimeOptions {
            open_files_max: asked,
            ..options()
        };
        open_files_max(&options, read_only)
    };
    assert_eq!(most(100, true), usize::MAX, "a reader closes none");
    assert_eq!(most(100, false), 100);
    let least = options().thresholds_in_force().open_files_least;
    assert!(least > 1 && most(1, false) == least);
    let limits = [
        descriptor_limit(),
        most(0, false) as u64 * 2,
        descriptor_limit(),
    ];
    assert!(
        limits[0] <= limits[1] + 1 && limits[1] <= limits[2],
        "{limits:?}"
    );
}
