//! A timeline as an SVG file: lanes over one axis of time, in one or more views.

use maud::{Markup, PreEscaped, html};

use crate::number::grouped;

const STYLE: &str = include_str!("timeline.css");

/// Width in drawing units.
const WIDTH: f64 = 960.0;
/// Width of the lane names, left of the lanes.
const NAMES: f64 = 142.0;
const RIGHT: f64 = 14.0;
const PLOT: f64 = WIDTH - NAMES - RIGHT;
const ROW: f64 = 16.0;
const BAR: f64 = 12.0;
const LANE_GAP: f64 = 7.0;
const LINE: f64 = 19.0;
/// Minimum width of a bar.
const MIN_BAR: f64 = 1.3;
/// Width of a digit of a label.
const DIGIT: f64 = 7.0;

/// A timeline. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineChart {
    /// Title.
    pub title: String,
    /// Lines below the title.
    pub notes: Vec<String>,
    /// The views, one above the other.
    pub views: Vec<TimelineView>,
}

/// A view of a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineView {
    /// Heading.
    pub heading: String,
    /// The end of the span, which begins at 0.
    pub to: u64,
    /// The end of the part, from 0, that the view above shows.
    pub shown_above: Option<u64>,
    /// Lanes.
    pub lanes: Vec<TimelineLane>,
}

/// A lane: bars of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineLane {
    /// Name.
    pub name: String,
    /// Whether overlapping groups are stacked in rows, with labels; otherwise all groups are in one row.
    pub stacked: bool,
    /// Groups of bars, in order of time.
    pub groups: Vec<TimelineGroup>,
}

/// A group of bars, such as one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineGroup {
    /// Bars: beginning, end and kind.
    pub bars: Vec<(u64, u64, TimelineKind)>,
    /// Label after the last bar, in a stacked lane.
    pub label: String,
}

/// The kind of a bar or mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimelineKind {
    /// A request in the receive ring, before a poll delivers it to its socket.
    Ring,
    /// A request in its socket, before the server reads it.
    Socket,
    /// A request that the server handles.
    Served,
    /// The interrupt is unmasked.
    Unmasked,
    /// The interrupt is masked.
    Masked,
    /// The interrupt is masked because an application suspended it.
    Suspended,
    /// An armed timer.
    Armed,
    /// The expiry of a timer: a mark.
    Fired,
    /// A sleeping thread.
    Asleep,
    /// A NIC interrupt.
    NicInterrupt,
    /// A timer interrupt.
    TimerInterrupt,
    /// Overhead before and after a poll.
    Overhead,
    /// A system call that waits without polling.
    Wait,
    /// An empty busy poll of an application.
    BusyEmpty,
    /// An empty poll of the kernel.
    PollEmpty,
    /// A busy poll of an application with packets.
    BusyWork,
    /// A poll of the kernel with packets.
    PollWork,
    /// The application while it handles a request.
    Serve,
}

impl TimelineKind {
    const LEGEND: [(Self, &'static str); 17] = [
        (Self::Ring, "request in the ring"),
        (Self::Socket, "in its socket"),
        (Self::Served, "being served"),
        (Self::Unmasked, "interrupt unmasked"),
        (Self::Masked, "masked"),
        (Self::Suspended, "suspended"),
        (Self::Armed, "timer armed"),
        (Self::Fired, "timer fires"),
        (Self::NicInterrupt, "NIC interrupt"),
        (Self::TimerInterrupt, "timer interrupt"),
        (Self::Overhead, "way to a poll"),
        (Self::PollWork, "poll, packets"),
        (Self::PollEmpty, "poll, empty"),
        (Self::Wait, "wait: system call"),
        (Self::BusyWork, "busy poll, packets"),
        (Self::BusyEmpty, "busy poll, empty"),
        (Self::Asleep, "asleep"),
    ];

    const fn class(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Socket => "socket",
            Self::Served | Self::Serve => "served",
            Self::Unmasked => "unmasked",
            Self::Masked => "masked",
            Self::Suspended => "suspended",
            Self::Armed => "armed",
            Self::Fired => "fired",
            Self::Asleep => "asleep",
            Self::NicInterrupt => "nic",
            Self::TimerInterrupt => "timer",
            Self::Overhead => "overhead",
            Self::Wait => "wait",
            Self::BusyEmpty => "busy-empty",
            Self::PollEmpty => "poll-empty",
            Self::BusyWork => "busy",
            Self::PollWork => "poll",
        }
    }

    /// Returns the offset of the bar from the top of its row, and its height.
    const fn extent(self) -> (f64, f64) {
        match self {
            Self::Asleep => (BAR / 2.0 - 1.0, 2.0),
            Self::Armed => (BAR / 2.0 - 1.5, 3.0),
            Self::Unmasked => (BAR - 4.0, 4.0),
            _ => (0.0, BAR),
        }
    }
}

