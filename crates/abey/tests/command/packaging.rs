//! The contents of `packaging/`, checked without a network and without installing anything. `packaging/check-package` and
//! `packaging/check-manifests` check the rest.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{ABEY, has, library};

/// Highest exposure level of a unit that `systemd-analyze security` may report, in tenths. Up to 4.4 it reports "OK".
const MOST_EXPOSED: &str = "30";

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").canonicalize().expect("packaging/")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs a program that must succeed and print nothing.
fn silently(program: &str, arguments: &[&str], file: &Path) {
    let output = Command::new(program).args(arguments).arg(file).output().expect(program);
    assert!(output.status.success() && said(&output).is_empty(), "{program} {}: {}", file.display(), said(&output));
}

/// Runs `abey generate WHAT DIRECTORY` and returns the files that it wrote.
fn generate(what: &str, directory: &Path) -> Vec<PathBuf> {
    let mut command = Command::new(ABEY);
    command.env("SOURCE_DATE_EPOCH", "1700000000").args(["generate", what]).arg(directory);
    let output = command.output().expect("abey");
    assert!(output.status.success(), "{}", said(&output));
    let files: Vec<PathBuf> = String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect();
    assert_eq!(files.len(), fs::read_dir(directory).expect("directory").count(), "it names what it writes");
    files
}

/// Returns the commands that `abey help` lists.
fn commands() -> Vec<String> {
    let output = Command::new(ABEY).arg("help").output().expect("abey");
    let text = said(&output);
    let list = text.split("Commands:\n").nth(1).expect("a list of commands");
    let lines = list
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = lines.map(|line| line.split_whitespace().next().expect("a name").to_owned()).collect();
    assert!(names.len() > 5, "{text}");
    names.into_iter().filter(|name| name != "help").collect()
}

#[test]
fn every_command_has_a_manual_page_that_renders_without_warnings() {
    let directory = tempfile::tempdir().expect("directory");
    let pages = generate("man", directory.path());
    let wanted: Vec<String> =
        [String::from("abey.1")].into_iter().chain(commands().iter().map(|name| format!("abey-{name}.1"))).collect();
    for name in &wanted {
        assert!(directory.path().join(name).is_file(), "{name} is missing");
    }
    // Subcommands of a command have pages as well.
    assert!(directory.path().join("abey-serve-kv.1").is_file(), "{pages:?}");
    let hidden =
        |page: &PathBuf| ["guard", "generate", "help"].iter().any(|name| page.ends_with(format!("abey-{name}.1")));
    assert!(!pages.iter().any(hidden), "{pages:?}");
    for page in &pages {
        let text = fs::read_to_string(page).expect("a page");
        assert!(text.contains(".SH \"EXIT STATUS\"") && text.contains("2023-11-14"), "{}", page.display());
    }
    if has("mandoc") {
        pages.iter().for_each(|page| silently("mandoc", &["-T", "lint", "-W", "warning"], page));
    }
    if has("man") {
        for page in &pages {
            let mut command = Command::new("man");
            command.env("LC_ALL", "C.UTF-8").args(["--warnings", "-E", "UTF-8", "-l"]).arg(page);
            let output = command.output().expect("man");
            let warned = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && warned.is_empty(), "man {}: {warned}", page.display());
        }
    }
}

#[test]
fn shells_take_their_completions_and_bash_completes() {
    let directory = tempfile::tempdir().expect("directory");
    generate("completions", directory.path());
    for (shell, file) in [("bash", "abey.bash"), ("zsh", "_abey"), ("fish", "abey.fish")] {
        if has(shell) {
            silently(shell, &["-n"], &directory.path().join(file));
        }
    }
    if !has("bash") {
        return;
    }
    let completed = |words: &str, last: usize| {
        let script = format!(
            ". {}/abey.bash; COMP_WORDS=({words}) COMP_CWORD={last}; \
             _abey abey \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\"",
            directory.path().display()
        );
        said(&Command::new("bash").args(["-c", &script]).output().expect("bash")).trim().to_owned()
    };
    assert_eq!(completed("abey ru", 1), "run");
    assert_eq!(completed("abey run --stri", 2), "--strict");
    // What is hidden from the help is hidden here.
    assert_eq!(completed("abey guar", 1), "");
    assert_eq!(completed("abey run --journ", 2), "");
}

