//! The frontier of a plan as an SVG file: CPU use against latency, one mark per candidate.

use abey_delivery::Mode;
use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use crate::{Axis, ModeStyle};

const SIZE: (u32, u32) = (1280, 760);
/// Width of the legend, right of the plot.
const LEGEND: u32 = 310;
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(1, 1, 2);
const AXIS: RGBColor = RGBColor(1, 1, 3);
const STYLE: &str = include_str!("frontier.css");

/// A chart of candidates, frontier and goal.
#[derive(Clone, Debug)]
pub struct FrontierChart {
    /// Title.
    pub title: String,
    /// All candidates.
    pub marks: Vec<FrontierMark>,
    /// The candidates that no other beats: CPU in percent and latency in microseconds, in ascending order of CPU.
    pub frontier: Vec<(f64, f64)>,
    /// The goal and its label.
    pub goal: (FrontierGoal, String),
    /// The recommended candidate and its label.
    pub recommended: Option<(f64, f64, String)>,
}

/// A candidate.
#[derive(Clone, Debug)]
pub struct FrontierMark {
    /// A mode of its family, which gives colour and marker.
    pub family: Mode,
    /// The family's name.
    pub name: String,
    /// CPU use in percent.
    pub cpu_percent: f64,
    /// 99th percentile of latency in microseconds.
    pub p99_us: f64,
    /// Whether it was screened only, not confirmed.
    pub tried: bool,
    /// Hover text.
    pub hover: String,
}

/// Position of the goal's line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrontierGoal {
    /// At a latency, in microseconds.
    Latency(f64),
    /// At a CPU use, in percent.
    Cpu(f64),
}

/// Maps CPU use and latency to drawing units.
type Projection = Box<dyn Fn(f64, f64) -> (f64, f64)>;

impl FrontierChart {
    /// Renders the SVG file.
    #[must_use]
    pub fn render(&self) -> String {
        let (x, y) = self.axes();
        let (drawn, project) = draw(&x, &y);
        let styles = self.styles();
        let css: String = styles.iter().map(|(style, _)| style.light_css()).collect();
        let dark: String = styles.iter().map(|(style, _)| style.dark_css()).collect();
        let content = html! {
            style { (PreEscaped(STYLE)) (PreEscaped(css)) (PreEscaped(format!("@media(prefers-color-scheme:dark){{{dark}}}"))) }
            rect.page width="100%" height="100%" {}
            text.title x="32" y="44" { (self.title) }
            (PreEscaped(drawn))
            (self.goal_line(&x, &y, &project))
            path.frontier d=(path(self.frontier.iter().map(|(cpu, p99)| project(*cpu, *p99)))) {}
            (self.points(&project))
            (legend(&styles))
            (self.best(&project))
        };
        let (width, height) = SIZE;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\"><title>{}</title>{}</svg>\n",
            html! { (self.title) }.into_string(),
            content.into_string()
        )
    }

    fn axes(&self) -> (Axis, Axis) {
        let mut cpu: Vec<f64> = self.marks.iter().map(|mark| mark.cpu_percent).collect();
        let mut p99: Vec<f64> = self.marks.iter().map(|mark| mark.p99_us).collect();
        match self.goal.0 {
            FrontierGoal::Latency(at) => p99.push(at),
            FrontierGoal::Cpu(at) => cpu.push(at),
        }
        (Axis::linear("CPU use, % of the server's CPUs", &cpu, 0.0), Axis::log("99th percentile of latency, us", &p99))
    }

    /// Returns the style and name of each family, in the order of the marks.
    fn styles(&self) -> Vec<(ModeStyle, &str)> {
        let mut styles: Vec<(ModeStyle, &str)> = Vec::new();
        for mark in &self.marks {
            if !styles.iter().any(|(_, name)| *name == mark.name) {
                styles.push((ModeStyle::of(mark.family), &mark.name));
            }
        }
        styles
    }

    fn goal_line(&self, x: &Axis, y: &Axis, project: &Projection) -> Markup {
        let (left, right) = x.range;
        let (bottom, top) = (10f64.powf(y.range.0), 10f64.powf(y.range.1));
        let (from, to) = match self.goal.0 {
            FrontierGoal::Latency(at) => (project(left, at), project(right, at)),
            FrontierGoal::Cpu(at) => (project(at, bottom), project(at, top)),
        };
        let (name_x, name_y, anchor) = match self.goal.0 {
            FrontierGoal::Latency(_) => (to.0 - 12.0, to.1 - 12.0, "end"),
            FrontierGoal::Cpu(_) => (to.0 + 10.0, to.1 + 30.0, "start"),
        };
        html! {
            path.goal d=(path([from, to].into_iter())) {}
            text.goal-name.halo x=(name_x) y=(name_y) text-anchor=(anchor) { (self.goal.1) }
        }
    }

    fn points(&self, project: &Projection) -> Markup {
        html! {
            @for mark in &self.marks {
                @let style = ModeStyle::of(mark.family);
                g class={ (style.class) @if mark.tried { " tried" } } {
                    title { (mark.hover) }
                    path.mark d=(style.marker.path(project(mark.cpu_percent, mark.p99_us), if mark.tried { 7.0 } else { 10.0 })) {}
                }
            }
        }
    }

    fn best(&self, project: &Projection) -> Markup {
        let Some((cpu, p99, name)) = &self.recommended else { return html! {} };
        let (x, y) = project(*cpu, *p99);
        // The area left of the frontier and below it is empty. If it is too narrow, the label is above, to the right.
        let figures = format!("{cpu:.1} %, {p99:.0} us");
        let fits = x - 190.0 > 17.0 * name.len().max(figures.len()) as f64;
        let (anchor, dx, dy) = if fits { ("end", -30.0, 20.0) } else { ("start", 74.0, -130.0) };
        let (x_text, y_text) = (format!("{:.1}", x + dx), (y + dy).max(116.0));
        let leader = [(x + 13.0, y - 13.0), (x + 68.0, y_text + 22.0)];
        html! {
            circle.ring cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="18" {}
            @if !fits { path.leader d=(path(leader.into_iter())) {} }
            text.best.halo x=(x_text) y=(format!("{y_text:.1}")) text-anchor=(anchor) { (name) }
            text.best.halo x=(x_text) y=(format!("{:.1}", y_text + 32.0)) text-anchor=(anchor) { (figures) }
        }
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    if points.is_empty() { String::new() } else { format!("M{}", points.join("L")) }
}

