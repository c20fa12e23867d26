//! Does a program with `metrics-exporter-prometheus` serve a store's numbers as Prometheus reads them?

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::BTreeMap;

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update, Wait};
use metrics_exporter_prometheus::PrometheusBuilder;

const DIM: usize = 64;

/// Samples of the text by name and labels, and the kind of each name.
fn read(text: &str) -> (BTreeMap<&str, f64>, BTreeMap<&str, &str>) {
    let (mut samples, mut kinds) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            kinds.insert(name, kind);
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            samples.insert(series, value.parse().unwrap());
        }
    }
    (samples, kinds)
}

#[test]
fn a_store_is_served_as_prometheus_reads_it() {
    let builder = PrometheusBuilder::new().set_buckets(&[0.001, 1.0]);
    let handle = builder.unwrap().install_recorder().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = RuntimeOptions::new().cache_bytes(1 << 20).threads(2);
    let root = dir.path().join("a \"quoted\" store");
    let store = Store::create(&root, CreateOptions::new(), options).unwrap();
    let table = store
        .create_table(&TableDescriptor::new("clicks", DIM))
        .unwrap();
    let mut out = vec![0.0; 500 * DIM];
    for _ in 0..2 {
        for batch in (0..10_000).collect::<Vec<u64>>().chunks(500) {
            let lease = store.pull(table, batch, &mut out).unwrap();
            store.push(&lease, Update::weights(&out)).unwrap();
        }
    }
    store.checkpoint(1, b"").unwrap();
    store.publish_metrics();
    let stats = store.stats();
    store.close().unwrap();

    let text = handle.render();
    let (samples, kinds) = read(&text);
    let own = format!("store=\"{}\",mode=\"writer\"", root.display())
        .replace("\"quoted\"", "\\\"quoted\\\"");
    let sample = |name: &str, labels: &str| samples.get(&*format!("{name}{{{labels}}}")).copied();
    assert_eq!(kinds["hps_rows_pushed_total"], "counter");
    assert_eq!(
        sample("hps_rows_pushed_total", &own),
        Some(20_000.0),
        "{text}"
    );
    assert_eq!(kinds["hps_resident_rows"], "gauge");
    assert_eq!(sample("hps_checkpoints_total", &own), Some(1.0));
    let device = stats.tables[0].wait(Wait::Device);
    let labels = format!("{own},table=\"clicks\",cause=\"device\"");
    assert!(device.count > 0);
    assert_eq!(kinds["hps_wait_seconds"], "histogram");
    assert_eq!(
        sample("hps_waits_total", &labels),
        Some(device.count as f64)
    );
    assert_eq!(
        sample("hps_wait_seconds_count", &labels),
        Some(device.count as f64)
    );
    // Lengths are rounded to the middle of a power of two: half as long at least, at most twice.
    let summed = sample("hps_wait_seconds_sum", &labels).unwrap();
    let exact = sample("hps_waited_seconds_total", &labels).unwrap();
    assert!(
        exact > 0.0 && (0.5..2.0).contains(&(summed / exact)),
        "{summed} {exact}"
    );
}
