//! Are the counts of an arena what a recount says?

use super::span::NO_CLASS;
use super::{Arena, Class};

impl Arena {
    /// Recounts everything.
    ///
    /// # Panics
    /// Where something differs.
    pub fn check(&self) {
        let (mut cost, mut closing, mut rows) = (0, 0, 0);
        for class in self.classes() {
            closing += self.check_class(class);
            let spans = self.spans.iter().filter(|span| span.class == class.0);
            let spans = spans.count();
            cost += spans as u64 * self.cost(class);
            rows += spans * self.rows_per_span(class);
        }
        assert_eq!(rows, self.spans_rows, "rows that the spans have room for");
        assert_eq!(cost, self.spans_bytes, "what the spans cost");
        assert_eq!(closing, self.closing, "rows in closing spans");
        assert_eq!(self.spans.len(), self.units.count(), "a span for each unit");
        let spans = self.spans.iter().enumerate();
        let spans = spans.filter(|(_, span)| span.class != NO_CLASS);
        self.units.check(spans.map(|(unit, span)| {
            let order = self.classes[usize::from(span.class)].order;
            unit..unit + (1 << order)
        }));
        let windows = self.reserved.iter();
        self.units.check_reserved(windows.map(|(class, first)| {
            let order = self.rows(*class).order;
            *first..*first + (1 << order)
        }));
    }

    /// Recounts a class: its rows in closing spans.
    fn check_class(&self, class: Class) -> usize {
        let rows = self.rows(class);
        let (mut free, mut closing, mut open) = (0, 0, Vec::new());
        for (unit, span) in self.spans.iter().enumerate() {
            if span.class != class.0 {
                continue;
            }
            let room = 64 * span.bits.len() - rows.of_span as usize;
            let bits: u32 = span.bits.iter().map(|word| word.count_ones()).sum();
            assert_eq!(
                bits as usize - room,
                span.used as usize,
                "used rows of a span"
            );
            assert_eq!(span.rows, rows.of_span, "rows of a span");
            assert!(span.used > 0, "a span that no row is in");
            if span.closing {
                closing += span.used as usize;
            } else {
                free += (span.rows - span.used) as usize;
                if !span.is_full() {
                    open.push(unit);
                }
            }
        }
        let mut chain: Vec<usize> = self.chain(class).map(|unit| unit as usize).collect();
        chain.sort_unstable();
        assert_eq!(chain, open, "the chain of the spans with free rows");
        assert_eq!(
            (free, closing),
            (rows.free, rows.closing),
            "rows of a class"
        );
        closing
    }
}
