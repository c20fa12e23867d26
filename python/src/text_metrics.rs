//! What does the store publish, as text that Prometheus reads?

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// Begins to take what stores publish; they do so to whatever recorder is there when they count.
pub fn begin() {
    HANDLE.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        // Another recorder in this module there is none.
        drop(metrics::set_global_recorder(recorder));
        handle
    });
}

/// All that was published.
pub fn text() -> String {
    HANDLE
        .get()
        .map(PrometheusHandle::render)
        .unwrap_or_default()
}
