//! Line charts as inline SVG: `plotters` draws axes, grid and lines; points, labels and hover texts are added on top.

use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use crate::{Axis, ModeStyle};

/// Width and height in drawing units: twice the usual display size, because `plotters` places points on whole units.
const SIZE: (u32, u32) = (1280, 760);
/// Height of title and caption in a file.
const FILE_HEADER: u32 = 110;
const STYLE: &str = concat!(include_str!("frontier.css"), include_str!("line.css"));
const FONT: u32 = 30;
/// Width reserved on the right for the names of the lines: before a name, and for each of its letters.
const LABEL_WIDTH: (usize, usize) = (48, 17);
const LABEL_HEIGHT: f64 = 34.0;

// `plotters` writes colours into attributes. These placeholders are replaced by classes, which the style sheet colours.
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(1, 1, 2);
const AXIS: RGBColor = RGBColor(1, 1, 3);

/// A line chart.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// ID of the element.
    pub id: String,
    /// Title.
    pub title: String,
    /// One sentence on how to read it.
    pub caption: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// One line for each mode.
    pub series: Vec<Series>,
    /// Layout of the series.
    pub layout: Layout,
}

/// Layout of the series of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Lines from left to right, named at their right end.
    Lines,
    /// Points named beside themselves, with the diagonal of equal values. Both axes have the same range.
    Agreement,
}

/// One mode's line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Style of the mode.
    pub style: ModeStyle,
    /// Points, from left to right.
    pub points: Vec<Point>,
}

/// One measured value.
#[derive(Clone, Debug)]
pub struct Point {
    /// Value on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Hover text.
    pub hover: String,
    /// Whether it has a visible marker.
    pub marked: bool,
}

