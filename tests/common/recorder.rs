//! A recorder of metrics that keeps what it is given.
#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// What became of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Counter(u64),
    Gauge(f64),
    /// How many values it was given.
    Histogram(u64),
}

/// Kind, unit and text of a metric, as it was described.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    pub kind: &'static str,
    pub unit: Option<Unit>,
    pub text: String,
}

/// The labels of a series.
pub type Labels = BTreeMap<String, String>;

type Series = BTreeMap<(String, Labels), Value>;

/// The recorder; its clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct TestRecorder {
    series: Arc<Mutex<Series>>,
    described: Arc<Mutex<BTreeMap<String, Description>>>,
}

struct Handle {
    series: Arc<Mutex<Series>>,
    key: (String, Labels),
}

impl TestRecorder {
    /// The metrics whose label `store` is this, by name.
    pub fn of(&self, store: &str) -> BTreeMap<String, (Labels, Value)> {
        let all = self.series.lock().unwrap();
        let own = all
            .iter()
            .filter(|((_, labels), _)| labels["store"] == store);
        own.map(|((name, labels), value)| (name.clone(), (labels.clone(), *value)))
            .collect()
    }

    /// The value of a series.
    pub fn value(&self, name: &str, store: &str, mode: &str) -> Option<Value> {
        let all = self.series.lock().unwrap();
        let found = all.iter().find(|((found, labels), _)| {
            found == name && labels["store"] == store && labels["mode"] == mode
        });
        found.map(|(_, value)| *value)
    }

    /// The value of the series with these labels among its own.
    pub fn labelled(&self, name: &str, labels: &[(&str, &str)]) -> Option<Value> {
        let all = self.series.lock().unwrap();
        let found = all.iter().find(|((found, own), _)| {
            found == name && labels.iter().all(|(label, value)| own[*label] == **value)
        });
        found.map(|(_, value)| *value)
    }

    /// What was described.
    pub fn described(&self) -> BTreeMap<String, Description> {
        self.described.lock().unwrap().clone()
    }

    fn describe(&self, kind: &'static str, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let text = text.into_owned();
        let description = Description { kind, unit, text };
        let name = name.as_str().to_owned();
        self.described.lock().unwrap().insert(name, description);
    }

    fn handle(&self, key: &Key) -> Arc<Handle> {
        let labels = key.labels();
        let labels = labels.map(|l| (l.key().to_owned(), l.value().to_owned()));
        Arc::new(Handle {
            series: Arc::clone(&self.series),
            key: (key.name().to_owned(), labels.collect()),
        })
    }
}

impl Handle {
    fn change(&self, change: impl Fn(Option<Value>) -> Value) {
        let mut series = self.series.lock().unwrap();
        let value = change(series.get(&self.key).copied());
        series.insert(self.key.clone(), value);
    }
}

impl CounterFn for Handle {
    fn increment(&self, by: u64) {
        self.change(|before| match before {
            None => Value::Counter(by),
            Some(Value::Counter(count)) => Value::Counter(count + by),
            Some(_) => unreachable!("a series has one kind"),
        });
    }

    fn absolute(&self, to: u64) {
        self.change(|before| match before {
            None => Value::Counter(to),
            Some(Value::Counter(count)) => Value::Counter(count.max(to)),
            Some(_) => unreachable!("a series has one kind"),
        });
    }
}

impl GaugeFn for Handle {
    fn increment(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn set(&self, to: f64) {
        self.change(|_| Value::Gauge(to));
    }
}

impl HistogramFn for Handle {
    fn record(&self, value: f64) {
        assert!(value > 0.0 && value < 1e6, "seconds: {value}");
        self.change(|before| match before {
            None => Value::Histogram(1),
            Some(Value::Histogram(count)) => Value::Histogram(count + 1),
            Some(_) => unreachable!("a series has one kind"),
        });
    }
}

impl Recorder for TestRecorder {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("counter", key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("gauge", key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("histogram", key, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.handle(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.handle(key))
    }
}
