//! The HTML report: one file without a single request to anywhere, readable without scripts.

mod axis;
mod chart;
mod charts;
mod frontier;
mod palette;
mod sections;
mod timeline;

pub use frontier::{FrontierChart, FrontierGoal, FrontierMark};
pub use timeline::{TimelineChart, TimelineGroup, TimelineKind, TimelineLane, TimelineView};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::row::mode_order;
use crate::{Comparison, Document, Row, World};
use palette::ModeStyle;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("sort.js");

/// Forbids every request; a browser that follows it shows that the file is self-contained.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// The report as the text of an HTML file.
///
/// With a comparison, a section lays the published figures beside the measured ones.
pub fn render(document: &Document, comparison: Option<&Comparison>) -> String {
    let styles = styles(&document.rows);
    let title = format!("Abey bench: {}", document.setup.servers());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(mode_css(&styles))) }
            }
            body {
                (sections::header(document))
                main {
                    (sections::glance(&document.rows))
                    (chart_section(document, &styles))
                    (sections::table(document))
                    @if let Some(comparison) = comparison { (sections::comparison(comparison)) }
                    (sections::method(document))
                }
                footer { p { "Written by abey " (document.setup.abey_version) "." } }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

/// The style of every mode among the rows, in the order of the table.
fn styles(rows: &[Row]) -> Vec<ModeStyle> {
    let mut modes: Vec<_> = rows.iter().map(|row| row.mode).collect();
    modes.sort_by_key(|mode| mode_order(*mode));
    modes.dedup();
    modes.into_iter().map(ModeStyle::of).collect()
}

/// Colours of the modes, and the rules that dim the other lines while the pointer is on a name in the legend.
fn mode_css(styles: &[ModeStyle]) -> String {
    let each = |css: fn(&ModeStyle) -> String| styles.iter().map(css).collect::<String>();
    let focus = |style: &ModeStyle| {
        format!(".charts:has(.legend .{class}:hover) .series:not(.{class}){{opacity:.12}}", class = style.class)
    };
    format!(
        "{}{}@media (prefers-color-scheme:dark){{{}}}",
        each(ModeStyle::light_css),
        styles.iter().map(focus).collect::<String>(),
        each(ModeStyle::dark_css)
    )
}

fn chart_section(document: &Document, styles: &[ModeStyle]) -> Markup {
    let worlds = worlds(&document.rows);
    html! {
        section.charts {
            h2 { "Charts" }
            ul.legend aria-label="Modes" {
                @for style in styles {
                    li class=(style.class) { (swatch(style)) (style.name) }
                }
            }
            @if document.setup.side_by_side {
                ul.legend.worlds aria-label="Worlds" {
                    @for world in &worlds { li { (world_swatch(*world)) (world) } }
                }
                @for world in &worlds { (sections::world_heading(document, *world)) }
                div.panels { @for chart in charts::overlaid(&document.rows) { (chart.render()) } }
            } @else { @for world in &worlds {
                @if worlds.len() > 1 { (sections::world_heading(document, *world)) }
                div.panels { @for chart in charts::charts(&document.rows, *world) { (chart.render()) } }
            } }
        }
    }
}

/// The worlds that there are rows of.
fn worlds(rows: &[Row]) -> Vec<World> {
    let mut worlds: Vec<World> = rows.iter().map(|row| row.world).collect();
    worlds.sort_unstable();
    worlds.dedup();
    worlds
}

/// A short piece of a world's line, without the colour of a mode.
fn world_swatch(world: World) -> Markup {
    html! {
        svg.swatch viewBox="0 0 64 28" aria-hidden="true" {
            g class={ "plain w-" (world) } {
                path.line d="M2 14H62" {}
                path.mark d=(palette::Marker::Circle.path((32.0, 14.0), 9.0)) {}
            }
        }
    }
}

/// A short piece of a mode's line with its marker.
fn swatch(style: &ModeStyle) -> Markup {
    html! {
        svg.swatch viewBox="0 0 64 28" aria-hidden="true" {
            g class=(style.class) {
                path.line d="M2 14H62" {}
                path.mark d=(style.marker.path((32.0, 14.0), 9.0)) {}
            }
        }
    }
}