/// A series with the points that are on both axes, and their positions in drawing units.
type Placed<'a> = (&'a Series, Vec<(&'a Point, (f64, f64))>);

impl LineChart {
    /// Renders the chart as a figure. A chart without points has a text instead.
    #[must_use]
    pub fn render(&self) -> Markup {
        let (drawn, placed) = self.draw();
        html! {
            figure.chart id=(self.id) {
                figcaption { h3 { (self.title) } p { (self.caption) } }
                @if placed.is_empty() {
                    p.nothing { "Nothing was measured for this chart." }
                } @else {
                    div.scroll {
                        svg viewBox={ "0 0 " (SIZE.0) " " (SIZE.1) } role="img" aria-labelledby={ (self.id) "-t " (self.id) "-d" } {
                            title id={ (self.id) "-t" } { (self.title) }
                            desc id={ (self.id) "-d" } { (self.describe(&placed)) }
                            (PreEscaped(drawn))
                            (points(&placed, self.layout))
                            (labels(&placed, self.layout))
                        }
                    }
                }
            }
        }
    }

    /// Renders the chart as an SVG file, with its title and caption above the plot.
    #[must_use]
    pub fn render_file(&self) -> String {
        let (drawn, placed) = self.draw();
        let styles = || self.series.iter().map(|series| &series.style);
        let light: String = styles().map(ModeStyle::light_css).collect();
        let dark: String = styles().map(ModeStyle::dark_css).collect();
        let content = html! {
            title { (self.title) }
            desc { (self.describe(&placed)) }
            style { (PreEscaped(STYLE)) (PreEscaped(light)) (PreEscaped(format!("@media(prefers-color-scheme:dark){{{dark}}}"))) }
            rect.page width="100%" height="100%" {}
            text.title x="32" y="48" { (self.title) }
            text.caption x="32" y="90" { (self.caption) }
            g transform={ "translate(0 " (FILE_HEADER) ")" } {
                (PreEscaped(drawn))
                (points(&placed, self.layout))
                (labels(&placed, self.layout))
            }
        };
        let (width, height) = (SIZE.0, SIZE.1 + FILE_HEADER);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">{}</svg>\n",
            content.into_string()
        )
    }

    /// Draws axes, grid and lines with `plotters`. Returns the SVG and the positions of the points.
    fn draw(&self) -> (String, Vec<Placed<'_>>) {
        let mut svg = String::new();
        let placed = {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let placed = self.draw_on(&root).expect("drawing into a string cannot fail");
            root.present().expect("drawing into a string cannot fail");
            placed
        };
        let inner = svg.split_once('>').and_then(|(_, rest)| rest.rsplit_once("</svg>")).map_or("", |(inner, _)| inner);
        (self.with_classes(inner), placed)
    }

    fn draw_on<DB: DrawingBackend>(
        &self,
        root: &DrawingArea<DB, plotters::coord::Shift>,
    ) -> Result<Vec<Placed<'_>>, DrawingAreaErrorKind<DB::ErrorType>> {
        let longest = self.series.iter().map(|series| series.style.name.len()).max().unwrap_or(0);
        let mut chart = ChartBuilder::on(root)
            .margin_top(22)
            .margin_right((LABEL_WIDTH.0 + LABEL_WIDTH.1 * longest) as u32)
            .x_label_area_size(96)
            .y_label_area_size(136)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let text = ("sans-serif", FONT).into_font().color(&INK);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID.stroke_width(2))
            .axis_style(AXIS.stroke_width(2))
            .set_all_tick_mark_size(10)
            .label_style(text.clone())
            .axis_desc_style(text)
            .x_desc(self.x.label.clone())
            .y_desc(self.y.label.clone())
            .draw()?;
        if self.layout == Layout::Agreement {
            let (low, high) = self.x.range;
            chart.draw_series(LineSeries::new([(low, low), (high, high)], AXIS.stroke_width(3)))?;
        }
        let mut all = Vec::new();
        for (at, series) in self.series.iter().enumerate() {
            let positions: Vec<(&Point, (f64, f64))> = series
                .points
                .iter()
                .filter_map(|point| Some((point, (self.x.position(point.x)?, self.y.position(point.y)?))))
                .collect();
            if positions.is_empty() {
                continue;
            }
            chart.draw_series(LineSeries::new(
                positions.iter().map(|(_, position)| *position),
                series_colour(at).stroke_width(5),
            ))?;
            let pixels = positions.iter().map(|(point, position)| {
                let (x, y) = chart.backend_coord(position);
                (*point, (f64::from(x), f64::from(y)))
            });
            all.push((series, pixels.collect()));
        }
        Ok(all)
    }

    /// Replaces the placeholder colours by classes.
    fn with_classes(&self, svg: &str) -> String {
        let mut out = svg.replace(r##"fill="#010101""##, r#"class="ink""#);
        out =
            out.replace(r##"stroke="#010102""##, r#"class="grid""#).replace(r##"stroke="#010103""##, r#"class="axis""#);
        for (at, series) in self.series.iter().enumerate() {
            let RGBColor(red, green, blue) = series_colour(at);
            let colour = format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"");
            out = out.replace(&colour, &format!("class=\"series line {}\"", series.style.class));
        }
        out
    }

    /// Describes the chart in words: both ends of each line.
    fn describe(&self, placed: &[Placed<'_>]) -> String {
        let mut text = format!("{} Horizontal: {}. Vertical: {}.", self.caption, self.x.label, self.y.label);
        for (_, points) in placed {
            let (first, last) = (&points[0].0.hover, &points[points.len() - 1].0.hover);
            text += &if first == last { format!(" {first}.") } else { format!(" {first}; {last}.") };
        }
        text
    }
}

fn series_colour(at: usize) -> RGBColor {
    RGBColor(2, u8::try_from(at / 256).unwrap_or(u8::MAX), (at % 256) as u8)
}

/// Renders markers, each with a larger invisible disc that shows the hover text.
fn points(placed: &[Placed<'_>], layout: Layout) -> Markup {
    // Charts of agreement are displayed smaller.
    let size = if layout == Layout::Lines { 10.0 } else { 15.0 };
    html! {
        @for (series, points) in placed {
            g class={ "series points " (series.style.class) } {
                @for (point, at) in points {
                    g.point {
                        title { (point.hover) }
                        @if point.marked { path.mark d=(series.style.marker.path(*at, size)) {} }
                        circle.hit cx=(at.0) cy=(at.1) r=(if point.marked { 20 } else { 11 }) {}
                    }
                }
            }
        }
    }
}

/// Renders the name of each line at its right end, moved apart where names would overlap.
fn labels(placed: &[Placed<'_>], layout: Layout) -> Markup {
    let ends: Vec<(f64, f64)> = placed.iter().map(|(_, points)| points[points.len() - 1].1).collect();
    let right = ends.iter().map(|end| end.0).fold(0.0, f64::max);
    let columns: Vec<f64> = ends.iter().map(|end| if layout == Layout::Lines { right } else { end.0 }).collect();
    let heights = spread_apart(&ends.iter().map(|end| end.1).collect::<Vec<f64>>());
    html! {
        g.labels {
            @for (((series, _), (end, column)), y) in placed.iter().zip(ends.iter().zip(&columns)).zip(heights) {
                g class={ "series " (series.style.class) } {
                    path.leader d={ "M" (end.0 + 13.0) " " (end.1) "L" (column + 24.0) " " (format!("{y:.1}")) } {}
                    text.name x=(column + 30.0) y=(format!("{:.1}", y + 10.0)) { (series.style.name) }
                }
            }
        }
    }
}

/// Returns heights at least one label apart, in the given order, each as near to its target as the others allow.
fn spread_apart(targets: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by(|a, b| targets[*a].total_cmp(&targets[*b]));
    // Labels that touch form a block, centred on the mean of its targets. A block that grows may touch the one above it.
    let mut blocks: Vec<(f64, Vec<usize>)> = Vec::new();
    for at in order {
        let mut block = (targets[at], vec![at]);
        while let Some(above) = blocks.pop() {
            let gap = (above.1.len() + block.1.len()) as f64 / 2.0 * LABEL_HEIGHT;
            if block.0 - above.0 >= gap {
                blocks.push(above);
                break;
            }
            let members: Vec<usize> = above.1.into_iter().chain(block.1).collect();
            let mean = members.iter().map(|at| targets[*at]).sum::<f64>() / members.len() as f64;
            block = (mean, members);
        }
        blocks.push(block);
    }
    let mut heights: Vec<(usize, f64)> = Vec::new();
    for (centre, members) in blocks {
        let first = centre - (members.len() - 1) as f64 * LABEL_HEIGHT / 2.0;
        heights.extend(members.into_iter().enumerate().map(|(nth, at)| (at, first + nth as f64 * LABEL_HEIGHT)));
    }
    within_bounds(heights)
}

/// Moves labels beyond the top or the bottom back into the chart, together with the labels they would overlap.
fn within_bounds(mut heights: Vec<(usize, f64)>) -> Vec<f64> {
    let mut least = 20.0;
    for (_, height) in &mut heights {
        *height = height.max(least);
        least = *height + LABEL_HEIGHT;
    }
    let mut most = f64::from(SIZE.1) - 110.0;
    for (_, height) in heights.iter_mut().rev() {
        *height = height.min(most);
        most = *height - LABEL_HEIGHT;
    }
    heights.sort_unstable_by_key(|(at, _)| *at);
    heights.into_iter().map(|(_, height)| height).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn labels_never_overlap_and_keep_their_order(targets in prop::collection::vec(30.0..600.0f64, 1..12)) {
    let heights = spread_apart(&targets);
            for (a, first) in heights.iter().enumerate() {
                for (b, second) in heights.iter().enumerate().filter(|(b, _)| *b != a) {
                    prop_assert!((first - second).abs() > LABEL_HEIGHT * 0.99);
                    if targets[a] < targets[b] { prop_assert!(first < second); }
                }
            }
        }
    }

    #[test]
    fn labels_that_do_not_overlap_stay_at_their_targets() {
        assert_eq!(spread_apart(&[100.0, 300.0, 200.0]), [100.0, 300.0, 200.0]);
    }
}
