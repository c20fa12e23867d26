//! How did hit rate, SSD traffic and stall go, batch by batch? A drawing of three panels.
//!
//! - The panels are those of AIBox's figures 4(c), 5(a) and 7: hit rate, SSD work, stall.
//! - Each panel has its own axis from 0, a label with the unit, and the batch number below all.
//! - More batches than pixels are drawn as the mean of those that share a column.

use std::fmt::Write;

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Share of distinct keys that were resident, in the lookups since the batch before.
    pub hit_rate: f64,
    /// MiB read and written by the store since the batch before.
    pub ssd_mib: f64,
    /// Milliseconds that the trainer waited for its rows.
    pub stall_ms: f64,
}

/// The width of all drawings.
pub(crate) const WIDTH: f64 = 900.0;
const PANEL: f64 = 170.0;
const GAP: f64 = 45.0;
/// Where the panels of all drawings begin.
pub(crate) const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
/// Points of a line at most.
const COLUMNS: usize = 400;

/// A panel: title with unit, colour, its readings, and a fixed top where it has one.
struct Panel<'a> {
    title: &'a str,
    colour: &'a str,
    readings: Vec<f64>,
    top: Option<f64>,
}

/// The drawing as SVG text.
#[must_use]
pub fn svg(title: &str, samples: &[Sample]) -> String {
    let of = |f: fn(&Sample) -> f64| samples.iter().map(f).collect::<Vec<f64>>();
    let panels = [
        Panel {
            title: "hit rate of the batch's distinct keys",
            colour: "#1b6ca8",
            readings: of(|s| s.hit_rate),
            top: Some(1.0),
        },
        Panel {
            title: "SSD bytes read and written per batch (MiB)",
            colour: "#b3541e",
            readings: of(|s| s.ssd_mib),
            top: None,
        },
        Panel {
            title: "stall per batch: wait for rows (ms)",
            colour: "#7a1f5c",
            readings: of(|s| s.stall_ms),
            top: None,
        },
    ];
    let height = TOP + 3.0 * (PANEL + GAP) + 20.0;
    let mut out = head(height);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>",
        escaped(title)
    );
    for (i, panel) in panels.iter().enumerate() {
        draw(&mut out, panel, TOP + i as f64 * (PANEL + GAP));
    }
    let (middle, bottom) = (LEFT + (WIDTH - LEFT - RIGHT) / 2.0, height - 12.0);
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">batch</text>\n</svg>"
    );
    out
}

/// The head of a drawing of this height, on white.
pub(crate) fn head(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    )
}

/// Five lines across a panel from `LEFT` to `right`, each with the label of its share of the axis.
pub(crate) fn grid(
    out: &mut String,
    right: f64,
    (y, height): (f64, f64),
    label: impl Fn(f64) -> String,
) {
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let line = y + height * (1.0 - share);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"#ccc\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            line + 4.0,
            label(share)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The smallest of 1, 2, 5 times a power of ten that is not below.
fn round_up(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(x.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let found = steps.iter().map(|step| step * power).find(|top| *top >= x);
    found.unwrap_or(10.0 * power)
}

fn draw(out: &mut String, panel: &Panel, y: f64) {
    let most = panel.readings.iter().copied().fold(0.0, f64::max);
    let top = panel.top.unwrap_or_else(|| round_up(most));
    let right = WIDTH - RIGHT;
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\">{}</text>",
        y - 6.0,
        panel.title
    );
    grid(out, right, (y, PANEL), |share| {
        let label = format!("{:.3}", top * share);
        let label = label.trim_end_matches('0').trim_end_matches('.');
        label.to_owned()
    });
    let count = panel.readings.len();
    let span = right - LEFT;
    for quarter in 0..=4usize {
        let x = LEFT + span * quarter as f64 / 4.0;
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y + PANEL + 16.0,
            count * quarter / 4
        );
    }
    let columns = panel.readings.chunks(count.div_ceil(COLUMNS).max(1));
    let number = columns.len().max(2) - 1;
    let mut points = String::new();
    for (i, column) in columns.enumerate() {
        let mean = column.iter().sum::<f64>() / column.len() as f64;
        let x = LEFT + span * i as f64 / number as f64;
        let at = y + PANEL * (1.0 - (mean / top).clamp(0.0, 1.0));
        let _ = write!(points, "{x:.1},{at:.1} ");
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\"/>",
        points.trim_end(),
        panel.colour
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_three_labelled_panels_whose_lines_follow_the_readings() {
        let sample = |i: usize| Sample {
            hit_rate: if i < 500 { 0.0 } else { 1.0 },
            ssd_mib: 3.0,
            stall_ms: i as f64,
        };
        let samples: Vec<Sample> = (0..1000).map(sample).collect();
        let text = svg("train <zipf> & more", &samples);
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("train &lt;zipf&gt; &amp; more"));
        let lines: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with("<polyline"))
            .collect();
        assert_eq!(lines.len(), 3);
        let points = |line: &str| -> Vec<(f64, f64)> {
            let list = line.split('"').nth(1).unwrap();
            let pair = |p: &str| {
                let (x, y) = p.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            };
            list.split(' ').map(pair).collect()
        };
        let hits = points(lines[0]);
        assert!(hits.len() <= COLUMNS);
        assert_eq!(hits[0], (LEFT, TOP + PANEL), "no hits at first");
        assert_eq!(
            hits.last().unwrap(),
            &(WIDTH - RIGHT, TOP),
            "all hits at last"
        );
        let stall = points(lines[2]);
        assert!(stall.windows(2).all(|w| w[0].1 > w[1].1), "the stall rises");
        for label in ["hit rate", "SSD bytes", "stall per batch", ">batch<"] {
            assert!(text.contains(label), "{label}");
        }
    }

    #[test]
    fn axes_end_at_round_numbers() {
        let tops: Vec<f64> = [0.0, 0.7, 1.0, 3.0, 42.0, 999.0].map(round_up).to_vec();
        assert_eq!(tops, [1.0, 1.0, 1.0, 5.0, 50.0, 1000.0]);
    }

    #[test]
    fn a_plot_without_batches_is_still_a_drawing() {
        assert!(svg("nothing", &[]).contains("</svg>"));
    }
}
