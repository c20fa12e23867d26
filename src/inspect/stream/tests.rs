//! A file on the simulated disk, read in pieces of 8 KiB by a queue of two buffers.

use std::path::Path;

use super::*;
use crate::io::sim::SimDisk;
use crate::io::{Disk, Engine, OpenMode};

const BUFFER_BYTES: usize = 8192;
const PATH: &str = "/file";

/// A file of so many bytes, no two blocks alike, and a queue.
fn file_of(disk: &SimDisk, bytes: u16) -> (Vec<u8>, Arc<dyn DiskFile>, Box<dyn Queue>) {
    let content: Vec<u8> = (0..bytes)
        .map(|i| u8::try_from((i / 4096 + i) % 251).unwrap())
        .collect();
    disk.write_file(Path::new(PATH), &content).unwrap();
    let root = disk.open_dir(Path::new("/")).unwrap();
    let file = root.open("file", OpenMode::Read).unwrap();
    (content, file, disk.queue(2, BUFFER_BYTES).unwrap())
}

fn reads(disk: &SimDisk) -> u64 {
    disk.calls_by_kind().get("read").copied().unwrap_or(0)
}

/// All buffers are back when a stream is done with, whatever it had asked for.
fn check_buffers(queue: &mut dyn Queue) {
    let all = [queue.buffer(), queue.buffer()].map(Option::unwrap);
    assert!(queue.buffer().is_none() && queue.in_flight() == 0);
    for buffer in all {
        queue.recycle(buffer);
    }
}

#[test]
fn a_part_of_a_file_comes_in_order_and_each_byte_is_read_once() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let (content, file, mut queue) = file_of(&disk, 10 * 4096);
        for (start, end, pieces) in [
            (4096, 8 * 4096, 4),
            (0, 10 * 4096, 5),
            (4096, 8192, 1),
            (8192, 8192, 0),
        ] {
            let before = reads(&disk);
            let mut stream = Stream::new(&mut *queue, &file, start, end);
            let (mut next, mut count) = (start, 0);
            while let Some((offset, bytes)) = stream.next().unwrap() {
                assert_eq!(offset, next);
                let at = usize::try_from(offset).unwrap();
                assert_eq!(bytes, &content[at..at + bytes.len()]);
                (next, count) = (next + bytes.len() as u64, count + 1);
            }
            assert_eq!((next, count), (end, pieces), "{start} to {end}");
            assert!(stream.next().unwrap().is_none(), "it stays at its end");
            drop(stream);
            assert_eq!(reads(&disk) - before, pieces, "{start} to {end}");
            check_buffers(&mut *queue);
        }
    }
}

#[test]
fn a_stream_that_is_dropped_early_hands_its_buffers_back() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let (_, file, mut queue) = file_of(&disk, 10 * 4096);
        for pieces in 0..4 {
            let mut stream = Stream::new(&mut *queue, &file, 0, 10 * 4096);
            for _ in 0..pieces {
                assert!(stream.next().unwrap().is_some());
            }
            drop(stream);
            check_buffers(&mut *queue);
        }
    }
}

#[test]
fn a_file_that_ends_early_is_an_error_at_the_piece_that_is_cut() {
    let disk = SimDisk::new(1);
    let (_, file, mut queue) = file_of(&disk, 3 * 4096 + 100);
    let mut stream = Stream::new(&mut *queue, &file, 0, 5 * 4096);
    assert_eq!(stream.next().unwrap().map(|(at, _)| at), Some(0));
    let (bytes, error) = stream.next().unwrap_err();
    assert_eq!(bytes, 8192..16384);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    // By one byte only.
    let (_, file, mut queue) = file_of(&disk, 2 * 4096 - 1);
    let mut stream = Stream::new(&mut *queue, &file, 0, 2 * 4096);
    let (bytes, error) = stream.next().unwrap_err();
    assert_eq!(bytes, 0..8192);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_read_that_fails_is_an_error_with_the_bytes_that_it_was_to_bring() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        // The last piece is a short one.
        let (_, file, mut queue) = file_of(&disk, 5 * 4096);
        for (lost, piece, first) in [
            (0, 0..8192, 0),
            (4096, 0..8192, 4096),
            (4 * 4096 + 700, 4 * 4096..5 * 4096, 4 * 4096),
        ] {
            let content = disk.read_file(Path::new(PATH)).unwrap();
            disk.lose_sector(Path::new(PATH), lost).unwrap();
            let mut stream = Stream::new(&mut *queue, &file, 0, 5 * 4096);
            let (bytes, error) = loop {
                match stream.next() {
                    Ok(piece) => assert!(piece.is_some(), "byte {lost} is not read"),
                    Err(failed) => break failed,
                }
            };
            assert!(is_unreadable(&error), "{error}");
            assert_eq!(bytes, piece, "byte {lost}");
            drop(stream);
            check_buffers(&mut *queue);
            assert_eq!(first_unreadable(&*file, bytes), Some(first));
            assert_eq!(first_unreadable(&*file, 8192..16384), None);
            disk.lose_sector(Path::new(PATH), 3).unwrap();
            let blocks = [first_unreadable(&*file, 0..20480), Some(0)];
            assert_eq!(blocks[0], blocks[1], "the first of several");
            disk.write_file(Path::new(PATH), &content).unwrap();
        }
    }
}
