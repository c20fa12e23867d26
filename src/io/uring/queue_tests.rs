use std::sync::atomic::Ordering;

use super::super::super::{Disk, Engine, OpenMode, OsDisk};
use super::super::UringEngine;
use super::*;

/// A queue of four buffers and an open file of 64 KiB; `None` where io_uring is refused.
fn queue_and_file() -> Option<(UringQueue, Arc<dyn DiskFile>, tempfile::TempDir)> {
    UringEngine::new()
        .map_err(|error| println!("skipped uring: {error}"))
        .ok()?;
    let directory = tempfile::tempdir().unwrap();
    let place = OsDisk.open_dir(directory.path()).unwrap();
    let file = place.open("file", OpenMode::CreateDirect).unwrap();
    let mut content = AlignedBuffer::try_new(65536).unwrap();
    for (block, bytes) in content.chunks_exact_mut(4096).enumerate() {
        bytes.fill(u8::try_from(block).unwrap());
    }
    file.write_at(&content, 0).unwrap();
    let queue = UringQueue::new(4, 4096, &Arc::default()).unwrap();
    Some((queue, file, directory))
}

/// Starts to read or write block `tag`; what is written is `100 + tag`.
fn start(queue: &mut UringQueue, file: &Arc<dyn DiskFile>, write: bool, tag: u8) {
    let mut buffer = queue.buffer().unwrap();
    let offset = u64::from(tag) * 4096;
    if write {
        buffer.fill(100 + tag);
        queue.write(file, offset, 4096, buffer, tag.into());
    } else {
        queue.read(file, offset, 4096, buffer, tag.into());
    }
}

/// Waits for everything; the tags in rising order. All have moved a block, and reads the right one.
fn drain(queue: &mut UringQueue, write: bool) -> Vec<u64> {
    let mut tags = Vec::new();
    while let Some(completion) = queue.wait() {
        assert_eq!(completion.result.unwrap(), 4096);
        let byte = u8::try_from(completion.tag).unwrap() + if write { 100 } else { 0 };
        assert!(completion.buffer.iter().all(|b| *b == byte));
        tags.push(completion.tag);
        queue.recycle(completion.buffer);
    }
    tags.sort_unstable();
    tags
}

/// What stands in a block of a file.
fn block(file: &Arc<dyn DiskFile>, block: u8) -> u8 {
    let mut bytes = AlignedBuffer::try_new(4096).unwrap();
    let read = file.read_at(&mut bytes, u64::from(block) * 4096).unwrap();
    assert_eq!(read, 4096);
    assert!(bytes.iter().all(|b| *b == bytes[0]));
    bytes[0]
}

#[test]
fn buffers_are_registered_each_under_its_own_index() {
    let Some((mut queue, _file, _directory)) = queue_and_file() else {
        return;
    };
    let buffers: Vec<_> = (0..4).map(|_| queue.buffer().unwrap()).collect();
    let Some(ring) = &queue.ring else {
        println!("this process has no ring");
        return;
    };
    let registered = buffers.iter().filter_map(|b| b.registered(ring.number()));
    let indexes: Vec<_> = registered.collect();
    assert_eq!(
        indexes.len() as u64,
        queue.account.counts().registered_buffers
    );
    // The buffers that are taken first.
    let count = u16::try_from(indexes.len()).unwrap();
    assert_eq!(indexes, (0..count).collect::<Vec<_>>());
    assert_eq!(queue.account.counts().buffers, 4);
}