#[test]
fn units_are_valid_and_have_a_low_exposure_level() {
    if !has("systemd-analyze") {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    for unit in ["abey-apply.service", "abey-exporter.service"] {
        let text = fs::read_to_string(packaging().join("systemd").join(unit)).expect("a unit");
        let started = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/abey ")).expect(unit);
        let command = started.split_whitespace().next().expect("a command");
        assert!(commands().iter().any(|name| name == command), "{unit} runs abey {command}");
        let path = directory.path().join(unit);
        fs::write(&path, text.replace("/usr/bin/abey", ABEY)).expect("a unit");
        let verified =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().expect("it starts");
        // It loads units that the machine has, too, and complains about those.
        let complaints: Vec<String> =
            said(&verified).lines().filter(|line| line.contains(unit)).map(str::to_owned).collect();
        assert!(verified.status.success() && complaints.is_empty(), "{complaints:?}");
        let threshold = format!("--threshold={MOST_EXPOSED}");
        let arguments = ["security", "--offline=true", "--no-pager", &threshold];
        let output = Command::new("systemd-analyze").args(arguments).arg(&path).output().expect("systemd-analyze");
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        eprintln!("{unit}: {}", text.lines().last().unwrap_or_default());
    }
}

#[test]
fn the_exporter_without_root_selects_collectors_that_work() {
    let text = fs::read_to_string(packaging().join("systemd/exporter-without-root.conf")).expect("a drop-in");
    let started =
        text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/abey exporter ")).expect("a command");
    let arguments = started.strip_suffix(" $ARGS").expect("the administrator's arguments").split_whitespace();
    let output = Command::new(ABEY).args(["exporter", "--once", "--interval", "10ms"]).args(arguments).output();
    let output = output.expect("the command");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!said(&output).contains("collector=\"datapath\""), "{}", said(&output));
}

#[test]
fn every_value_of_a_profile_has_a_comment() {
    let mut profiles: Vec<String> = Vec::new();
    for file in fs::read_dir(packaging().join("profiles")).expect("profiles") {
        let path = file.expect("a profile").path();
        let text = fs::read_to_string(&path).expect("a profile");
        let mut explained = false;
        for (number, line) in text.lines().enumerate() {
            let (value, comment) = (line.split('#').next().unwrap_or_default().trim(), line.contains('#'));
            if value.contains('=') && !value.starts_with('[') && value != "version = 1" {
                let names_what = value.starts_with("unit =");
                assert!(comment || explained || names_what, "{}, line {}: no reason", path.display(), number + 1);
            }
            // A comment on a line by itself describes the line that follows.
            explained = value.is_empty() && comment;
        }
        profiles.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
    }
    profiles.sort();
    assert_eq!(profiles, ["h2o", "haproxy", "memcached", "nginx", "redis"]);
}

#[test]
fn the_package_lists_existing_files() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(here.join("Cargo.toml")).expect("Cargo.toml");
    let assets = manifest.split("\nassets = [").nth(1).expect("the package's assets");
    let sources = assets.lines().filter_map(|line| line.trim().strip_prefix("[\"")?.split('"').next());
    let ours: Vec<&str> = sources.filter(|source| !source.starts_with("target/")).collect();
    assert!(ours.len() >= 5, "{ours:?}");
    for source in ours {
        let path = here.join(source.trim_end_matches("/*.toml"));
        assert!(path.exists(), "{source} is not there");
    }
    for script in ["build-deb", "check-package", "check-booted", "check-manifests", "debian/postrm"] {
        let path = packaging().join(script);
        let mode = fs::metadata(&path).expect(script).permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script} is executable");
        if has("bash") {
            silently("bash", &["-n"], &path);
        }
    }
}

