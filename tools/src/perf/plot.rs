//! Plots as SVG: scales, axes, lines and bars. What is plotted is `html.rs`'s. Pure.

use std::fmt::Write;

/// Of the drawing, in its own units; a browser scales it.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
/// Room for the axes' words.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// From 0.
    Linear,
    /// By powers of this.
    Log(f64),
}

/// A named line, or the tops of bars.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// An axis: its words, its scale, and how a value on it reads.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) scale: Scale,
    pub(super) text: fn(f64) -> String,
}

/// Lines over a common axis; each point says its values under the pointer.
pub(super) fn lines(x: Axis, y: Axis, series: &[Series]) -> String {
    let Some(frame) = Frame::of(x, y, series) else { return String::new() };
    let mut svg = frame.open();
    for (i, line) in series.iter().enumerate() {
        frame.line(&mut svg, i, line);
    }
    svg + "</svg>\n"
}

/// Bars: each point of the only series is where one ends on the horizontal axis, and its height.
pub(super) fn bars(x: Axis, y: Axis, start: f64, series: Series) -> String {
    let mut all = series.clone();
    all.points.push((start, 0.0));
    let Some(frame) = Frame::of(x, y, &[all]) else { return String::new() };
    let (mut svg, mut left) = (frame.open(), start);
    for (right, height) in series.points {
        let (x0, x1, y0) = (frame.x(left), frame.x(right), frame.y(height));
        let _ = write!(
            svg,
            r#"<rect class="f0" x="{x0:.1}" y="{y0:.1}" width="{:.1}" height="{:.1}"><title>{} to {}: {}</title></rect>"#,
            (x1 - x0 - 0.5).max(0.5),
            HEIGHT - BOTTOM - y0,
            (x.text)(left),
            (x.text)(right),
            (y.text)(height),
        );
        left = right;
    }
    svg + "</svg>\n"
}

/// Where values go.
struct Frame {
    axes: [Axis; 2],
    /// Least and greatest of each axis, never equal, above 0 on a logarithmic one.
    ranges: [(f64, f64); 2],
}

impl Frame {
    fn of(x: Axis, y: Axis, series: &[Series]) -> Option<Self> {
        let all = || series.iter().flat_map(|line| line.points.iter());
        let xs = range(x.scale, all().map(|p| p.0))?;
        let ys = range(y.scale, all().map(|p| p.1))?;
        Some(Self { axes: [x, y], ranges: [xs, ys] })
    }

    /// Between 0 and 1.
    fn share(&self, axis: usize, value: f64) -> f64 {
        let (low, high) = self.ranges[axis];
        match self.axes[axis].scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log(_) => (value.max(low) / low).ln() / (high / low).ln(),
        }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.share(0, value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.share(1, value) * (HEIGHT - TOP - BOTTOM)
    }

