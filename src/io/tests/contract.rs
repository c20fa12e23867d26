//! What every engine does.

use super::faults::Fault::{Interrupted, Short};
use super::*;

#[test]
fn what_a_queue_writes_a_queue_and_a_file_read_back() {
    for place in places() {
        let bytes = pattern(16 * 8192, 1);
        let file = place.create("rows", OpenMode::CreateDirect);
        let mut queue = place.io.engine.queue(4, 8192).unwrap();
        assert_eq!((queue.depth(), queue.buffer_bytes()), (4, 8192));
        let mut tags = Vec::new();
        for (tag, part) in bytes.chunks(8192).enumerate() {
            if queue.in_flight() == queue.depth() {
                let completion = queue.wait().unwrap();
                assert_eq!(completion.result.unwrap(), 8192);
                tags.push(completion.tag);
                queue.recycle(completion.buffer);
            }
            let buffer = filled(&mut *queue, part);
            let tag = tag as u64;
            queue.write(&file, tag * 8192, 8192, buffer, tag);
        }
        while let Some(completion) = queue.wait() {
            assert_eq!(completion.result.unwrap(), 8192);
            tags.push(completion.tag);
            queue.recycle(completion.buffer);
        }
        tags.sort_unstable();
        assert_eq!(
            tags,
            (0..16).collect::<Vec<u64>>(),
            "each request completes once"
        );
        file.sync().unwrap();
        place.directory.sync().unwrap();
        assert_eq!(file.bytes().unwrap(), 16 * 8192);
        drop(file);
        assert_eq!(place.content("rows"), bytes);

        let file = place.create("rows", OpenMode::ReadDirect);
        for tag in 0..4 {
            let buffer = queue.buffer().unwrap();
            queue.read(&file, (3 - tag) * 8192, 8192, buffer, tag);
        }
        queue.submit();
        assert_eq!(queue.in_flight(), 4);
        while let Some(completion) = queue.wait() {
            let start = usize::try_from(3 - completion.tag).unwrap() * 8192;
            assert_eq!(completion.result.unwrap(), 8192);
            assert!(completion.buffer[..] == bytes[start..start + 8192]);
            queue.recycle(completion.buffer);
        }
        let mut one = AlignedBuffer::try_new(4096).unwrap();
        assert_eq!(file.read_at(&mut one, 4096).unwrap(), 4096);
        assert!(one[..] == bytes[4096..8192]);
    }
}

#[test]
fn what_has_arrived_is_taken_without_waiting_and_once() {
    for place in places() {
        let bytes = pattern(4 * 8192, 2);
        let mut whole = AlignedBuffer::try_new(bytes.len()).unwrap();
        whole.copy_from_slice(&bytes);
        let created = place.create("rows", OpenMode::CreateDirect);
        created.write_at(&whole, 0).unwrap();
        drop(created);
        let file = place.directory.open("rows", OpenMode::ReadDirect).unwrap();
        let mut queue = place.io.engine.queue(4, 8192).unwrap();
        assert!(queue.poll().is_none());
        for tag in 0..4 {
            let buffer = queue.buffer().unwrap();
            queue.read(&file, tag * 8192, 8192, buffer, tag);
        }
        let (mut tags, since) = (Vec::new(), std::time::Instant::now());
        while tags.len() < 4 {
            let Some(completion) = queue.poll() else {
                assert!(since.elapsed().as_secs() < 60, "nothing arrives");
                std::thread::yield_now();
                continue;
            };
            let start = usize::try_from(completion.tag).unwrap() * 8192;
            assert!(completion.buffer[..] == bytes[start..start + 8192]);
            tags.push(completion.tag);
            queue.recycle(completion.buffer);
        }
        tags.sort_unstable();
        assert_eq!(tags, [0, 1, 2, 3]);
        assert!(queue.poll().is_none() && queue.in_flight() == 0);
    }
}

#[test]
fn a_read_past_the_end_is_short() {
    for place in places() {
        place.plant("tail", &pattern(5000, 2));
        let file = place.create("tail", OpenMode::Read);
        let mut bytes = [0; 100];
        assert_eq!(file.read_at(&mut bytes, 4950).unwrap(), 50);
        assert_eq!(bytes[..50], pattern(5000, 2)[4950..]);
        assert_eq!(file.read_at(&mut bytes, 5000).unwrap(), 0);
        let file = place.create("tail", OpenMode::ReadDirect);
        let mut queue = place.io.engine.queue(2, 8192).unwrap();
        assert!(get(&mut *queue, &file, 0, 8192) == pattern(5000, 2));
        assert!(get(&mut *queue, &file, 4096, 4096) == pattern(5000, 2)[4096..]);
        assert!(get(&mut *queue, &file, 8192, 4096).is_empty());
    }
}

