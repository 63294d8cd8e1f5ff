//! Manual pages: the sections of clap, and those on exit status, environment and files.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use abey_linux::library::{FILE_NAME, LIBRARY_VARIABLE};
use abey_reconcile::JOURNAL_DIRECTORY;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use jiff::Timestamp;

/// The variable with the date of a reproducible build, in seconds since 1970 (reproducible-builds.org, "SOURCE_DATE_EPOCH").
const DATE_VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// Exit statuses of all commands but `abey run`, which returns the status of its program.
const STATUS: [(&str, &str); 4] = [
    ("0", "Done."),
    ("1", "A check failed, or the kernel refused the request."),
    ("2", "The command line, or a file that it names, is not valid."),
    ("3", "The machine lacks a capability, a device or a feature of the kernel."),
];

/// Commands that read a policy.
const POLICY_COMMANDS: [&str; 4] = ["abey", "abey-apply", "abey-dump", "abey-tune"];

/// Commands that change settings of the kernel.
const JOURNAL_COMMANDS: [&str; 5] = ["abey", "abey-apply", "abey-run", "abey-set", "abey-tune"];

/// Commands that preload the library into a program.
const LIBRARY_COMMANDS: [&str; 4] = ["abey", "abey-apply", "abey-bench", "abey-run"];

/// Writes the pages of the command and of its subcommands at every level, without hidden ones.
pub(super) fn write(mut command: Command, directory: &Path) -> Result<Vec<PathBuf>, io::Error> {
    let date = date(env::var(DATE_VARIABLE).ok().as_deref())?;
    command.build();
    let mut written = Vec::new();
    write_tree(&command, &date, directory, &mut written)?;
    Ok(written)
}

fn write_tree(page: &Command, date: &str, directory: &Path, written: &mut Vec<PathBuf>) -> Result<(), io::Error> {
    written.push(write_page(page, date, directory)?);
    subcommands(page).try_for_each(|subcommand| write_tree(subcommand, date, directory, written))
}

/// Returns the subcommands that have pages: all but hidden ones and clap's `help`.
fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help")
}

/// Formats the date of a page; empty without one.
fn date(seconds: Option<&str>) -> Result<String, io::Error> {
    let Some(seconds) = seconds else { return Ok(String::new()) };
    let time = seconds.parse().ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.ok_or_else(|| io::Error::other(format!("{DATE_VARIABLE}={seconds} is no number of seconds")))?;
    Ok(time.strftime("%Y-%m-%d").to_string())
}

fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn write_page(page: &Command, date: &str, directory: &Path) -> Result<PathBuf, io::Error> {
    let man = Man::new(page.clone().disable_help_subcommand(true))
        .date(date)
        .source(concat!("abey ", env!("CARGO_PKG_VERSION")))
        .manual("Interrupts in abeyance");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if subcommands(page).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    if page.get_after_help().or_else(|| page.get_after_long_help()).is_some() {
        man.render_extra_section(&mut text)?;
    }
    additional_sections(page).to_writer(&mut text)?;
    // clap writes an empty line between two line breaks before a list of values, which mandoc warns about.
    let text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", ".sp\n");
    let path = directory.join(man.get_filename());
    fs::write(&path, text)?;
    Ok(path)
}

/// Returns the sections after those of clap.
fn additional_sections(page: &Command) -> Roff {
    let mut roff = Roff::default();
    let name = page_name(page);
    let name = name.as_str();
    let is_one_of = |commands: &[&str]| commands.contains(&name);
    let mut status: Vec<(&str, &str)> = STATUS.to_vec();
    if name == "abey-run" {
        status[0] = ("the program's", "The program ran and ended; 128 plus the signal number if a signal ended it.");
    }
    section(&mut roff, "EXIT STATUS", &status);
    if is_one_of(&LIBRARY_COMMANDS) {
        let meaning = format!("Path of {FILE_NAME}, instead of the directory of the command, ../lib and ../lib/abey.");
        section(&mut roff, "ENVIRONMENT", &[(LIBRARY_VARIABLE, &meaning)]);
    }
    let journal = format!("{JOURNAL_DIRECTORY}/");
    let mut files = Vec::new();
    if is_one_of(&POLICY_COMMANDS) {
        files.push(("/etc/abey/policy.toml", "Policy of the machine."));
        files.push(("/etc/abey/policy.d/*.toml", "Fragments of the policy, in the order of their names."));
        files.push(("/usr/share/abey/profiles/*.toml", "Examples of fragments for servers."));
    }
    if is_one_of(&JOURNAL_COMMANDS) {
        files.push((&journal, "Previous settings, until a change is undone or committed."));
    }
    if !files.is_empty() {
        section(&mut roff, "FILES", &files);
    }
    roff.control("SH", ["SEE ALSO"]);
    let others = subcommands(page).map(page_name).chain((name != "abey").then(|| String::from("abey")));
    let references = others.flat_map(|other| [bold(other), roman("(1), ")]);
    roff.text(references.chain([roman("the kernel's Documentation/networking/napi.rst")]).collect::<Vec<_>>());
    roff
}

fn section(roff: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (term, meaning) in entries {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_of_a_page_comes_from_the_build() {
        assert_eq!(date(None).expect("no date"), "");
        assert_eq!(date(Some("1700000000")).expect("a date"), "2023-11-14");
        let error = date(Some("yesterday")).expect_err("no number").to_string();
        assert!(error.contains("SOURCE_DATE_EPOCH=yesterday"), "{error}");
    }
}
