//! Finding running datapaths, and asking several at once.
//!
//! A user who is not root finds his own. Root finds those of every user, so what root reads here was put there by users whom
//! root does not trust: directories that are none, thousands of sockets, sockets that never answer. None of it is an error of
//! the command. All datapaths are asked at the same time, those of other users within [`FOREIGN_LIMIT`].

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::client::{ANSWER_TIMEOUT, Client};
use super::directory::{self, LeftOut, Place};
use super::error::ControlError;
use super::protocol::{Answer, MAX_ANSWER, Query, Request};
use super::status::Status;

/// How long datapaths of other users may take for their answers, all together.
const FOREIGN_LIMIT: Duration = Duration::from_secs(1);

/// The longest answer that is read from a datapath of another user, in bytes.
const MAX_FOREIGN_ANSWER: usize = 1 << 20;

/// The most users whose datapaths are described line by line.
const MAX_USERS: usize = 8;

/// A datapath that was found and cannot be reached.
#[derive(Debug)]
pub struct Unreachable {
    /// Its process; 0 if it is not known.
    pub pid: u32,
    /// The user whose datapath it is, if it is not that of this process.
    pub user: Option<u32>,
    /// The reason.
    pub error: ControlError,
}

/// Connects to every datapath of this user; for root, to those of every user with a runtime directory. Removes the sockets
/// of this user's processes that have ended.
///
/// # Errors
/// The user has no directory for control sockets, or it cannot be read.
pub fn find() -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    connect_all(directory::places()?)
}

/// Connects to every datapath in one directory ([`crate::Runtime::serve_control_in`]).
///
/// # Errors
/// The directory cannot be read.
pub fn find_in(directory: &Path) -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    connect_all(vec![Place::own(directory.to_owned())])
}

fn connect_all(places: Vec<Place>) -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    let (found, left_out) = directory::find(places)?;
    let clients = found.into_iter().filter_map(|found| {
        let (pid, user) = (found.pid, found.foreign_user());
        Client::connect(found).map_err(|error| Unreachable { pid, user, error }).transpose()
    });
    let left_out = left_out.into_iter().map(|LeftOut { user, path }| {
        Err(Unreachable { pid: 0, user: Some(user), error: ControlError::TooMany { path } })
    });
    Ok(clients.chain(left_out).collect())
}

/// Asks datapaths for their status, all at the same time. A client without an answer is to be dropped: a late answer would be
/// taken for that to the next request.
pub fn statuses(clients: Vec<Client>) -> Vec<(Client, Result<Status, ControlError>)> {
    let answers = ask_all(&clients, &Query::Status);
    let status = |(client, answer): (Client, Result<Answer, ControlError>)| {
        let status = answer.and_then(|answer| client.to_status(answer));
        (client, status)
    };
    clients.into_iter().zip(answers).map(status).collect()
}

/// Sends a query to each client and returns the answers, in the same order.
fn ask_all(clients: &[Client], query: &Query) -> Vec<Result<Answer, ControlError>> {
    let mut line = serde_json::to_vec(&Request::new(query.clone())).expect("every query can be written as JSON");
    line.push(b'\n');
    let since = Instant::now();
    let mut exchanges: Vec<Exchange<'_>> = clients.iter().map(|client| Exchange::new(client, &line)).collect();
    loop {
        let elapsed = since.elapsed();
        exchanges.iter_mut().for_each(|exchange| exchange.expire(elapsed));
        let mut open: Vec<&mut Exchange<'_>> = exchanges.iter_mut().filter(|one| one.result.is_none()).collect();
        let Some(left) = open.iter().map(|one| one.limit().saturating_sub(elapsed)).min() else { break };
        let timeout = Timespec::try_from(left + Duration::from_millis(1)).ok();
        let mut descriptors: Vec<PollFd<'_>> =
            open.iter().map(|one| PollFd::new(&one.client.socket, one.interest())).collect();
        if poll(&mut descriptors, timeout.as_ref()).is_err() {
            continue;
        }
        let ready: Vec<bool> = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        drop(descriptors);
        open.iter_mut().zip(ready).filter(|(_, ready)| *ready).for_each(|(exchange, _)| exchange.advance());
    }
    let answer = |exchange: Exchange<'_>| {
        exchange.result.expect("no exchange is open").and_then(|line| exchange.client.parse(&line))
    };
    exchanges.into_iter().map(answer).collect()
}

/// One request and its answer.
struct Exchange<'a> {
    client: &'a Client,
    unsent: &'a [u8],
    input: Vec<u8>,
    result: Option<Result<Vec<u8>, ControlError>>,
}

impl<'a> Exchange<'a> {
    fn new(client: &'a Client, request: &'a [u8]) -> Self {
        Self { client, unsent: request, input: Vec::new(), result: None }
    }

