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

use source::{Source, collect, start_of_tests, without_comments_and_strings};

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

/// All paths in the code that begin with `crate` or `super`, groups in braces taken apart.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code
        .match_indices("crate::")
        .chain(code.match_indices("super::"))
    {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
            continue;
        }
        expand(&code[at..], &mut Vec::new(), &mut found);
    }
    found
}

/// Takes a path apart that stands at the start of the text; gives what follows it.
fn expand<'a>(text: &'a str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest, &mut before.clone(), found).trim_start();
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => return rest.strip_prefix('}').unwrap_or(""),
            }
        }
    }
    let word = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    let (name, rest) = text.split_at(word.unwrap_or(text.len()));
    before.push(name.to_owned());
    match rest.strip_prefix("::") {
        Some(rest) => expand(rest, before, found),
        None => {
            found.push(before.clone());
            // `x as y`, and whatever else ends an item.
            rest.find([',', '}', ';']).map_or("", |end| &rest[end..])
        }
    }
}

/// The module that a path leads to, as seen from another.
fn target(path: &[String], from: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let mut full: Module = match supers {
        0 => Module::new(),
        n => from.get(..from.len().checked_sub(n)?)?.to_vec(),
    };
    full.extend_from_slice(&path[supers.max(usize::from(supers == 0))..]);
    let ends = (1..=full.len()).rev();
    ends.map(|end| full[..end].to_vec())
        .find(|found| modules.contains(found))
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
        let code: String = code[..end].iter().collect();
        let targets = paths(&code).into_iter();
        let targets = targets.filter_map(|path| target(&path, &module, &modules));
        let other_room = |found: &Module| !found.starts_with(&module) && !module.starts_with(found);
        uses.insert(module.clone(), targets.filter(other_room).collect());
    }
    uses
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
    assert_eq!(ring(&uses), None);
}

fn ring_of(files: &[(&str, &str)]) -> Option<Vec<String>> {
    let source = |(path, text): &(&str, &str)| Source {
        path: (*path).to_owned(),
        text: (*text).to_owned(),
    };
    ring(&uses(&files.iter().map(source).collect::<Vec<_>>()))
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
