//! Work that several threads share, and that one of them could do alone; and how work in the background lets others go first.

use super::thread;

/// Between two pieces of work, with no shard locked: whoever waits for the processor has it first. A kernel may look
/// only 250 times a second who has had it for long enough, and a trainer should not wait 4 ms for a row. Of rows of 512
/// bytes a piece lasts a tenth of a millisecond (decision 0057). shuttle's scheduler decides at every lock anyway.
pub fn step_aside() {
    #[cfg(not(hps_shuttle))]
    thread::yield_now();
}

/// Does each of `works` by a thread of its own, the first by the caller's; gives what they gave, in
/// their order. Where a thread is not to be had, its work and those after it are left out: each
/// takes what there is to do from a place that all share, until nothing is left. A panic is passed on.
pub fn by_team<T, W>(name: &str, works: impl IntoIterator<Item = W>) -> Vec<T>
where
    T: Send,
    W: FnOnce() -> T + Send,
{
    let mut works = works.into_iter();
    let Some(own) = works.next() else {
        return Vec::new();
    };
    thread::scope(|scope| {
        let others: Vec<_> = works
            .map_while(|work| {
                let thread = thread::Builder::new().name(name.to_owned());
                thread.spawn_scoped(scope, work).ok()
            })
            .collect();
        let own = own();
        let others = others.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        std::iter::once(own).chain(others).collect()
    })
}
