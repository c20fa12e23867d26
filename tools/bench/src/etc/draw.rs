//! Bandwidths and hit rates of all passes, as in figures 5 and 6 of HugeCTR's guide.

use std::fmt::Write;

use super::policies::{Phase, Way};
use crate::plot::{LEFT, WIDTH, grid, head};

const PANEL: f64 = 220.0;
const RIGHT: f64 = 150.0;
const COLOURS: [&str; 4] = ["#1b6ca8", "#b3541e", "#2e7d32", "#7a1f5c"];

/// The drawing as SVG text. `of`: 0 what is read, 1 what is written.
pub fn svg(name: &str, of: usize, found: &[(Way, u64, Vec<Phase>)]) -> String {
    let rate = |phase: &Phase| match of {
        0 => phase.reads_per_s() / 1e6,
        _ => phase.writes_per_s() / 1e6,
    };
    let height = 2.0 * (PANEL + 50.0) + 40.0;
    let mut out = head(height);
    let most = found
        .iter()
        .flat_map(|(_, _, phases)| phases.iter().map(rate))
        .fold(0.0, f64::max);
    let title = format!("{name}: million rows a second, by pass");
    panel(&mut out, 40.0, &title, most.max(1e-9), found, &rate);
    let title = "share of the known keys in memory, by pass";
    panel(
        &mut out,
        40.0 + PANEL + 50.0,
        title,
        1.0,
        found,
        &Phase::hit_rate,
    );
    out.push_str("</svg>\n");
    out
}

fn panel(
    out: &mut String,
    y: f64,
    title: &str,
    top: f64,
    found: &[(Way, u64, Vec<Phase>)],
    of: &dyn Fn(&Phase) -> f64,
) {
    let right = WIDTH - RIGHT;
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{title}</text>", y - 8.0);
    grid(out, right, (y, PANEL), |share| {
        format!("{:.2}", top * share)
    });
    for (number, (way, _, phases)) in found.iter().enumerate() {
        let steps = phases.len().max(2) - 1;
        let mut points = String::new();
        for (pass, phase) in phases.iter().enumerate() {
            let x = LEFT + (right - LEFT) * pass as f64 / steps as f64;
            let at = y + PANEL * (1.0 - (of(phase) / top).clamp(0.0, 1.0));
            let _ = write!(points, "{x:.1},{at:.1} ");
            if number == 0 {
                let _ = writeln!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{pass}</text>",
                    y + PANEL + 16.0
                );
            }
        }
        let colour = COLOURS[number % COLOURS.len()];
        let legend = y + 14.0 + 18.0 * number as f64;
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>\
             <text x=\"{}\" y=\"{legend}\" fill=\"{colour}\">{}</text>",
            points.trim_end(),
            right + 12.0,
            way.name()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_has_a_line_for_each_way_in_both_panels() {
        let phase = |hits| Phase {
            keys: 10,
            known: 10,
            hits,
            read_s: 1.0,
            written: 10,
            write_s: 2.0,
            ..Phase::default()
        };
        let found: Vec<_> = Way::ALL
            .map(|way| (way, 0, vec![phase(0), phase(5), phase(10)]))
            .into();
        for of in [0, 1] {
            let text = svg("read", of, &found);
            assert_eq!(text.matches("<polyline").count(), 8);
            assert!(text.contains("SSD only") && text.trim_end().ends_with("</svg>"));
        }
    }
}
