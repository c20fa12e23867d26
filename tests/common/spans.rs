//! A subscriber that keeps the spans and events of the library, and where they stand in each other.
#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A span or an event.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The name of a span, the message of an event.
    pub name: String,
    pub level: Level,
    /// Index of the span in which it stands.
    pub parent: Option<usize>,
    /// What it may record.
    pub fields: Vec<&'static str>,
    /// What it has recorded.
    pub values: BTreeMap<&'static str, String>,
    pub is_event: bool,
}

#[derive(Debug, Default)]
struct State {
    seen: Vec<Seen>,
    entered: HashMap<ThreadId, Vec<usize>>,
}

/// The subscriber; its clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Spans(Arc<Mutex<State>>);

impl Spans {
    /// All of them, in the order in which they began.
    pub fn seen(&self) -> Vec<Seen> {
        self.0.lock().unwrap().seen.clone()
    }

    /// How many are like this, without a copy of all: for who asks again and again beside those that
    /// begin.
    pub fn count(&self, is: impl Fn(&Seen) -> bool) -> usize {
        let state = self.0.lock().unwrap();
        state.seen.iter().filter(|seen| is(seen)).count()
    }
}

/// The names from the outermost span to this one.
pub fn path(seen: &[Seen], of: &Seen) -> String {
    match of.parent {
        Some(parent) => format!("{} > {}", path(seen, &seen[parent]), of.name),
        None => of.name.clone(),
    }
}

struct Values<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Values<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

fn index(id: &Id) -> usize {
    usize::try_from(id.into_u64()).unwrap() - 1
}

impl State {
    fn inside(&self) -> Option<usize> {
        let entered = self.entered.get(&std::thread::current().id())?;
        entered.last().copied()
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("hps::")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut state = self.0.lock().unwrap();
        let parent = match span.parent() {
            Some(parent) => Some(index(parent)),
            None if span.is_root() => None,
            None => state.inside(),
        };
        let mut values = BTreeMap::new();
        span.record(&mut Values(&mut values));
        let fields = span.metadata().fields().iter();
        state.seen.push(Seen {
            name: span.metadata().name().to_owned(),
            level: *span.metadata().level(),
            parent,
            fields: fields.map(|f| f.name()).collect(),
            values,
            is_event: false,
        });
        Id::from_u64(state.seen.len() as u64)
    }

    fn record(&self, span: &Id, record: &Record<'_>) {
        let mut state = self.0.lock().unwrap();
        record.record(&mut Values(&mut state.seen[index(span)].values));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut state = self.0.lock().unwrap();
        let mut values = BTreeMap::new();
        event.record(&mut Values(&mut values));
        let parent = state.inside();
        state.seen.push(Seen {
            name: values.remove("message").unwrap_or_default(),
            level: *event.metadata().level(),
            parent,
            fields: Vec::new(),
            values,
            is_event: true,
        });
    }

    fn enter(&self, span: &Id) {
        let mut state = self.0.lock().unwrap();
        let thread = std::thread::current().id();
        state.entered.entry(thread).or_default().push(index(span));
    }

    fn exit(&self, span: &Id) {
        let mut state = self.0.lock().unwrap();
        let thread = std::thread::current().id();
        let left = state.entered.entry(thread).or_default().pop();
        assert_eq!(left, Some(index(span)), "spans end inside out");
    }
}
