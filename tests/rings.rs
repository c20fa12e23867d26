//! Do modules import each other in a ring?
//!
//! - A module is a file of `src`, its tests left out. A folder and what is in it are one room: a file
//!   may use its folder's `mod.rs`, and that file it.
//! - The finder is a function of (path, text), and is itself tested on planted rings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[path = "common/source.rs"]
#[expect(dead_code, reason = "tests/layers.rs uses the rest")]
mod source;

use source::{Source, collect, paths, start_of_tests, supers, without_comments_and_strings};

type Module = Vec<String>;

/// The module that a file of `src` is; none for the root and for tests.
fn module_of(path: &str) -> Option<Module> {
    let inside = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut parts: Module = inside.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    let is_test = |part: &String| part == "tests" || part.ends_with("_tests");
    (parts != ["lib"] && !parts.iter().any(is_test)).then_some(parts)
}

/// The module that a path leads to, as seen from another.
fn target(path: &[String], from: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let mut full = match supers(path.iter()) {
        // `crate::...`
        0 => path[1..].to_vec(),
        n => [&from[..from.len().checked_sub(n)?], &path[n..]].concat(),
    };
    while !full.is_empty() && !modules.contains(&full) {
        full.pop();
    }
    (!full.is_empty()).then_some(full)
}

/// Which modules each module uses, those of its own folder above and below it left out.
fn uses(files: &[Source]) -> BTreeMap<Module, BTreeSet<Module>> {
    let named = |file: &Source| module_of(&file.path);
    let modules: BTreeSet<Module> = files.iter().filter_map(named).collect();
    let mut uses = BTreeMap::new();
    for file in files {
        let Some(module) = module_of(&file.path) else {
            continue;
        };
        let code = without_comments_and_strings(&file.text);
        let end = start_of_tests(&code);
        let code = &code[..end];
        let paths = [paths(code, "crate"), paths(code, "super")].concat();
        let names = paths
            .into_iter()
            .map(|path| path.into_iter().map(|(_, name)| name));
        let targets = names.filter_map(|path| target(&path.collect::<Module>(), &module, &modules));
        let other_room = |found: &Module| !found.starts_with(&module) && !module.starts_with(found);
        uses.insert(module.clone(), targets.filter(other_room).collect());
    }
    uses
}

/// The same between neighbours: what a file uses, the folders use in which it is, too, and a file of a
/// folder is used where its `mod.rs` gives the name. So a use counts where the two paths part.
fn parted(uses: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut parted: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, used) in uses
        .iter()
        .flat_map(|(m, used)| used.iter().map(move |u| (m, u)))
    {
        let same = module.iter().zip(used).take_while(|(a, b)| a == b).count();
        let user = parted.entry(module[..=same].to_vec()).or_default();
        user.insert(used[..=same].to_vec());
    }
    parted
}

/// A ring of modules that use each other, if there is one.
fn ring(uses: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<String>> {
    // What uses nothing that is left is in no ring.
    let mut left = uses.clone();
    loop {
        let known: BTreeSet<Module> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, used| used.iter().any(|module| known.contains(module)));
        if left.len() == before {
            break;
        }
    }
    let mut way = vec![left.keys().next()?.clone()];
    loop {
        let next = left[way.last()?]
            .iter()
            .find(|used| left.contains_key(*used))?;
        if let Some(at) = way.iter().position(|module| module == next) {
            way.push(next.clone());
            return Some(way[at..].iter().map(|module| module.join("::")).collect());
        }
        way.push(next.clone());
    }
}

#[test]
fn no_modules_use_each_other_in_a_ring() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(root, &root.join("src"), &mut files).unwrap();
    let uses = uses(&files);
    let count: usize = uses.values().map(BTreeSet::len).sum();
    assert!(
        uses.len() > 80 && count > 300,
        "{} modules, {count} uses",
        uses.len()
    );
    assert_eq!(ring(&parted(&uses)), None);
}

fn ring_of(files: &[(&str, &str)]) -> Option<Vec<String>> {
    let source = |(path, text): &(&str, &str)| Source {
        path: (*path).to_owned(),
        text: (*text).to_owned(),
    };
    ring(&parted(&uses(
        &files.iter().map(source).collect::<Vec<_>>(),
    )))
}

#[test]
fn planted_rings_are_found() {
    let ring = |files| ring_of(files).map_or(0, |ring| ring.len() - 1);
    assert_eq!(
        ring(&[
            ("src/a.rs", "use crate::b::B;"),
            ("src/b.rs", "use super::a;")
        ]),
        2
    );
    let three = [
        ("src/m/mod.rs", "mod a; mod b; mod c;"),
        ("src/m/a.rs", "use super::b::{self, X};"),
        ("src/m/b.rs", "use crate::{error, m::{x, c::Y as Z}, n};"),
        ("src/m/c.rs", "fn f() { super::a::g() }"),
    ];
    assert_eq!(ring(&three), 3);
    let by_folders = [
        ("src/m/mod.rs", "mod a; mod b; pub use b::B;"),
        ("src/m/a.rs", "use super::super::n::N;"),
        ("src/m/b.rs", ""),
        ("src/n/mod.rs", "mod c;"),
        ("src/n/c.rs", "use crate::m::B;"),
    ];
    assert_eq!(ring(&by_folders), 2);
    let far = [
        ("src/m/a.rs", "use super::super::n::b;"),
        ("src/n/b.rs", "use crate::m::a::A;"),
    ];
    assert_eq!(ring(&far), 2);
}

#[test]
fn what_is_no_ring_is_not_reported() {
    let room = [
        ("src/m/mod.rs", "mod a; use a::A; use self::a::B;"),
        ("src/m/a.rs", "use super::M; use super::super::n;"),
        (
            "src/n.rs",
            "// use crate::m;\nfn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::m;\n}",
        ),
        ("src/m/tests.rs", "use crate::n; use super::a;"),
    ];
    assert_eq!(ring_of(&room), None);
}