/// `cargo install` installs the command alone.
#[test]
fn an_installed_command_reports_a_missing_library_and_finds_it_at_the_reported_paths() {
    let prefix = tempfile::tempdir().expect("directory");
    let prefix = prefix.path().canonicalize().expect("a path");
    let (exe, lib) = (prefix.join("bin/abey"), prefix.join("lib"));
    fs::create_dir_all(prefix.join("bin")).expect("bin");
    crate::common::copy_program(Path::new(ABEY), &exe);
    let run = || {
        let mut command = Command::new(&exe);
        command.env_remove("ABEY_LIBRARY").args(["run", "--mode", "suspend20", "--dev", "no-such-dev0", "--", "true"]);
        command.output().expect("abey")
    };
    let output = run();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [exe.to_str(), lib.to_str(), Some("cargo build --release -p abey-preload"), Some("ABEY_LIBRARY")] {
        assert!(text.contains(part.expect("UTF-8")), "{part:?} is not in: {text}");
    }
    for place in [lib.join("abey"), lib.clone()] {
        fs::create_dir_all(&place).expect("lib");
        let installed = place.join("libabey.so");
        fs::copy(library(), &installed).expect("the library");
        let text = said(&run());
        assert!(!text.contains("libabey.so") && text.contains("no-such-dev0"), "{text}");
        fs::remove_file(installed).expect("the library");
    }
}

#[test]
fn manifests_match_the_schemas_of_kubernetes() {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    if !cache.is_some_and(|cache| cache.join("abey/kubernetes-validate/bin/kubernetes-validate").is_file()) {
        eprintln!("skipped: the schemas are not here; packaging/check-manifests fetches them from PyPI");
        return;
    }
    let output = Command::new(packaging().join("check-manifests")).output().expect("check-manifests");
    assert!(output.status.success(), "{}", said(&output));
}

/// Asserts that `abey apply --dry-run` accepts a policy. The policy is for a device that this machine does not have, so the
/// result does not depend on the machine: without root the status is 3, and 2 would mean an invalid policy.
fn is_a_policy(name: &str, text: &str) {
    let elsewhere = [
        ("pci = \"*\"", "name = \"no-such-dev0\""),
        // Some machines have fewer than six CPUs, and a CPU that is missing is an error in the policy.
        ("cpus = \"0-3\"", "cpus = \"0\""),
        ("cpus = \"0-1\"", "cpus = \"0\""),
        ("cpus = \"2-5\"", "cpus = \"0\""),
    ];
    let text = elsewhere.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("policy.toml");
    fs::write(&file, text).expect("a policy");
    let mut command = Command::new(ABEY);
    let output =
        command.args(["apply", "--dry-run", "--units"]).args([directory.path(), &file]).output().expect("abey");
    assert!(matches!(output.status.code(), Some(0 | 3)), "{name}: {}", said(&output));
}

