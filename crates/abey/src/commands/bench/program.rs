//! The server that a bench measures, by what was said of it.

use std::ffi::OsString;
use std::path::Path;

use abey_bench::App;
use abey_bench::app::{CommandLine, Protocol, installed};

use super::{Args, ProtocolChoice, WorldChoice};
use crate::failure::Failure;
use crate::program::{find_program, why_not_preloaded};

/// What `--app`, `--port` and `--protocol` ask for.
pub(super) fn app(args: &Args, exe: &Path) -> Result<App, Failure> {
    let Some(choice) = &args.app else { return Ok(App::find(exe)) };
    let known = match choice.as_str() {
        "kv" => Some(App::BuiltIn(exe.to_owned())),
        "memcached" => Some(App::Memcached(find("memcached")?)),
        "redis" | "redis-server" => Some(App::Redis(find("redis-server")?)),
        _ => None,
    };
    let Some(app) = known else { return command(args, choice).map(App::Command) };
    let given = [(args.port.is_some(), "--port"), (args.protocol.is_some(), "--protocol")];
    match given.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Failure::usage(format!("{option} is for a CMD of your own: {choice} has its own"))),
        None => Ok(app),
    }
}

fn find(name: &str) -> Result<std::path::PathBuf, Failure> {
    installed(name).ok_or_else(|| Failure::lacks(format!("{name} is not installed: install it, or use --app kv")))
}

/// A command line, which must be whole and say what it speaks.
fn command(args: &Args, text: &str) -> Result<CommandLine, Failure> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| Failure::usage(format!("--app `{text}` is no command line: check its quotes")))?;
    let program = find_program(&OsString::from(&words[0]))?;
    let said = |option| {
        Failure::usage(format!(
            "--app `{text}` needs {option}: the load has to know where it listens and what it speaks"
        ))
    };
    let port = args.port.ok_or_else(|| said("--port N"))?;
    let protocol = args.protocol.ok_or_else(|| said("--protocol memcached, redis or http"))?;
    if args.world == Some(WorldChoice::Both)
        && let Some(why) = why_not_preloaded(&program)
    {
        return Err(Failure::lacks(format!(
            "{} {why}, so it cannot run over the datapath: use --world linux",
            program.display()
        )));
    }
    let protocol = match protocol {
        ProtocolChoice::Memcached => Protocol::Memcached,
        ProtocolChoice::Redis => Protocol::Redis,
        ProtocolChoice::Http => Protocol::Http,
    };
    Ok(CommandLine { program, arguments: words[1..].to_vec(), port, protocol })
}
