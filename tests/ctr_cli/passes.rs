//! Does `ctr --passes` go through the passes of a folder, and change no result by it?

use std::collections::BTreeSet;

use super::*;

/// Rows of each pass: batches of 64 go across borders, and one has rows of three passes.
const CUTS: [usize; 5] = [500, 30, 1, 700, 769];

/// The keys of Criteo-layout lines as ctr makes them: field << 32 | value, fields from 1.
fn keyset(lines: &[&str]) -> Result<BTreeSet<u64>> {
    let mut keys = BTreeSet::new();
    for line in lines {
        for (field, text) in (1..).zip(line.split('\t').skip(14)) {
            if !text.is_empty() {
                keys.insert(field << 32 | u64::from_str_radix(text, 16)?);
            }
        }
    }
    Ok(keys)
}

fn write_keys<'a>(path: &Path, keys: impl Iterator<Item = &'a u64>) -> Result<()> {
    write(
        path,
        &keys.flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
    )
}

/// A folder as `hps-keyset split --data` makes it; the number of keys of each pass.
fn split(folder: &Path, text: &str, cuts: &[usize]) -> Result<Vec<usize>> {
    std::fs::create_dir(folder)?;
    let lines: Vec<&str> = text.lines().collect();
    let mut rest = &lines[..];
    let mut list = format!("{}\n", cuts.len());
    let mut counts = Vec::new();
    for (i, count) in cuts.iter().enumerate() {
        let (own, others) = rest.split_at(*count);
        rest = others;
        let keys = keyset(own)?;
        counts.push(keys.len());
        write_keys(&folder.join(format!("p.{i}.keyset")), keys.iter())?;
        let data = own.join("\n") + "\n";
        write(&folder.join(format!("p.{i}.tsv")), data.as_bytes())?;
        writeln!(list, "p.{i}.tsv")?;
    }
    ensure!(rest.is_empty(), "the passes are all of the data");
    write(&folder.join("p.txt"), list.as_bytes())?;
    Ok(counts)
}

/// The objects that a run prints with `--json`, the last of which is the summary.
fn objects(flags: &[&str]) -> Result<Vec<Value>> {
    parsed(&run(&[flags, &["--json", "--digest"]].concat(), &[])?)
}

fn parsed(output: &Output) -> Result<Vec<Value>> {
    ensure!(output.status.success(), "{}", stderr(output));
    let text = std::str::from_utf8(&output.stdout)?;
    let all = text.lines().map(serde_json::from_str);
    Ok(all.collect::<serde_json::Result<_>>()?)
}

fn last(objects: &[Value]) -> Result<&Value> {
    objects.last().context("a summary")
}

/// Of the objects of a run those that tell of passes.
fn passes(objects: &[Value]) -> Vec<&Value> {
    let of_passes = objects.iter().filter(|value| value["pass"].is_number());
    of_passes.collect()
}

/// Each pass is told of with its keys, in order, and before a batch that has rows of it.
fn check_told(objects: &[Value], cuts: &[usize], keys: &[usize]) -> Result<()> {
    let mut entered = 0;
    for value in objects {
        if value["pass"].is_number() {
            ensure!(value["pass"] == entered, "pass {entered}: {value}");
            ensure!(value["keys"] == keys[entered], "{value}");
            for name in ["hit_rate", "read_bytes", "wait_s"] {
                ensure!(value[name].is_number(), "{name}: {value}");
            }
            entered += 1;
        } else if value["batch"].is_number() {
            let there: usize = cuts[..entered].iter().sum();
            let examples = value["examples"].as_u64().context("a number")?;
            ensure!(examples <= there as u64, "{entered} passes: {value}");
        }
    }
    ensure!(entered == cuts.len(), "{entered} passes were told of");
    Ok(())
}

#[test]
fn results_do_not_depend_on_passes_or_policies() -> Result<()> {
    let place = place()?;
    let folder = place.path("passes");
    let keys = split(&folder, &text(ROWS)?, &CUTS)?;
    let folder = folder.to_str().context("a path in UTF-8")?;
    let plain = result(&summary(&[], &[&place.data])?);
    let runs: [&[&str]; 6] = [
        &[],
        &["--depth", "0", "--io", "pread", "--policy", "lru"],
        &["--depth", "9", "--cache-mib", "2", "--shards", "1"],
        &["--policy", "staged", "--checkpoint-every", "3"],
        &["--policy", "cached", "--depth", "3", "--shards", "7"],
        &[
            "--policy",
            "cached",
            "--blocks",
            "2",
            "--target-hit-rate",
            "0.4",
            "--max-evictions",
            "1",
            "--depth",
            "0",
        ],
    ];
    for flags in runs {
        let flags = [&["--passes", folder], flags].concat();
        let all = objects(&flags)?;
        assert_eq!(result(last(&all)?), plain, "{flags:?}");
        check_told(&all, &CUTS, &keys)?;
    }
    let said = run(&["--passes", folder], &[])?;
    let said = String::from_utf8(said.stdout)?;
    let row = format!("{:<26}{} keys, hit rate ", "pass 3", keys[3]);
    assert!(said.contains(&row), "{said}");
    Ok(())
}