    /// The drawing's beginning: grid, ticks and words.
    fn open(&self) -> String {
        let [x, y] = self.axes;
        let mut svg = format!(
            r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{} over {}">"#,
            y.label, x.label
        );
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for value in ticks(x.scale, self.ranges[0], 8) {
            let at = self.x(value);
            let _ = write!(
                svg,
                r#"<path class="g" d="M{at:.1} {TOP}V{bottom}"/><text class="x" x="{at:.1}" y="{}">{}</text>"#,
                bottom + 16.0,
                (x.text)(value)
            );
        }
        for value in ticks(y.scale, self.ranges[1], 6) {
            let at = self.y(value);
            let _ = write!(
                svg,
                r#"<path class="g" d="M{LEFT} {at:.1}H{right}"/><text class="y" x="{}" y="{:.1}">{}</text>"#,
                LEFT - 6.0,
                at + 4.0,
                (y.text)(value)
            );
        }
        let middle = (LEFT + right) / 2.0;
        let _ = write!(svg, r#"<text class="x" x="{middle}" y="{}">{}</text>"#, HEIGHT - 8.0, x.label);
        let _ = write!(svg, r#"<text class="u" x="4" y="{}">{}</text>"#, TOP - 3.0, y.label);
        svg
    }

    fn line(&self, svg: &mut String, i: usize, line: &Series) {
        let places: Vec<_> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", self.x(*x), self.y(*y))).collect();
        let _ = write!(svg, r#"<polyline class="l s{i}" points="{}"/>"#, places.join(" "));
        for (x, y) in &line.points {
            let _ = write!(
                svg,
                r#"<circle class="f{i}" cx="{:.1}" cy="{:.1}" r="3"><title>{} {}: {}</title></circle>"#,
                self.x(*x),
                self.y(*y),
                line.name,
                (self.axes[0].text)(*x),
                (self.axes[1].text)(*y),
            );
        }
        let (at, row) = (WIDTH - RIGHT + 12.0, TOP + 14.0 + 18.0 * i as f64);
        let _ = write!(
            svg,
            r#"<path class="l s{i}" d="M{at} {row}h18"/><text x="{}" y="{}">{}</text>"#,
            at + 24.0,
            row + 4.0,
            line.name
        );
    }
}

/// The range of `values`, widened where it is a point; `None` where there is nothing to show.
fn range(scale: Scale, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let shown = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(shown) {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        return None;
    }
    match scale {
        Scale::Linear => Some((0.0, if high > 0.0 { high * 1.05 } else { 1.0 })),
        Scale::Log(base) if low == high => Some((low / base, high * base)),
        Scale::Log(_) => Some((low, high)),
    }
}

/// Round values inside the range, at most about `most`.
fn ticks(scale: Scale, (low, high): (f64, f64), most: i32) -> Vec<f64> {
    match scale {
        Scale::Linear => {
            let rough = (high - low) / f64::from(most);
            let unit = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * unit).find(|s| *s >= rough);
            let step = step.unwrap_or(rough);
            (0..).map(|i| f64::from(i) * step).take_while(|value| *value <= high).collect()
        }
        Scale::Log(base) => {
            let (first, last) = ((low.ln() / base.ln()).ceil(), (high.ln() / base.ln()).floor());
            let every = ((last - first) as i32 / most + 1).max(1);
            let powers = (0..).map(|i| first + f64::from(i * every)).take_while(|n| *n <= last);
            let mut all: Vec<f64> = powers.map(|n| base.powf(n)).collect();
            if all.len() < 2 {
                all = vec![low, (low * high).sqrt(), high];
            }
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis(scale: Scale) -> Axis {
        Axis { label: "a", scale, text: |value| format!("{value}") }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(Scale::Linear, (0.0, 10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(Scale::Log(2.0), (2.0, 16.0), 8), [2.0, 4.0, 8.0, 16.0]);
        assert!(ticks(Scale::Log(2.0), (2.0, 8_388_608.0), 8).len() <= 9);
    }

    #[test]
    fn nothing_to_show_is_no_drawing_and_one_point_is_one() {
        let of = |points: Vec<(f64, f64)>| {
            lines(axis(Scale::Log(2.0)), axis(Scale::Linear), &[Series { name: "n", points }])
        };
        assert_eq!(of(vec![]), "");
        let one = of(vec![(2.0, 5.0)]);
        assert!(one.matches("<circle").count() == 1 && !one.contains("NaN") && !one.contains("inf"), "{one}");
    }

    proptest! {
        /// Whatever was measured, every coordinate is a number inside the drawing.
        #[test]
        fn every_place_is_inside(points in prop::collection::vec((1e-3f64..1e12, 0f64..1e12), 1..40), log: bool) {
            let scale = if log { Scale::Log(10.0) } else { Scale::Linear };
            let series = [Series { name: "n", points: points.clone() }];
            if let Some(frame) = Frame::of(axis(scale), axis(Scale::Linear), &series) {
                for (x, y) in points {
                    prop_assert!((LEFT - 0.1..=WIDTH - RIGHT + 0.1).contains(&frame.x(x)));
                    prop_assert!((TOP - 0.1..=HEIGHT - BOTTOM + 0.1).contains(&frame.y(y)));
                }
            }
            let svg = bars(axis(Scale::Linear), axis(Scale::Linear), 0.0, series[0].clone());
            prop_assert!(!svg.contains("NaN"));
        }
    }
}
