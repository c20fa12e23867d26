//! What does CURRENT commit, and how do tests change it under right checksums?

#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::path::{Path, PathBuf};

use hps::format::FileIdentity;
use hps::format::current::Current;
use hps::format::identity::StoreIdentity;
use hps::format::manifest::{Edit, ManifestReader, encode_manifest};
use hps::io::sim::SimDisk;

const ROOT: &str = "/store";

/// The manifest, its copy, and CURRENT.
pub fn files(disk: &SimDisk) -> [PathBuf; 3] {
    let paths = disk.paths();
    ["manifest", "copy", "CURRENT"].map(|end| {
        let mut named = paths.iter().filter(|p| p.to_str().unwrap().ends_with(end));
        named.next_back().unwrap().clone()
    })
}

/// The store's uuid, and what CURRENT commits.
pub fn committed(disk: &SimDisk) -> ([u8; 16], Current) {
    let read = |name: &str| disk.read_file(&Path::new(ROOT).join(name)).unwrap();
    let store = StoreIdentity::decode(&read("STORE")).unwrap().uuid;
    let current = Current::decode(&read("CURRENT"), &store).unwrap();
    (store, current)
}

/// Changes what the manifest says, under right checksums up to CURRENT.
pub fn forge(disk: &SimDisk, change: impl FnOnce(&mut Vec<Edit>)) {
    let [manifest, copy, path] = files(disk);
    let (store, current) = committed(disk);
    let id = FileIdentity::new(store, current.manifest_number);
    let bytes = disk.read_file(&manifest).unwrap();
    let bytes = &bytes[..usize::try_from(current.manifest_bytes).unwrap()];
    let reader = ManifestReader::new(bytes, &id).unwrap();
    let mut edits = reader.map(Result::unwrap).collect();
    change(&mut edits);
    let (out, digest) = encode_manifest(current.version, &edits, &id);
    let current = Current {
        manifest_bytes: out.len() as u64,
        manifest_digest: digest,
        ..current
    };
    disk.write_file(&manifest, &out).unwrap();
    disk.write_file(&copy, &out).unwrap();
    disk.write_file(&path, &current.encode(&store)).unwrap();
}