#[test]
fn rows_of_a_pass_come_from_disk_once_and_blocks_are_hits() -> Result<()> {
    let place = place()?;
    let folder = place.path("passes");
    let cuts = [100; 20];
    let keys = split(&folder, &text(ROWS)?, &cuts)?;
    let folder = folder.to_str().context("a path in UTF-8")?;
    let wide = ["--dim", "128", "--shards", "2"];
    let plain = result(&summary(&wide, &[&place.data])?);
    // The small cache holds two passes and a block, a part of the table.
    let small = [&["--passes", folder, "--cache-mib", "6"], &wide[..]].concat();
    let runs: [(&[&str], bool); 4] = [
        (&["--depth", "2"], true),
        (&["--depth", "0", "--policy", "lru"], true),
        (&["--policy", "cached", "--blocks", "1"], true),
        (&["--policy", "cached", "--blocks", "0"], false),
    ];
    for (flags, has_hits) in runs {
        let all = objects(&[&small[..], flags].concat())?;
        assert_eq!(result(last(&all)?), plain, "{flags:?}");
        check_told(&all, &cuts, &keys)?;
        let later = &passes(&all)[1..];
        let read = later.iter().filter(|x| x["read_bytes"].as_u64() > Some(0));
        assert!(read.count() > 0, "{flags:?}: {later:?}");
        let hit = later.iter().all(|x| x["hit_rate"].as_f64() > Some(0.0));
        assert_eq!(hit, has_hits, "{flags:?}: {later:?}");
    }
    Ok(())
}

#[test]
fn a_run_killed_in_a_pass_resumes_in_it_to_the_same_bits() -> Result<()> {
    let place = place()?;
    let folder = place.path("passes");
    split(&folder, &text(ROWS)?, &CUTS)?;
    let folder = folder.to_str().context("a path in UTF-8")?;
    let plain = result(&summary(&[], &[&place.data])?);
    let directory = place.path("store");
    let directory = directory.to_str().context("a path in UTF-8")?;
    let every = EVERY.to_string();
    let own = ["--passes", folder, "--dir", directory, "--resume"];
    let own = [&own[..], &["--checkpoint-every", &every]].concat();
    let cached = [&own[..], &["--policy", "cached", "--depth", "0"]].concat();
    // When batch 13 is printed, 10 batches are sure to stay: 640 rows, of which 109 are of pass 3.
    kill_after(&own, &place, &[], 13, Duration::ZERO)?;
    let began = kill_after(&cached, &place, &[], 2, Duration::ZERO)?;
    ensure!(began >= Some(10), "began after {began:?}");
    let output = run(&[&own[..], &["--json", "--digest"]].concat(), &[])?;
    let began = began_after(&stderr(&output)).context("a checkpoint")?;
    let all = parsed(&output)?;
    assert_eq!(result(last(&all)?), plain);
    // In the pass of the last row it has trained on: a kill may come later than asked for.
    let mut rows = 0;
    let first = CUTS.iter().position(|count| {
        rows += count;
        rows as u64 >= began * 64
    });
    let expected: Vec<_> = (first.context("rows of a pass")?..CUTS.len()).collect();
    ensure!(expected.first() >= Some(&3), "resumed after {began}");
    let entered = passes(&all);
    let entered: Vec<_> = entered.iter().map(|x| x["pass"].as_u64()).collect();
    let expected: Vec<_> = expected.iter().map(|x| Some(*x as u64)).collect();
    assert_eq!(entered, expected);
    // It may go on without passes only if it is the same data, in the same files.
    let files: Vec<PathBuf> = (0..CUTS.len())
        .map(|i| Path::new(folder).join(format!("p.{i}.tsv")))
        .collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let without = ["--dir", directory, "--resume"];
    assert_eq!(result(&summary(&without, &files)?), plain);
    Ok(())
}

/// Takes this from each key, as if fields were numbered from 0.
fn shift(path: &Path, less: u64) -> Result<()> {
    let bytes = std::fs::read(path)?;
    let keys = bytes.as_chunks::<8>().0.iter();
    let keys: Vec<u64> = keys.map(|x| u64::from_le_bytes(*x) - less).collect();
    write_keys(path, keys.iter())
}