    fn limit(&self) -> Duration {
        if self.client.user.is_some() { FOREIGN_LIMIT } else { ANSWER_TIMEOUT }
    }

    fn interest(&self) -> PollFlags {
        if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    fn expire(&mut self, elapsed: Duration) {
        if self.result.is_none() && elapsed >= self.limit() {
            self.result = Some(Err(ControlError::Silent { pid: self.client.pid() }));
        }
    }

    /// Sends or receives as much as is possible without blocking.
    fn advance(&mut self) {
        let step = if self.unsent.is_empty() { self.receive() } else { self.send() };
        if let Err(error) = step
            && !matches!(error, Errno::AGAIN | Errno::INTR)
        {
            self.result = Some(Err(self.client.failed(error)));
        }
    }

    fn send(&mut self) -> Result<(), Errno> {
        let sent = send(&self.client.socket, self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        self.unsent = &self.unsent[sent..];
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Errno> {
        let mut part = [0; 16 << 10];
        let (count, _) = recv(&self.client.socket, &mut part[..], RecvFlags::DONTWAIT)?;
        self.input.extend_from_slice(&part[..count]);
        let longest = if self.client.user.is_some() { MAX_FOREIGN_ANSWER } else { MAX_ANSWER };
        if self.input.last() == Some(&b'\n') {
            self.result = Some(Ok(std::mem::take(&mut self.input)));
        } else if count == 0 {
            self.result = Some(Err(ControlError::Gone { pid: self.client.pid() }));
        } else if self.input.len() > longest {
            self.input = Vec::new();
            self.result = Some(Err(self.client.invalid("an answer that is too long")));
        }
        Ok(())
    }
}

/// Describes datapaths that were not reached: those of this user that are silent in one line, and those of each other user in
/// one line.
pub fn describe(unreachable: &[Unreachable]) -> Vec<String> {
    let (mut silent, mut lines) = (Vec::new(), Vec::new());
    let mut foreign: BTreeMap<u32, Vec<&ControlError>> = BTreeMap::new();
    for Unreachable { pid, user, error } in unreachable {
        match (user, error) {
            (Some(user), error) => foreign.entry(*user).or_default().push(error),
            (None, ControlError::Silent { .. }) => silent.push(*pid),
            (None, error) => lines.push(error.to_string()),
        }
    }
    match silent[..] {
        [] => {}
        [pid] => lines.push(ControlError::Silent { pid }.to_string()),
        _ => {
            let pids: Vec<String> = silent.iter().map(ToString::to_string).collect();
            lines.push(format!(
                "processes {} do not answer on their control sockets: continue those that are stopped (kill -CONT PID)",
                pids.join(", ")
            ));
        }
    }
    let users = foreign.len();
    lines.extend(foreign.into_iter().take(MAX_USERS).map(|(user, errors)| of_user(user, &errors)));
    if users > MAX_USERS {
        lines.push(format!("the same is true of {} other users", users - MAX_USERS));
    }
    lines
}

/// Describes what is wrong with the datapaths of another user. The numbers of his processes are left out: he chose them.
fn of_user(user: u32, errors: &[&ControlError]) -> String {
    let silent = errors.iter().filter(|error| matches!(error, ControlError::Silent { .. })).count();
    let others = errors.iter().find(|error| !matches!(error, ControlError::Silent { .. }));
    let counted =
        |count: usize| if count == 1 { "a control socket".to_owned() } else { format!("{count} control sockets") };
    match (silent, others) {
        (silent, None) => format!("user {user} has {} without an answer", counted(silent)),
        (0, Some(error)) => format!("user {user} has {} that cannot be used: {error}", counted(errors.len())),
        (silent, Some(error)) => {
            let rest = errors.len() - silent;
            format!("user {user} has {} without an answer and {rest} that cannot be used: {error}", counted(silent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_datapaths_are_named_in_one_line_for_each_user() {
        let one = |pid, user| Unreachable { pid, user, error: ControlError::Silent { pid } };
        let all: Vec<Unreachable> =
            (1..4).map(|pid| one(pid, None)).chain((0..300).map(|pid| one(pid, Some(1000)))).collect();
        let lines = describe(&all);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("processes 1, 2, 3 do not answer"), "{lines:?}");
        assert_eq!(lines[1], "user 1000 has 300 control sockets without an answer");
        assert_eq!(describe(&all[..1]), [ControlError::Silent { pid: 1 }.to_string()]);
        let users: Vec<Unreachable> = (0..100).map(|user| one(1, Some(user))).collect();
        assert_eq!(describe(&users).len(), MAX_USERS + 1);
    }
}