/// One EAGAIN for 6.4 ms, or ENOMEM once, ended all checkpoints (and on a lane's queue all cold
/// pulls) until the store was opened again: the queue was broken for ever.
#[test]
fn a_queue_goes_on_with_a_new_ring_when_its_ring_failed() {
    for write in [false, true] {
        let Some((mut queue, file, _directory)) = queue_and_file() else {
            return;
        };
        start(&mut queue, &file, write, 9);
        assert_eq!(drain(&mut queue, write), [9]);
        for tag in 0..4 {
            start(&mut queue, &file, write, tag);
            if tag == 1 {
                queue.submit();
                assert!(queue.offered.is_empty());
            }
        }
        queue.give_up(&io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!((queue.in_flight(), queue.waiting.len()), (4, 2));
        assert_eq!(drain(&mut queue, write), [0, 1, 2, 3], "write: {write}");
        assert!(queue.ring.is_some() && !queue.broken);
        for tag in 4..8 {
            start(&mut queue, &file, write, tag);
        }
        assert_eq!(drain(&mut queue, write), [4, 5, 6, 7]);
        let counts = queue.account.counts();
        assert_eq!((counts.rings_lost, counts.plain_queues), (1, 0));
        let expected = |tag| if write { 100 + tag } else { tag };
        assert!((0..8).all(|tag| block(&file, tag) == expected(tag)));
    }
}

#[test]
fn a_queue_goes_on_with_plain_calls_when_there_is_no_new_ring() {
    for write in [false, true] {
        let Some((mut queue, file, _directory)) = queue_and_file() else {
            return;
        };
        for tag in 0..4 {
            start(&mut queue, &file, write, tag);
            if tag == 1 {
                queue.submit();
            }
        }
        queue.account.refuses.store(true, Ordering::Relaxed);
        queue.give_up(&io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(drain(&mut queue, write), [0, 1, 2, 3]);
        assert!(queue.ring.is_none());
        for tag in 4..8 {
            start(&mut queue, &file, write, tag);
        }
        assert_eq!(queue.in_flight(), 4);
        assert_eq!(drain(&mut queue, write), [4, 5, 6, 7]);
        let counts = queue.account.counts();
        assert_eq!((counts.rings_lost, counts.plain_queues), (1, 1));
        assert_eq!((counts.buffers, counts.registered_buffers), (4, 0));
        let account = Arc::clone(&queue.account);
        drop(queue);
        assert_eq!(account.counts().plain_queues, 0);
    }
}

#[test]
fn a_queue_whose_rings_fail_again_and_again_asks_for_no_other() {
    let Some((mut queue, file, _directory)) = queue_and_file() else {
        return;
    };
    // The first never worked: one more is tried.
    start(&mut queue, &file, false, 1);
    for another in [true, false] {
        queue.give_up(&io::Error::from_raw_os_error(libc::EPERM));
        queue.replace();
        assert_eq!((queue.ring.is_some(), queue.in_flight()), (another, 1));
    }
    assert_eq!(drain(&mut queue, false), [1]);
    // One that works each time is worth more tries, but not for ever.
    let Some((mut queue, file, _directory)) = queue_and_file() else {
        return;
    };
    let mut rings = 0;
    while queue.ring.is_some() {
        rings += 1;
        start(&mut queue, &file, true, 2);
        assert_eq!(drain(&mut queue, true), [2]);
        queue.give_up(&io::Error::from_raw_os_error(libc::EBUSY));
        queue.submit();
    }
    assert_eq!(rings, RINGS_MAX);
}

#[test]
fn requests_beyond_the_entries_of_a_small_ring_wait_their_turn() {
    let Some((mut queue, file, _directory)) = queue_and_file() else {
        return;
    };
    let Ok(small) = Ring::new(1, &queue.account) else {
        println!("skipped: no uring");
        return;
    };
    queue.install(small);
    assert_eq!((queue.slots.len(), queue.depth()), (1, 4));
    for round in 0..4 {
        for tag in 0..4 {
            start(&mut queue, &file, false, tag + round);
        }
        assert_eq!((queue.in_flight(), queue.waiting.len()), (4, 3));
        let first = u64::from(round);
        assert_eq!(
            drain(&mut queue, false),
            (first..first + 4).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_queue_of_plain_calls_is_counted_and_named() {
    let Ok(engine) = UringEngine::new() else {
        println!("skipped: no uring");
        return;
    };
    assert_eq!(engine.name(), "uring");
    let one = engine.queue(4, 4096).unwrap();
    if engine.counts().plain_queues > 0 {
        println!("skipped: this process has no ring");
        return;
    }
    engine.account.refuses.store(true, Ordering::Relaxed);
    let other = engine.queue(2, 4096).unwrap();
    assert_eq!(engine.name(), "uring+pread");
    drop(one);
    assert_eq!(engine.name(), "pread");
    let counts = engine.counts();
    assert_eq!((counts.queues, counts.plain_queues), (1, 1));
    assert_eq!(counts.buffers, 2);
    drop(other);
    assert_eq!(engine.name(), "uring");
}

/// Where no worker thread may be made (RLIMIT_NPROC), a write that has to wait is cancelled; it
/// failed after 64 tries.
#[test]
fn what_tells_of_the_ring_is_told_from_what_tells_of_the_file() {
    for errno in [libc::ECANCELED, libc::EAGAIN, libc::ENOMEM] {
        assert!(is_of_the_ring(-errno));
    }
    for result in [0, 4096, -libc::EIO, -libc::ENOSPC, -libc::EINTR] {
        assert!(!is_of_the_ring(result));
    }
    assert_eq!(
        moved(-libc::EIO).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(moved(7).unwrap(), 7);
}