/// A fault in a folder of passes, and what is said of it.
type Fault = (fn(&Path) -> Result<()>, &'static [&'static str]);

#[test]
fn folders_that_are_no_passes_are_refused_by_name() -> Result<()> {
    let place = place()?;
    let faults: [Fault; 12] = [
        (
            |folder| Ok(std::fs::remove_dir_all(folder)?),
            &["--passes", "No such"],
        ),
        (
            |folder| {
                std::fs::remove_file(folder.join("p.0.keyset"))?;
                Ok(std::fs::remove_file(folder.join("p.1.keyset"))?)
            },
            &["holds no keyset", "hps-keyset split"],
        ),
        (
            |folder| Ok(std::fs::remove_file(folder.join("p.1.tsv"))?),
            &["p.1.keyset has no data", "p.1.tsv", "--data"],
        ),
        (
            |folder| write(&folder.join("q.0.keyset"), &[0; 8]),
            &["several data sets (p and q)"],
        ),
        (
            |folder| write(&folder.join("p.1.keyset"), &[]),
            &["p.1.keyset: is empty"],
        ),
        (
            |folder| write(&folder.join("p.1.keyset"), &[1; 20]),
            &["p.1.keyset: 20 bytes", "offset 16", "--dtype i64"],
        ),
        (
            |folder| shift(&folder.join("p.1.keyset"), 1 << 32),
            &["p.1.keyset: has no key", "(field ", "p.1.tsv", "from 0?"],
        ),
        (
            |folder| {
                let keyset = folder.join("p.0.keyset");
                Ok(std::fs::rename(keyset, folder.join("p.1.keyset"))?)
            },
            &["p.0.keyset is missing"],
        ),
        (
            |folder| Ok(std::fs::remove_file(folder.join("p.txt"))?),
            &["p.txt: No such", "--data"],
        ),
        (
            |folder| write(&folder.join("p.txt"), b"3\np.0.tsv\np.1.tsv\n"),
            &["p.txt: the first line is \"3\", and 2 names follow"],
        ),
        (
            |folder| write(&folder.join("p.txt"), b"1\np.0.tsv\n"),
            &["p.txt: lists 1 files, and there are 2 keysets"],
        ),
        (
            |folder| write(&folder.join("p.txt"), b"2\np.1.tsv\np.0.tsv\n"),
            &["p.txt:2: \"p.1.tsv\" instead of \"p.0.tsv\""],
        ),
    ];
    for (i, (spoil, wanted)) in faults.into_iter().enumerate() {
        let folder = place.path(&format!("passes-{i}"));
        split(&folder, &text(200)?, &[120, 80])?;
        spoil(&folder)?;
        let folder = folder.to_str().context("a path in UTF-8")?;
        let store = place.path("none");
        let store = store.to_str().context("a path in UTF-8")?;
        let output = run(&["--passes", folder, "--dir", store], &[])?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(16), "{wanted:?}: {said}");
        for wanted in wanted {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        assert!(!Path::new(store).exists(), "nothing was made");
    }
    Ok(())
}

#[test]
fn flags_of_passes_that_do_not_do_are_refused() -> Result<()> {
    let place = place()?;
    let folder = place.path("passes");
    split(&folder, &text(ROWS)?, &CUTS)?;
    let folder = folder.to_str().context("a path in UTF-8")?;
    let data: &[&Path] = &[&place.data];
    let cases: [(&[&str], &[&Path], &str); 4] = [
        (&["--passes", folder], data, "cannot be used with"),
        (&["--blocks", "2"], data, "--blocks is for --policy cached"),
        (
            &["--policy", "cached", "--target-hit-rate", "1.5"],
            data,
            "target_hit_rate",
        ),
        (&["--policy", "fifo"], data, "bilevel"),
    ];
    for (flags, data, wanted) in cases {
        let output = run(flags, data)?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(16), "{flags:?}: {said}");
        assert!(said.contains(wanted), "{flags:?}: {said}");
    }
    // Too small for one pass; for two; for blocks beside them.
    let wide = ["--passes", folder, "--dim", "128", "--shards", "2"];
    let cases: [(&[&str], &str); 3] = [
        (&["--cache-mib", "2"], "hps-keyset split"),
        (&["--cache-mib", "5"], "hps-keyset split"),
        (
            &["--cache-mib", "7", "--policy", "cached", "--blocks", "3"],
            "fewer --blocks",
        ),
    ];
    for (flags, or) in cases {
        let output = run(&[&wide[..], flags].concat(), &[])?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(16), "{flags:?}: {said}");
        for wanted in ["bring in the pass", ".keyset", "give --cache-mib", or] {
            assert!(said.contains(wanted), "{flags:?}: {wanted}: {said}");
        }
    }
    Ok(())
}