fn legend(styles: &[(ModeStyle, &str)]) -> Markup {
    let x = f64::from(SIZE.0 - LEGEND) + 40.0;
    html! {
        @for (at, (style, name)) in styles.iter().enumerate() {
            @let y = 110.0 + 42.0 * at as f64;
            g class=(style.class) {
                path.mark d=(style.marker.path((x, y), 10.0)) {}
                text.name x=(x + 22.0) y=(y + 10.0) { (name) }
            }
        }
    }
}

/// Draws axes and grid with `plotters`. Returns the SVG and the projection of values.
fn draw(x: &Axis, y: &Axis) -> (String, Projection) {
    let mut svg = String::new();
    let (left, right, top, bottom) = {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let corners = draw_on(&root, x, y).expect("drawing into a string cannot fail");
        root.present().expect("drawing into a string cannot fail");
        corners
    };
    let inner = svg.split_once('>').and_then(|(_, rest)| rest.rsplit_once("</svg>")).map_or("", |(inner, _)| inner);
    let inner = inner
        .replace(r##"fill="#010101""##, r#"class="ink""#)
        .replace(r##"stroke="#010102""##, r#"class="grid""#)
        .replace(r##"stroke="#010103""##, r#"class="axis""#);
    let (x, y) = (x.clone(), y.clone());
    let project = move |cpu: f64, p99: f64| {
        let share = |axis: &Axis, value: f64| {
            let at = axis.position(value).unwrap_or(axis.range.0);
            (at - axis.range.0) / (axis.range.1 - axis.range.0)
        };
        (left + share(&x, cpu) * (right - left), bottom + share(&y, p99) * (top - bottom))
    };
    (inner, Box::new(project))
}

fn draw_on<DB: DrawingBackend>(
    root: &DrawingArea<DB, plotters::coord::Shift>,
    x: &Axis,
    y: &Axis,
) -> Result<(f64, f64, f64, f64), DrawingAreaErrorKind<DB::ErrorType>> {
    let mut chart = ChartBuilder::on(root)
        .margin_top(80)
        .margin_left(12)
        .margin_right(LEGEND)
        .x_label_area_size(96)
        .y_label_area_size(136)
        .build_cartesian_2d(x.clone(), y.clone())?;
    let text = ("sans-serif", 28).into_font().color(&INK);
    chart
        .configure_mesh()
        .bold_line_style(GRID.stroke_width(2))
        .axis_style(AXIS.stroke_width(2))
        .set_all_tick_mark_size(10)
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(x.label.clone())
        .y_desc(y.label.clone())
        .draw()?;
    let (left, bottom) = chart.backend_coord(&(x.range.0, y.range.0));
    let (right, top) = chart.backend_coord(&(x.range.1, y.range.1));
    Ok((left.into(), right.into(), top.into(), bottom.into()))
}
