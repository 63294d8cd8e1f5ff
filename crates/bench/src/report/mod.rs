//! The HTML report: one self-contained file, readable without scripts.

mod charts;
mod sections;

use abey_chart::{Marker, ModeStyle};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::row::mode_order;
use crate::{BenchRow, Comparison, Document, World};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("sort.js");

/// Content security policy that forbids all requests.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Renders the report as an HTML file; with a comparison, it has a section of published figures.
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
                footer { p { "Written by abey " (document.setup.abey_version) @if !document.profile.is_empty() { ", build profile " (document.profile) } "." } }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

/// Renders CPU use against median latency as an SVG file, for the document's first world.
pub fn render_svg(document: &Document) -> String {
    let world = document.rows.first().map_or(World::Datapath, |row| row.world);
    charts::cpu_against_latency(&document.rows, world).render_file()
}

/// Returns the style of every mode of the rows, in the order of the table.
fn styles(rows: &[BenchRow]) -> Vec<ModeStyle> {
    let mut modes: Vec<_> = rows.iter().map(|row| row.mode).collect();
    modes.sort_by_key(|mode| mode_order(*mode));
    modes.dedup();
    modes.into_iter().map(ModeStyle::of).collect()
}

/// Returns the colours of the modes, and rules that dim the other lines while the pointer is on a name in the legend.
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

/// Returns the worlds of the rows.
fn worlds(rows: &[BenchRow]) -> Vec<World> {
    let mut worlds: Vec<World> = rows.iter().map(|row| row.world).collect();
    worlds.sort_unstable();
    worlds.dedup();
    worlds
}

/// Renders a sample of a world's line, without the colour of a mode.
fn world_swatch(world: World) -> Markup {
    html! {
        svg.swatch viewBox="0 0 64 28" aria-hidden="true" {
            g class={ "plain w-" (world) } {
                path.line d="M2 14H62" {}
                path.mark d=(Marker::Circle.path((32.0, 14.0), 9.0)) {}
            }
        }
    }
}

/// Renders a sample of a mode's line with its marker.
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