#[test]
fn short_and_interrupted_calls_are_absorbed() {
    for place in places() {
        let bytes = pattern(65536, 3);
        let file = place.create("rows", OpenMode::CreateDirect);
        let mut queue = place.io.engine.queue(2, 65536).unwrap();
        let trouble = [Interrupted, Short, Interrupted, Interrupted, Short, Short];
        faults::inject(&trouble);
        put(&mut *queue, &file, 0, &bytes);
        faults::inject(&trouble);
        assert!(get(&mut *queue, &file, 0, 65536) == bytes, "{:?}", place.io);
        faults::inject(&trouble);
        let mut buffer = AlignedBuffer::try_new(65536).unwrap();
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 65536);
        assert!(buffer[..] == bytes);
        faults::inject(&trouble);
        file.write_at(&buffer, 65536).unwrap();
        assert_eq!(faults::left(), 0, "every fault was met");
        assert!(get(&mut *queue, &file, 65536, 65536) == bytes);
    }
}

#[test]
fn a_call_interrupted_for_ever_is_an_error_in_the_end() {
    for place in places() {
        place.plant("file", &pattern(4096, 4));
        let file = place.create("file", OpenMode::ReadDirect);
        let mut queue = place.io.engine.queue(1, 4096).unwrap();
        faults::inject(&vec![Interrupted; RETRIES_MAX as usize + 1]);
        let buffer = queue.buffer().unwrap();
        queue.read(&file, 0, 4096, buffer, 9);
        let completion = queue.wait().unwrap();
        assert_eq!(completion.tag, 9);
        assert_eq!(
            completion.result.unwrap_err().kind(),
            ErrorKind::Interrupted
        );
        assert_eq!(faults::left(), 0);
    }
}

#[test]
fn a_queue_has_as_many_buffers_as_its_depth_and_completes_nothing_twice() {
    for place in places() {
        let mut queue = place.io.engine.queue(3, 4096).unwrap();
        assert!(queue.wait().is_none());
        let buffers: Vec<AlignedBuffer> = (0..3).map(|_| queue.buffer().unwrap()).collect();
        assert!(queue.buffer().is_none());
        assert!(
            buffers
                .iter()
                .all(|buffer| buffer.as_ptr().addr() % 4096 == 0)
        );
        let file = place.create("file", OpenMode::CreateDirect);
        for (tag, buffer) in (0..).zip(buffers) {
            queue.write(&file, tag * 4096, 4096, buffer, tag);
        }
        for left in (0..3).rev() {
            let completion = queue.wait().unwrap();
            assert_eq!(completion.result.unwrap(), 4096);
            assert_eq!(queue.in_flight(), left);
            queue.recycle(completion.buffer);
        }
        assert!(queue.wait().is_none());
        assert!(place.io.engine.queue(0, 4096).is_err());
        assert!(place.io.engine.queue(1, 1000).is_err());
    }
}

#[test]
fn a_request_beyond_the_depth_is_our_own_mistake() {
    for place in places() {
        let file = place.create("file", OpenMode::CreateDirect);
        let mut queue = place.io.engine.queue(1, 4096).unwrap();
        let buffer = queue.buffer().unwrap();
        queue.write(&file, 0, 4096, buffer, 0);
        let more = AlignedBuffer::try_new(4096).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            queue.write(&file, 0, 4096, more, 1);
        }));
        assert!(caught.is_err());
        assert_eq!(queue.wait().unwrap().result.unwrap(), 4096);
    }
}

#[test]
fn buffers_of_other_queues_work() {
    for place in places() {
        let file = place.create("file", OpenMode::CreateDirect);
        let mut one = place.io.engine.queue(1, 4096).unwrap();
        let mut other = place.io.engine.queue(1, 4096).unwrap();
        let buffer = filled(&mut *one, &pattern(4096, 5));
        other.write(&file, 0, 4096, buffer, 0);
        let completion = other.wait().unwrap();
        assert_eq!(completion.result.unwrap(), 4096);
        drop(one);
        other.read(&file, 0, 4096, completion.buffer, 1);
        assert!(other.wait().unwrap().buffer[..] == pattern(4096, 5));
    }
}

#[test]
fn a_failing_request_keeps_its_errno_and_buffer() {
    for place in places() {
        place.plant("file", &pattern(4096, 6));
        let file = place.create("file", OpenMode::ReadDirect);
        let mut queue = place.io.engine.queue(1, 4096).unwrap();
        let buffer = filled(&mut *queue, &pattern(4096, 7));
        queue.write(&file, 0, 4096, buffer, 3);
        let completion = queue.wait().unwrap();
        assert_eq!(
            completion.result.unwrap_err().raw_os_error(),
            Some(9),
            "EBADF: read-only"
        );
        assert_eq!(completion.buffer[..], pattern(4096, 7));
        assert_eq!(
            file.write_at(&[0; 1], 0).unwrap_err().raw_os_error(),
            Some(9)
        );
        assert_eq!(place.content("file"), pattern(4096, 6));
        if file.is_direct() {
            queue.read(&file, 100, 512, completion.buffer, 4);
            let error = queue.wait().unwrap().result.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(22), "EINVAL: not aligned");
        }
    }
}

