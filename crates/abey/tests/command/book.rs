//! The book in `docs/book`: its links have targets, its commands and files are accepted, and its pictures are what the simulator
//! draws now.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pulldown_cmark::{CodeBlockKind, CowStr, Event, Options, Parser, Tag, TagEnd};

/// A page, relative to the book's source.
struct Page {
    path: PathBuf,
    text: String,
}

/// A fenced block of a page.
struct Block {
    /// Page and line, for messages.
    place: String,
    /// The info string of the fence: `console`, `toml,settings`.
    info: String,
    text: String,
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src")
}

fn abey(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abey")).args(args).output().expect("abey starts")
}

fn events(text: &str) -> impl Iterator<Item = (Event<'_>, std::ops::Range<usize>)> {
    Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter()
}

fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    let mut directories = vec![source()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("the book's source is there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).expect("a page is text");
                pages.push(Page { path: path.strip_prefix(source()).expect("it is in it").to_owned(), text });
            }
        }
    }
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(pages.len() > 10, "the book has pages: {}", pages.len());
    pages
}

/// Returns the targets of a page's links and images, as they are written.
fn links(text: &str) -> Vec<String> {
    let destination = |event: Event<'_>| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url.into_string()),
        _ => None,
    };
    events(text).filter_map(|(event, _)| destination(event)).collect()
}

/// Returns the anchors of a page's headings, as mdBook makes them: letters and digits in lower case, `-` for spaces.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut heading) = (BTreeSet::new(), None::<String>);
    for (event, _) in events(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(more) | Event::Code(more), Some(heading)) => heading.push_str(&more),
            (Event::End(TagEnd::Heading(_)), Some(_)) => {
                let text = heading.take().unwrap_or_default();
                let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                anchors.insert(kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect());
            }
            _ => {}
        }
    }
    anchors
}

fn blocks(page: &Page) -> Vec<Block> {
    let (mut blocks, mut open) = (Vec::new(), None::<Block>);
    for (event, range) in events(&page.text) {
        match (event, &mut open) {
            (Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))), _) => {
                let line = page.text[..range.start].lines().count() + 1;
                let place = format!("{}, line {line}", page.path.display());
                open = Some(Block { place, info: CowStr::into_string(info), text: String::new() });
            }
            (Event::Text(more), Some(block)) => block.text.push_str(&more),
            (Event::End(TagEnd::CodeBlock), Some(_)) => blocks.extend(open.take()),
            _ => {}
        }
    }
    blocks
}

#[test]
fn every_page_is_in_the_summary_and_every_link_has_a_target() {
    let pages = pages();
    let summary = pages.iter().find(|page| page.path == Path::new("SUMMARY.md")).expect("there is a summary");
    let listed: BTreeSet<PathBuf> = links(&summary.text).into_iter().map(PathBuf::from).collect();
    for page in pages.iter().filter(|page| page.path != Path::new("SUMMARY.md")) {
        assert!(listed.contains(&page.path), "{} is not in SUMMARY.md", page.path.display());
    }
    for page in &pages {
        for link in links(&page.text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let place = page.path.display();
            let here = source().join(&page.path);
            let target = if path.is_empty() { here } else { here.with_file_name(path) };
            assert!(target.is_file(), "{place}: there is no {link}");
            if !anchor.is_empty() {
                let text = fs::read_to_string(&target).expect("a page is text");
                assert!(anchors(&text).contains(anchor), "{place}: no heading for {link}: {:?}", anchors(&text));
            }
        }
    }
}

