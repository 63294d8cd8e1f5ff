//! The server of a bench, from its arguments.

use std::ffi::OsString;
use std::path::Path;

use abey_bench::App;
use abey_bench::app::{CommandLine, Protocol, installed};
use abey_supervise::program::{find_program, why_not_preloaded};

use super::{Args, ProtocolChoice, WorldChoice};
use crate::failure::Failure;

/// Returns the server that `--app`, `--port` and `--protocol` name.
pub(super) fn app(args: &Args, exe: &Path) -> Result<App, Failure> {
    let Some(choice) = &args.app else { return Ok(App::find(exe)) };
    let app = match choice.as_str() {
        "kv" => Some(App::BuiltIn(exe.to_owned())),
        "memcached" => Some(App::Memcached(find("memcached")?)),
        "redis" | "redis-server" => Some(App::Redis(find("redis-server")?)),
        _ => None,
    };
    let Some(app) = app else { return command(args, choice).map(App::Command) };
    let given = [(args.port.is_some(), "--port"), (args.protocol.is_some(), "--protocol")];
    match given.into_iter().find(|(given, _)| *given) {
        Some((_, option)) => {
            Err(Failure::usage(format!("{option} is for a CMD only: leave it out with --app {choice}")))
        }
        None => Ok(app),
    }
}

fn find(name: &str) -> Result<std::path::PathBuf, Failure> {
    installed(name).ok_or_else(|| Failure::lacks(format!("{name} is not installed: install it, or use --app kv")))
}

/// Parses a command line, which needs `--port` and `--protocol`.
fn command(args: &Args, text: &str) -> Result<CommandLine, Failure> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| Failure::usage(format!("--app `{text}` is no command line: check its quotes")))?;
    let program = find_program(&OsString::from(&words[0]))?;
    let missing =
        |option| Failure::usage(format!("--app `{text}` needs {option}: the load must know its port and protocol"));
    let port = args.port.ok_or_else(|| missing("--port N"))?;
    let protocol = args.protocol.ok_or_else(|| missing("--protocol memcached, redis or http"))?;
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