impl TimelineChart {
    /// Renders the SVG file.
    #[must_use]
    pub fn render(&self) -> String {
        let mut y = 30.0;
        let title = html! { text.title x="14" y=(n(y)) { (self.title) } };
        let notes = html! {
            @for note in &self.notes { (line(note, "note", &mut y)) }
        };
        y += 8.0;
        let views = html! {
            @for view in &self.views { (view.draw(&mut y)) }
        };
        let legend = self.legend(&mut y);
        let height = n(y + 10.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\"><title>{}</title>{}</svg>\n",
            html! { (self.title) }.into_string(),
            html! {
                desc { (self.notes.join(" ")) }
                style { (PreEscaped(STYLE.trim_end())) }
                rect.page width="100%" height="100%" {}
                (title) (notes) (views) (legend)
            }
            .into_string()
        )
    }

    /// Renders the legend of the kinds that occur.
    fn legend(&self, y: &mut f64) -> Markup {
        let bars =
            || self.views.iter().flat_map(|view| &view.lanes).flat_map(|lane| &lane.groups).flat_map(|g| &g.bars);
        let used: Vec<_> =
            TimelineKind::LEGEND.into_iter().filter(|(kind, _)| bars().any(|(.., used)| used == kind)).collect();
        let column = (WIDTH - 28.0) / 5.0;
        let top = *y + 8.0;
        *y = top + used.len().div_ceil(5) as f64 * LINE;
        html! {
            @for (at, (kind, name)) in used.into_iter().enumerate() {
                @let (x, y) = (14.0 + (at % 5) as f64 * column, top + (at / 5) as f64 * LINE);
                (bar(kind, x, x + 22.0, y))
                text.legend x=(n(x + 29.0)) y=(n(y + 10.5)) { (name) }
            }
        }
    }
}

fn line(text: &str, class: &str, y: &mut f64) -> Markup {
    *y += LINE;
    html! { text class=(class) x="14" y=(n(*y)) { (text) } }
}

impl TimelineView {
    fn x(&self, at: u64) -> f64 {
        NAMES + at.min(self.to) as f64 / self.to.max(1) as f64 * PLOT
    }

    /// Returns the text anchor of a tick, which keeps its label within the picture.
    fn anchor(&self, at: u64) -> &'static str {
        match self.x(at) {
            _ if at == 0 => "start",
            x if x > NAMES + PLOT - 12.0 => "end",
            _ => "middle",
        }
    }

    fn draw(&self, y: &mut f64) -> Markup {
        let heading = line(&self.heading, "heading", y);
        *y += 26.0;
        let top = *y;
        let lanes = html! { @for lane in &self.lanes { (self.lane(lane, y)) } };
        let bottom = *y;
        *y += 10.0;
        let step = tick_step(self.to);
        html! {
            (heading)
            @if let Some(to) = self.shown_above {
                rect.above x=(n(NAMES)) y=(n(top - 6.0)) width=(n(self.x(to) - NAMES)) height=(n(bottom - top + 6.0)) {}
            }
            @for at in (0..=self.to / step).map(|count| count * step) {
                path.grid d=(format!("M{x} {}V{}", n(top - 6.0), n(bottom), x = n(self.x(at)))) {}
                text.tick x=(n(self.x(at))) y=(n(top - 11.0)) text-anchor=(self.anchor(at)) { (tick_text(at, at == 0)) }
            }
            (lanes)
        }
    }

    fn lane(&self, lane: &TimelineLane, y: &mut f64) -> Markup {
        let rows = if lane.stacked { self.rows(lane) } else { vec![0; lane.groups.len()] };
        let count = rows.iter().max().map_or(1, |row| row + 1);
        let top = *y;
        *y += count as f64 * ROW + LANE_GAP;
        html! {
            text.name x=(n(NAMES - 10.0)) y=(n(top + 10.5)) text-anchor="end" { (lane.name) }
            @if lane.stacked {
                @for (group, row) in lane.groups.iter().zip(rows) {
                    @let y = top + row as f64 * ROW;
                    @for &(from, to, kind) in &group.bars { (bar(kind, self.x(from), self.x(to), y)) }
                    @if let Some((_, to, _)) = group.bars.last() {
                        text.value x=(n(self.x(*to) + 3.0)) y=(n(y + 10.5)) { (group.label) }
                    }
                }
            } @else {
                @for (from, to, kind) in self.merged(lane) { (bar(kind, from, to, top)) }
            }
            path.rule d=(format!("M{} {y}H{}", n(NAMES), n(NAMES + PLOT), y = n(*y - LANE_GAP / 2.0 - 1.0))) {}
        }
    }

    /// Assigns each group to a row, so that neither bars nor labels overlap.
    fn rows(&self, lane: &TimelineLane) -> Vec<usize> {
        let mut ends: Vec<f64> = Vec::new();
        let row_of = |group: &TimelineGroup| {
            let from = group.bars.first().map_or(0.0, |(from, ..)| self.x(*from));
            let to = group.bars.last().map_or(from, |(_, to, _)| self.x(*to)) + DIGIT * (group.label.len() + 1) as f64;
            let row = ends.iter().position(|end| *end <= from).unwrap_or(ends.len());
            if row == ends.len() {
                ends.push(to);
            } else {
                ends[row] = to;
            }
            row
        };
        lane.groups.iter().map(row_of).collect()
    }

    /// Returns the bars of a lane in drawing units, in ascending order of kind, so that later kinds are drawn on top. Bars of one
    /// kind with an invisible gap between them are merged.
    fn merged(&self, lane: &TimelineLane) -> Vec<(f64, f64, TimelineKind)> {
        let mut bars: Vec<(u64, u64, TimelineKind)> =
            lane.groups.iter().flat_map(|group| &group.bars).filter(|(from, ..)| *from < self.to).copied().collect();
        bars.sort_by_key(|(from, _, kind)| (*kind, *from));
        let mut merged: Vec<(f64, f64, TimelineKind)> = Vec::new();
        for (from, to, kind) in bars {
            let (from, to) = (self.x(from), self.x(to));
            match merged.last_mut() {
                Some((_, end, last)) if *last == kind && kind != TimelineKind::Fired && from - *end < 0.4 => {
                    *end = end.max(to);
                }
                _ => merged.push((from, to, kind)),
            }
        }
        merged
    }
}