#[test]
fn alignment_is_what_the_file_says() {
    for place in places() {
        place.plant("file", &pattern(8192, 8));
        let plain = place.create("file", OpenMode::Read);
        assert_eq!((plain.align_bytes(), plain.is_direct()), (1, false));
        let file = place.create("file", OpenMode::ReadDirect);
        let align = file.align_bytes();
        assert!([1, 512, 4096].contains(&align));
        assert_eq!(file.is_direct(), align > 1);
        if place.directory.path().starts_with("/dev/shm") {
            assert!(!file.is_direct(), "there is no device below tmpfs");
        }
        let mut queue = place.io.engine.queue(1, 4096).unwrap();
        let found = get(&mut *queue, &file, align as u64, align);
        assert!(found == pattern(8192, 8)[align..2 * align]);
        let made = place.create("made", OpenMode::CreateDirect);
        assert_eq!(made.is_direct(), file.is_direct());
        assert!(made.align_bytes() <= 4096);
    }
}

#[test]
fn creating_refuses_a_name_that_exists_and_opening_one_that_does_not() {
    for place in places() {
        place.plant("file", b"one");
        for mode in [OpenMode::Create, OpenMode::CreateDirect] {
            let error = place.directory.open("file", mode).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(place.content("file"), b"one");
        for mode in [OpenMode::Read, OpenMode::ReadDirect] {
            let error = place.directory.open("none", mode).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        for name in ["", ".", "..", "inner/file", "/file"] {
            let error = place.directory.open(name, OpenMode::Create).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(place.names(), ["file"]);
    }
}

#[test]
fn directories_are_made_listed_and_refused_as_files() {
    for place in places() {
        place.directory.create_dir("inner".as_ref()).unwrap();
        let error = place.directory.create_dir("inner".as_ref()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        place.plant("b", b"12345");
        place.plant("a", b"");
        let entries = place.directory.list().unwrap();
        let found: Vec<_> = entries
            .iter()
            .map(|e| (e.name.as_str(), e.bytes, e.is_file))
            .collect();
        assert_eq!(found, [("a", 0, true), ("b", 5, true), ("inner", 0, false)]);
        let error = place.directory.open("inner", OpenMode::Read).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(21), "EISDIR");
        let error = place.directory.open_dir("none".as_ref()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = place.directory.open_dir("b".as_ref()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
        let inner = place.directory.open_dir("inner".as_ref()).unwrap();
        assert_eq!(inner.path(), place.path("inner"));
        inner.sync().unwrap();
        assert!(inner.list().unwrap().is_empty());
        let again = place.io.disk.open_dir(&place.path("inner")).unwrap();
        assert_eq!(again.id().unwrap(), inner.id().unwrap());
        assert_ne!(again.id().unwrap(), place.directory.id().unwrap());
    }
}

#[test]
fn a_rename_replaces_its_target() {
    for place in places() {
        place.plant("tmp", b"new");
        place.plant("current", b"old");
        let old = place.create("current", OpenMode::Read);
        place
            .directory
            .rename("tmp".as_ref(), "current".as_ref())
            .unwrap();
        assert_eq!(place.names(), ["current"]);
        assert_eq!(place.content("current"), b"new");
        let mut bytes = [0; 3];
        old.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"old", "an open handle keeps the file it opened");
        let error = place
            .directory
            .rename("tmp".as_ref(), "current".as_ref())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

#[test]
fn a_removed_file_is_readable_while_it_is_open() {
    for place in places() {
        place.plant("file", &pattern(4096, 9));
        let file = place.create("file", OpenMode::ReadDirect);
        place.directory.remove("file").unwrap();
        place.directory.sync().unwrap();
        assert!(place.names().is_empty());
        assert_eq!(
            place.directory.remove("file").unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let mut queue = place.io.engine.queue(1, 4096).unwrap();
        assert!(get(&mut *queue, &file, 0, 4096) == pattern(4096, 9));
    }
}

#[test]
fn a_hard_link_shares_bytes_and_outlives_the_first_name() {
    for place in places() {
        place.directory.create_dir("export".as_ref()).unwrap();
        let export = place.directory.open_dir("export".as_ref()).unwrap();
        let linked = || {
            let file = export.open("file", OpenMode::Read).unwrap();
            let mut bytes = [0; 3];
            file.read_at(&mut bytes, 0).unwrap();
            bytes
        };
        let file = place.create("file", OpenMode::Create);
        file.write_at(b"one", 0).unwrap();
        place.directory.hard_link("file", &*export, "file").unwrap();
        file.write_at(b"two", 0).unwrap();
        assert_eq!(&linked(), b"two");
        let error = place
            .directory
            .hard_link("file", &*export, "file")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        place.directory.remove("file").unwrap();
        assert_eq!(&linked(), b"two");
    }
}

#[test]
fn locks_exclude_each_other_until_they_are_dropped() {
    for place in places() {
        let take = |kind| place.directory.lock("LOCK", kind, true);
        let missing = place
            .directory
            .lock("LOCK", LockKind::Exclusive, false)
            .unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let writer = take(LockKind::Exclusive).unwrap();
        for kind in [LockKind::Exclusive, LockKind::Shared] {
            assert_eq!(take(kind).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        drop(writer);
        let one = take(LockKind::Shared).unwrap();
        let two = place
            .directory
            .lock("LOCK", LockKind::Shared, false)
            .unwrap();
        assert_eq!(
            take(LockKind::Exclusive).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        drop(one);
        assert_eq!(
            take(LockKind::Exclusive).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        drop(two);
        take(LockKind::Exclusive).unwrap();
    }
}

#[test]
fn a_directory_is_locked_by_one_whatever_locks_its_files() {
    for place in places() {
        let whole = place.directory.lock_whole().unwrap();
        let other = place.io.disk.open_dir(place.directory.path()).unwrap();
        let refused = other.lock_whole().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        drop(other.lock("LOCK", LockKind::Exclusive, true).unwrap());
        drop(whole);
        other.lock_whole().unwrap();
    }
}

/// A store that was opened by a relative path wrote into another one after `chdir`.
#[test]
fn an_open_directory_is_the_same_one_when_its_name_leads_elsewhere() {
    for place in places() {
        place.directory.create_dir("inner".as_ref()).unwrap();
        let inner = place.directory.open_dir("inner".as_ref()).unwrap();
        drop(inner.open("one", OpenMode::Create).unwrap());
        let (old, new) = ("inner".as_ref(), "aside".as_ref());
        place.directory.rename(old, new).unwrap();
        place.directory.create_dir("inner".as_ref()).unwrap();
        drop(inner.open("two", OpenMode::Create).unwrap());
        inner.rename("one".as_ref(), "three".as_ref()).unwrap();
        inner.sync().unwrap();
        let names = |name: &str| -> Vec<String> {
            let opened = place.directory.open_dir(name.as_ref()).unwrap();
            let entries = opened.list().unwrap();
            entries.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names("aside"), ["three", "two"]);
        assert!(names("inner").is_empty());
        inner.remove("two").unwrap();
        assert_eq!(names("aside"), ["three"]);
    }
}

#[test]
fn a_queue_dropped_with_requests_in_flight_waits_for_them() {
    for place in places() {
        let file = place.create("file", OpenMode::CreateDirect);
        let bytes = pattern(8 * 65536, 10);
        let mut queue = place.io.engine.queue(8, 65536).unwrap();
        for (tag, part) in (0..).zip(bytes.chunks(65536)) {
            let buffer = filled(&mut *queue, part);
            queue.write(&file, tag * 65536, 65536, buffer, tag);
        }
        queue.submit();
        drop(queue);
        drop(file);
        assert!(place.content("file") == bytes, "{:?}", place.io);
    }
}

#[test]
fn a_queue_moves_between_threads_and_a_request_keeps_its_file_open() {
    for place in places() {
        place.plant("file", &pattern(65536, 11));
        let file = place.create("file", OpenMode::ReadDirect);
        let mut queue = place.io.engine.queue(4, 16384).unwrap();
        let thread = std::thread::spawn(move || {
            for tag in 0..4 {
                let buffer = queue.buffer().unwrap();
                queue.read(&file, tag * 16384, 16384, buffer, tag);
            }
            queue.submit();
            drop(file);
            queue
        });
        let mut queue = thread.join().unwrap();
        let bytes = pattern(65536, 11);
        let mut seen = 0;
        while let Some(completion) = queue.wait() {
            assert_eq!(completion.result.unwrap(), 16384);
            let start = usize::try_from(completion.tag).unwrap() * 16384;
            assert!(completion.buffer[..] == bytes[start..start + 16384]);
            seen += 1;
        }
        assert_eq!(seen, 4);
    }
}

#[test]
fn room_is_told() {
    for place in places() {
        let space = place.directory.space().unwrap();
        assert!(space.free_bytes > 0);
        assert!(space.free_bytes <= space.total_bytes);
    }
}