/// Returns the line with a number in place of every `$(...)`, which the book uses for process IDs.
fn without_substitutions(line: &str) -> String {
    let mut parts = line.split("$(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + "1" + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// Returns the arguments of each `abey` command in a shell line, without pipes, redirections and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(&without_substitutions(line)).unwrap_or_else(|| panic!("no shell would take: {line}"));
    let mut commands: Vec<Vec<String>> = Vec::new();
    let mut inside = false;
    let mut skip = false;
    for word in words {
        let ends = matches!(word.as_str(), "|" | "&" | "&&" | ";" | "||") || word.starts_with('#');
        if std::mem::take(&mut skip) {
            continue;
        }
        if ends {
            inside = false;
        } else if matches!(word.as_str(), ">" | "2>" | ">>" | "<") {
            skip = true;
        } else if word == "abey" && !inside {
            commands.push(Vec::new());
            inside = true;
        } else if inside && let Some(command) = commands.last_mut() {
            command.push(word);
        }
    }
    commands
}

/// Returns the shell lines of a block: those after a prompt in a session, every line of a script. `\` continues a line.
fn shell_lines(block: &Block) -> Vec<String> {
    let text = block.text.replace("\\\n", " ");
    match block.info.as_str() {
        "console" => text.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect(),
        "sh" => text.lines().filter(|line| !line.trim_start().starts_with('#')).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// Appends `--help` to every command: it is not reached if the command does not have an option or rejects its value.
#[test]
fn abey_accepts_every_command_line() {
    let mut checked = 0;
    for page in pages() {
        for block in blocks(&page) {
            for line in shell_lines(&block) {
                for mut words in commands(&line) {
                    let at = words.iter().position(|word| word == "--").unwrap_or(words.len());
                    words.truncate(at);
                    words.push("--help".to_owned());
                    let args: Vec<&str> = words.iter().map(String::as_str).collect();
                    let output = abey(&args);
                    let said = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{}: `{line}`: {said}", block.place);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 40, "the book shows commands: {checked}");
}

/// Writes a block to a file, and runs a command that reads it.
fn read_with(block: &Block, args: &[&str]) -> Output {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
    fs::write(file.path(), &block.text).expect("it is written");
    let path = file.path().to_str().expect("UTF-8");
    let args: Vec<&str> = args.iter().map(|arg| if *arg == "FILE" { path } else { *arg }).collect();
    abey(&args)
}

#[test]
fn every_file_that_is_shown_is_accepted() {
    let mut checked = BTreeSet::new();
    for page in pages() {
        for block in blocks(&page) {
            let Some(kind) = block.info.strip_prefix("toml") else { continue };
            let args: &[&str] = match kind {
                ",settings" => &["sim", "timeline", "--settings", "FILE", "--json"],
                ",scenario" => &["sim", "FILE", "--json"],
                // Parsed only: `abey apply` would need the devices that the policy names.
                ",policy" => {
                    abey_policy::Policy::parse(&block.place, &block.text).unwrap_or_else(|error| panic!("{error}"));
                    checked.insert(kind.to_owned());
                    continue;
                }
                _ => panic!("{}: say what the TOML is: toml,settings, toml,scenario or toml,policy", block.place),
            };
            let output = read_with(&block, args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {said}", block.place);
            checked.insert(kind.to_owned());
        }
    }
    assert_eq!(checked.into_iter().collect::<Vec<_>>(), [",policy", ",scenario", ",settings"]);
}

/// Compares the policies in the how-to pages with the shipped profiles, except for their comments.
#[test]
fn the_fragments_of_the_how_tos_are_the_shipped_profiles() {
    let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/profiles");
    if !profiles.is_dir() {
        eprintln!("skipped: there are no shipped profiles");
        return;
    }
    for page in pages().iter().filter(|page| page.path.starts_with("howto")) {
        let file = profiles.join(page.path.file_name().expect("a name")).with_extension("toml");
        let shipped = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let shown = blocks(page).into_iter().find(|block| block.info == "toml,policy").expect("a fragment");
        let parse = |text: &str| text.parse::<toml::Table>().expect("it is TOML");
        assert_eq!(parse(&shown.text), parse(&shipped), "{}", shown.place);
    }
}

#[test]
fn the_pictures_are_what_the_simulator_draws() {
    let drawn = tempfile::tempdir().expect("a directory");
    let output = abey(&["sim", "timeline", "--all", drawn.path().to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = |directory: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(directory).expect("it is there").map(|entry| entry.expect("an entry").file_name());
        entries.map(|name| name.into_string().expect("UTF-8")).filter(|name| name.ends_with(".svg")).collect()
    };
    let kept = source().join("modes");
    let pages: String = pages().into_iter().map(|page| page.text).collect();
    assert_eq!(names(&kept), names(drawn.path()), "run `abey sim timeline --all docs/book/src/modes`");
    for name in names(drawn.path()) {
        let [now, then] = [drawn.path(), &kept].map(|place| fs::read_to_string(place.join(&name)).expect("a picture"));
        assert!(now == then, "{name} is not current: run `abey sim timeline --all docs/book/src/modes`");
        roxmltree::Document::parse(&now).expect("a picture is XML");
        assert!(pages.contains(&name), "no page shows {name}");
    }
}
