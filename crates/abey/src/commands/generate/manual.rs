//! Manual pages: clap's sections, and those that a command line does not know of.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use abey_linux::apply::JOURNAL_DIRECTORY;
use abey_linux::library::{FILE_NAME, LIBRARY_VARIABLE};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use jiff::Timestamp;

/// The variable that dates what is built, in seconds since 1970, so that who builds it again gets the same
/// (reproducible-builds.org, "SOURCE_DATE_EPOCH").
const DATE_VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// What every command means by its exit status, but for `abey run`, which gives the program's own.
const STATUS: [(&str, &str); 4] = [
    ("0", "Done."),
    ("1", "A check failed, or the kernel refused."),
    ("2", "The command line or a file that it names asks for what cannot be."),
    ("3", "The machine lacks something: a capability, a device, a feature of the kernel."),
];

/// The commands that read a policy.
const OF_POLICIES: [&str; 4] = ["abey", "abey-apply", "abey-dump", "abey-tune"];

/// The commands that change settings of the kernel.
const OF_JOURNALS: [&str; 5] = ["abey", "abey-apply", "abey-run", "abey-set", "abey-tune"];

/// The commands that give a program the library.
const OF_LIBRARY: [&str; 4] = ["abey", "abey-apply", "abey-bench", "abey-run"];

/// Writes the pages of the command and of its subcommands at every level, but for hidden ones.
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

/// The subcommands that have pages: `help` is clap's own, and explains itself.
fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help")
}

/// The day of this time, as a page's date; nothing without one.
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
    more(page).to_writer(&mut text)?;
    // Before a list of values clap breaks the line twice, around an empty one, which mandoc complains of.
    let text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", ".sp\n");
    let path = directory.join(man.get_filename());
    fs::write(&path, text)?;
    Ok(path)
}

/// The sections that follow clap's.
fn more(page: &Command) -> Roff {
    let mut roff = Roff::default();
    let name = page_name(page);
    let name = name.as_str();
    let is_of = |commands: &[&str]| commands.contains(&name);
    let mut status: Vec<(&str, &str)> = STATUS.to_vec();
    if name == "abey-run" {
        status[0] = ("the program's", "The program ran and ended; 128 and the signal's number if a signal ended it.");
    }
    section(&mut roff, "EXIT STATUS", &status);
    if is_of(&OF_LIBRARY) {
        let place =
            format!("The path of {FILE_NAME}, in place of looking beside the command and in ../lib and ../lib/abey.");
        section(&mut roff, "ENVIRONMENT", &[(LIBRARY_VARIABLE, &place)]);
    }
    let journal = format!("{JOURNAL_DIRECTORY}/");
    let mut files = Vec::new();
    if is_of(&OF_POLICIES) {
        files.push(("/etc/abey/policy.toml", "The machine's policy."));
        files.push(("/etc/abey/policy.d/*.toml", "Fragments of it, read in the order of their names."));
        files.push(("/usr/share/abey/profiles/*.toml", "Fragments for servers, to copy from."));
    }
    if is_of(&OF_JOURNALS) {
        files.push((&journal, "What was there before a change, until it is put back or kept."));
    }
    if !files.is_empty() {
        section(&mut roff, "FILES", &files);
    }
    roff.control("SH", ["SEE ALSO"]);
    let others = subcommands(page).map(page_name).chain((name != "abey").then(|| String::from("abey")));
    let also = others.flat_map(|other| [bold(other), roman("(1), ")]);
    roff.text(also.chain([roman("the kernel's Documentation/networking/napi.rst")]).collect::<Vec<_>>());
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
    fn a_page_is_dated_by_the_build_and_not_by_the_clock() {
        assert_eq!(date(None).expect("no date"), "");
        assert_eq!(date(Some("1700000000")).expect("a date"), "2023-11-14");
        let error = date(Some("yesterday")).expect_err("no number").to_string();
        assert!(error.contains("SOURCE_DATE_EPOCH=yesterday"), "{error}");
    }
}
