//! The sections of the report, except charts.

use maud::{Markup, html};

use super::{charts, swatch};
use crate::compare::{Agreement, Comparison, LoadPair, ModeRows};
use crate::ratios::COMPARED;
use crate::table::{
    LISTED, by_world, listed, marks, notes, ordered, pair_title, ratio_text, rows_by_load, several_worlds, spread_text,
    value_text,
};
use crate::{BenchRow, Document, Figure, Load, RatioRow, World, stats};
use abey_chart::ModeStyle;
use abey_delivery::Mode;

/// Renders title, machine and notes.
pub(super) fn header(document: &Document) -> Markup {
    let facts = document.machine.facts();
    let short = facts.iter().filter(|(name, _)| ["Processor", "CPUs", "Kernel", "Date"].contains(name));
    html! {
        header {
            p.kicker { "Abey bench" }
            h1 { (document.setup.servers()) }
            p.lead { (short.map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" · ")) }
            @for note in &document.notes { p.notice { (note) } }
        }
    }
}

/// Renders the best mode for each figure at each load.
pub(super) fn glance(rows: &[BenchRow]) -> Markup {
    let mut keys: Vec<(World, Load)> = rows.iter().map(|row| (row.world, row.load)).collect();
    keys.sort_unstable();
    keys.dedup();
    let goals = [Figure::Avg, Figure::P99, Figure::CpuPercent, Figure::Qps];
    html! {
        section {
            h2 { "At a glance" }
            div.tiles {
                @for (world, load) in keys {
                    div.tile {
                        h3 { @if several_worlds(rows) { (world) " " } (load) @if load != Load::Max { " requests/s" } }
                        dl {
                            @for goal in goals {
                                // At a fixed rate the throughput is no result.
                                @if (goal == Figure::Qps) == (load == Load::Max) || goal == Figure::Avg || goal == Figure::P99 {
                                    (best(rows, world, load, goal))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn best(rows: &[BenchRow], world: World, load: Load, goal: Figure) -> Markup {
    let mut candidates: Vec<(&BenchRow, f64)> = rows
        .iter()
        .filter(|row| (row.world, row.load) == (world, load))
        .filter_map(|row| Some((row, row.figures.get(goal)?)))
        .collect();
    candidates.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let best = if goal == Figure::Qps { candidates.last() } else { candidates.first() };
    let name = match goal {
        Figure::Avg => "lowest average",
        Figure::P99 => "lowest p99",
        Figure::CpuPercent => "least CPU",
        _ => "most responses",
    };
    let unit = match goal {
        Figure::Qps => "/s",
        Figure::CpuPercent => " %",
        _ => " us",
    };
    html! {
        @if let Some((row, value)) = best {
            dt { (name) }
            dd {
                b class={ "mode " (ModeStyle::of(row.mode).class) } { (row.mode) } (marks(row)) " "
                span.value { (goal.text(*value)) (unit) }
                @if row.mode != Mode::Base {
                    @if let Some(ratio) = stats::find(rows, world, Mode::Base, load)
                        .and_then(|base| stats::ratio(&row.figures, &base.figures, goal)) {
                        " " span.ratio { (ratio_text(Some(ratio))) " base" }
                    }
                }
            }
        }
    }
}

/// Renders a table for each world, or one for all worlds if they can be compared.
pub(super) fn table(document: &Document) -> Markup {
    if document.setup.side_by_side {
        return html! {
            section {
                h2 { "Results" }
                div.scroll { (results(&rows_by_load(&document.rows), true)) }
                (ratios(&document.ratios))
                ul.notes { @for note in notes(&document.rows) { li { (note) } } }
            }
        };
    }
    let worlds = by_world(&document.rows);
    html! {
        section {
            h2 { "Results" }
            @for (world, rows) in &worlds {
                @if worlds.len() > 1 { (world_heading(document, *world)) }
                div.scroll { (results(rows, false)) }
            }
            ul.notes { @for note in notes(&document.rows) { li { (note) } } }
        }
    }
}

/// Renders the heading of a world, with its test bed.
pub(super) fn world_heading(document: &Document, world: World) -> Markup {
    html! {
        h3.world { "World: " (world) }
        @if let Some(bed) = document.setup.test_bed(world) { p { (bed.server) "; " (bed.wire) "; load " (bed.client) "." } }
    }
}

/// Renders the table of results; with `worlds` it has a column of worlds.
fn results(rows: &[&BenchRow], worlds: bool) -> Markup {
    html! {
        table.sortable {
            caption { "Latency counts from the intended send time. " }
            thead {
                tr {
                    th scope="col" { "load" }
                    th scope="col" { "mode" }
                    @if worlds { th scope="col" { "world" } }
                    @for figure in Figure::ALL {
                        th.number scope="col" title=(figure.describe()) {
                            (figure.heading().0) br; small { (figure.heading().1) }
                        }
                    }
                    th.number scope="col" title="runs behind the medians" { "runs" }
                }
            }
            tbody {
                @for (at, row) in rows.iter().enumerate() { (table_row(row, at > 0 && rows[at - 1].load != row.load, worlds)) }
            }
        }
    }
}

/// Renders a row; `new_load` separates it from the rows of the previous load.
fn table_row(row: &BenchRow, new_load: bool, world: bool) -> Markup {
    let style = ModeStyle::of(row.mode);
    let load = row.load.rate().unwrap_or(u64::MAX);
    html! {
        tr class=[new_load.then_some("new")] {
            td data-value=(load) { (row.load) }
            th scope="row" class=(style.class) { (swatch(&style)) (row.mode) @if !marks(row).is_empty() { " " span.marks { (marks(row)) } } }
            @if world { td { (row.world) } }
            @for figure in Figure::ALL {
                td.number data-value=[row.figures.get(figure)] {
                    (value_text(Some(&row.figures), figure))
                    @if !spread_text(row, figure).is_empty() { " " small.spread { (spread_text(row, figure)) } }
                }
            }
            td.number data-value=(row.runs) { (row.runs) }
        }
    }
}

/// Renders the ratios of other worlds' figures to the kernel's.
fn ratios(rows: &[RatioRow]) -> Markup {
    html! {
        h3 { "Ratios to the linux world" }
        div.scroll {
            table {
                thead {
                    tr {
                        @for name in ["load", "mode", "world"] { th scope="col" rowspan="2" { (name) } }
                        th.group scope="colgroup" colspan="4" { "in the same mode" }
                        th.group scope="colgroup" colspan="4" { "in its best mode" }
                    }
                    tr {
                        @for _ in 0..2 { @for figure in COMPARED { th.number scope="col" { (figure.title()) } } }
                    }
                }
                tbody {
                    @for (at, row) in rows.iter().enumerate() {
                        tr class=[(at > 0 && rows[at - 1].load != row.load).then_some("new")] {
                            td { (row.load) }
                            th scope="row" class=(ModeStyle::of(row.mode).class) { (swatch(&ModeStyle::of(row.mode))) (row.mode) }
                            td { (row.world) }
                            @for ratio in row.to_same_mode.all() { td.number { (ratio_text(ratio)) } }
                            @for (ratio, mode) in row.to_best_mode.all().into_iter().zip(row.best_mode.all()) {
                                td.number { (ratio_text(ratio)) " " small { (mode.unwrap_or_default()) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Renders the comparison with published figures.
pub(super) fn comparison(comparison: &Comparison) -> Markup {
    html! {
        section.comparison {
            h2 { "Comparison with published figures" }
            p { b { (comparison.title) } ". " (comparison.about) }
            p {
                "Absolute figures come from other hardware. The order of the modes and the ratio of each to " b { "base" }
                " can agree, at loads with about the same CPU use. Each measured rate is compared with the published rate at "
                "which the CPU use of " b { "base" } " is nearest."
            }
            @for pair in &comparison.pairs { (pair_section(pair)) }
            details {
                summary { "All published loads of the measured modes" }
                div.scroll {
                    table {
                        thead {
                            tr {
                                th scope="col" { "mode" }
                                th scope="col" { "source" }
                                th.number scope="col" { "load" }
                                @for figure in LISTED { th.number scope="col" { (figure.title()) } }
                            }
                        }
                        @for mode in &comparison.modes { (mode_body(mode)) }
                    }
                }
            }
        }
    }
}

fn pair_section(pair: &LoadPair) -> Markup {
    html! {
        h3 { (pair_title(pair)) }
        div.panels.three { @for chart in charts::agreement(pair) { (chart.render()) } }
        div.scroll {
            table.pairs {
                thead {
                    tr {
                        th scope="col" rowspan="2" { "mode" }
                        @for figure in &pair.figures { th.group scope="colgroup" colspan="4" { (figure.title()) } }
                    }
                    tr {
                        @for _ in &pair.figures {
                            th.number.first scope="col" { "measured" }
                            th.number scope="col" { "published" }
                            th.number scope="col" { "measured" br; small { "to base" } }
                            th.number scope="col" { "published" br; small { "to base" } }
                        }
                    }
                }
                tbody {
                    @for mode in &pair.modes {
                        tr {
                            th scope="row" class=(ModeStyle::of(mode.mode).class) { (swatch(&ModeStyle::of(mode.mode))) (mode.mode) }
                            @for (at, figure) in pair.figures.iter().enumerate() {
                                td.number.first { (value_text(Some(&mode.measured), *figure)) }
                                td.number { (value_text(mode.published.as_ref(), *figure)) }
                                td.number.ratio { (ratio_text(mode.measured_ratios[at])) }
                                td.number.ratio { (ratio_text(mode.published_ratios[at])) }
                            }
                        }
                    }
                }
                tfoot {
                    tr {
                        th scope="row" { "same order" }
                        @for order in &pair.orders { td.order colspan="4" { (order_words(*order)) } }
                    }
                }
            }
        }
    }
}

fn order_words(order: Agreement) -> String {
    match order.of {
        0 => "no two modes differ by more than 5 % on both sides".to_owned(),
        of => format!("{} of {of} pairs of modes", order.same),
    }
}

fn mode_body(mode: &ModeRows) -> Markup {
    html! {
        tbody {
            @for (source, load, figures) in listed(mode) {
                tr class=[(source != "published").then_some("measured")] {
                    th scope="row" { (mode.mode) }
                    td { (source) }
                    td.number { (load) }
                    @for figure in LISTED { td.number { (value_text(Some(&figures), figure)) } }
                }
            }
            @if mode.published.is_empty() { tr { th scope="row" { (mode.mode) } td colspan="9" { "not published" } } }
        }
    }
}

/// Renders machine, method, proofs and command.
pub(super) fn method(document: &Document) -> Markup {
    let setup = &document.setup;
    let seconds = |ms: u64| format!("{} s", ms as f64 / 1_000.0);
    html! {
        section.columns {
            div {
                h2 { "Machine" }
                dl.facts { @for (name, text) in document.machine.facts() { dt { (name) } dd { (text) } } }
            }
            div {
                h2 { "How it was measured" }
                dl.facts {
                    @for bed in &setup.test_beds {
                        dt { "Server, " (bed.world) } dd { (bed.server) }
                        dt { "Wire, " (bed.world) } dd { (bed.wire) }
                        dt { "Client, " (bed.world) } dd { (bed.client) }
                    }
                    dt { "Load" } dd { (setup.load) }
                    dt { "Runs" }
                    dd {
                        (setup.repetitions) " of each mode at each load, " (seconds(setup.run_ms)) " each after "
                        (seconds(setup.warmup_ms)) " of warm-up; medians, with half the range of the runs as the spread"
                    }
                    dt { "Order" } dd { "runs of different modes interleaved at random, seed " code { (document.seed) } }
                    @if !document.profile.is_empty() { dt { "Build" } dd { "abey " (setup.abey_version) ", profile " (document.profile) } }
                    dt { "Latency" }
                    dd { "open loop: counted from the intended send time, so that a stall of the server counts in full; max is a closed loop" }
                    dt { "Active" } dd { "a row counts only if counters proved its mode active" }
                }
            }
        }
        (proofs(&document.rows))
        section {
            h2 { "Command" }
            pre.command { code { (setup.command) } }
        }
    }
}

fn proofs(rows: &[BenchRow]) -> Markup {
    let proved: Vec<(&BenchRow, &String)> =
        ordered(rows).into_iter().filter_map(|row| Some((row, row.proof.as_ref()?))).collect();
    html! {
        @if !proved.is_empty() {
            section {
                details {
                    summary { "Proofs that each mode was active" }
                    div.scroll {
                        table {
                            thead { tr { @for name in ["world", "load", "mode", "counters"] { th scope="col" { (name) } } } }
                            tbody {
                                @for (row, proof) in proved {
                                    tr { td { (row.world) } td { (row.load) } th scope="row" { (row.mode) } td { (proof) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