/// Returns the policy with its commented-out example lines in effect.
fn uncommented(text: &str) -> String {
    let is_toml = |rest: &str| {
        rest.starts_with("[[") || rest.split_once(" = ").is_some_and(|(key, _)| !key.is_empty() && !key.contains(' '))
    };
    let line = |line: &str| match line.strip_prefix("# ").filter(|rest| is_toml(rest)) {
        Some(rest) => format!("{rest}\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn shipped_policies_are_valid() {
    for file in fs::read_dir(packaging().join("profiles")).expect("profiles") {
        let path = file.expect("a profile").path();
        is_a_policy(&path.display().to_string(), &fs::read_to_string(&path).expect("a profile"));
    }
    let default = fs::read_to_string(packaging().join("etc/policy.toml")).expect("the default policy");
    is_a_policy("etc/policy.toml", &default);
    let example = uncommented(&default);
    assert!(example.contains("\n[[device.queues]]\n") && example.contains("\n[[program]]\n"), "{example}");
    // This machine does not have its device, which a program's device must not be.
    let example = example.replace("name = \"eth0\"", "optional = true\nname = \"no-such-dev0\"");
    let example = example.replace("device = \"eth0\"\nqueues = \"0-3\"", "mode = \"suspend20\"");
    is_a_policy("the example in etc/policy.toml", &example);
    let manifest = fs::read_to_string(packaging().join("kubernetes/policy.yaml")).expect("the ConfigMap");
    let policy = manifest.split(".toml: |\n").nth(1).expect("a policy");
    let policy: String =
        policy.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect();
    assert!(policy.contains("\n[[device]]\n"), "{policy}");
    is_a_policy("kubernetes/policy.yaml", &policy);
}

#[test]
fn no_container_gets_the_directory_whose_journals_the_node_carries_out() {
    let manifest = fs::read_to_string(packaging().join("kubernetes/daemonset.yaml")).expect("the DaemonSet");
    let lines = manifest.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let paths: Vec<&str> =
        lines.filter_map(|line| line.strip_prefix("hostPath: { path: ")?.split(',').next()).collect();
    assert_eq!(paths, ["/run/abey/daemonset", "/run/abey/control"]);
    assert_eq!(manifest.matches("hostPath").count(), paths.len() + 1, "another notation, or more than the comment");
    let unit = fs::read_to_string(packaging().join("systemd/abey-apply.service")).expect("the unit");
    assert!(unit.contains("RuntimeDirectory=abey\nRuntimeDirectoryMode=0700\n"));
}

/// Returns why an image's name may mean another image tomorrow. A digest and a version with a number after the first dot, a
/// snapshot's date or both name one image.
fn why_mutable(image: &str) -> Option<&'static str> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    if let Some(digest) = digest {
        let is_sha256 = |hex: &str| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        return (!digest.strip_prefix("sha256:").is_some_and(is_sha256)).then_some("its digest is no SHA-256 sum");
    }
    // A colon before the last slash belongs to a registry's port.
    let Some((_, tag)) = name.rsplit('/').next().and_then(|last| last.split_once(':')) else {
        return Some("it has no tag");
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_exact = |part: &str| {
        let is_version = part.split('.').count() == 3 && part.split('.').all(is_number);
        is_version || (part.len() == 8 && is_number(part))
    };
    (!tag.split('-').any(is_exact)).then_some("its tag has neither a version of three numbers nor a date")
}

#[test]
fn images_are_named_by_digest_or_exact_version() {
    let digest = format!("debian@sha256:{}", "0f".repeat(32));
    for fixed in
        ["docker.io/library/rust:1.95.0-bookworm", "debian:bookworm-20261005-slim", "a:5000/abey:0.1.0", &digest]
    {
        assert_eq!(why_mutable(fixed), None, "{fixed}");
    }
    for mutable in ["debian", "a:5000/debian", "debian:latest", "rust:1-bookworm", "rust:1.95", "debian@sha256:0f"] {
        assert!(why_mutable(mutable).is_some(), "{mutable}");
    }
    let mut images = Vec::new();
    let container = fs::read_to_string(packaging().join("Containerfile")).expect("the Containerfile");
    images
        .extend(container.lines().filter_map(|line| line.strip_prefix("FROM ")?.split(' ').next().map(str::to_owned)));
    assert_eq!(images.len(), 2, "{images:?}");
    for file in fs::read_dir(packaging().join("kubernetes")).expect("manifests") {
        let text = fs::read_to_string(file.expect("a manifest").path()).expect("a manifest");
        images.extend(text.lines().filter_map(|line| line.trim().strip_prefix("image: ").map(str::to_owned)));
    }
    assert!(images.len() > 4, "{images:?}");
    for image in images {
        assert_eq!(why_mutable(&image), None, "{image}");
    }
}