fn bar(kind: TimelineKind, from: f64, to: f64, top: f64) -> Markup {
    if kind == TimelineKind::Fired {
        return html! { path class=(kind.class()) d=(format!("M{} {}l5 10h-10Z", n(from), n(top + 1.0))) {} };
    }
    let (below, height) = kind.extent();
    html! {
        rect class=(kind.class()) x=(n(from)) y=(n(top + below)) width=(n((to - from).max(MIN_BAR))) height=(n(height)) {}
    }
}

/// Formats a coordinate with one decimal, without a trailing zero.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Returns a round time in nanoseconds of which at most twelve make this span.
fn tick_step(span: u64) -> u64 {
    let steps = (0..).map(|power| 1_000 * 10u64.pow(power)).flat_map(|unit| [unit, 2 * unit, 5 * unit]);
    steps.into_iter().find(|step| span / step <= 12).unwrap_or(span.max(1))
}

fn tick_text(at: u64, unit: bool) -> String {
    let micros = grouped((at / 1_000) as f64);
    if unit { format!("{micros} us") } else { micros }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(lane: TimelineLane) -> TimelineView {
        TimelineView { heading: "all of it".to_owned(), to: 100_000, shown_above: Some(50_000), lanes: vec![lane] }
    }

    fn requests() -> TimelineLane {
        let group = |from: u64, to: u64| TimelineGroup {
            bars: vec![(from, to, TimelineKind::Ring)],
            label: ((to - from) / 1_000).to_string(),
        };
        let groups = vec![group(10_000, 30_000), group(20_000, 40_000), group(60_000, 70_000)];
        TimelineLane { name: "requests".to_owned(), stacked: true, groups }
    }

    #[test]
    fn overlapping_groups_get_rows_and_free_rows_are_reused() {
        let lane = requests();
        assert_eq!(view(lane.clone()).rows(&lane), [0, 1, 0]);
    }

    #[test]
    fn bars_without_a_visible_gap_are_merged_and_marks_are_not() {
        let bars = vec![
            (0, 10_000, TimelineKind::Wait),
            (10_010, 20_000, TimelineKind::Wait),
            (30_000, 40_000, TimelineKind::Wait),
            (40_000, 40_000, TimelineKind::Fired),
            (40_000, 40_000, TimelineKind::Fired),
            (200_000, 300_000, TimelineKind::Wait),
        ];
        let groups = vec![TimelineGroup { bars, label: String::new() }];
        let lane = TimelineLane { name: "application".to_owned(), stacked: false, groups };
        let merged = view(lane.clone()).merged(&lane);
        assert_eq!(merged.iter().filter(|(.., kind)| *kind == TimelineKind::Wait).count(), 2);
        assert_eq!(merged.iter().filter(|(.., kind)| *kind == TimelineKind::Fired).count(), 2);
    }

    #[test]
    fn the_file_is_xml_with_a_legend_of_the_kinds_that_occur() {
        let chart =
            TimelineChart { title: "a < b".to_owned(), notes: vec!["one".to_owned()], views: vec![view(requests())] };
        let svg = chart.render();
        let document = roxmltree::Document::parse(&svg).expect("it is XML");
        let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(texts.contains(&"a < b") && texts.contains(&"request in the ring"), "{texts:?}");
        assert!(!texts.contains(&"asleep"), "{texts:?}");
    }

    #[test]
    fn ticks_are_round_and_neither_few_nor_many() {
        for span in [1_000, 90_000, 500_000, 2_650_000, 26_000_000] {
            let count = span / tick_step(span);
            assert!((1..=12).contains(&count), "{span}: {count}");
        }
    }
}
