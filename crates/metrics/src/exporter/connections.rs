//! The open connections of the exporter, of which there are few: one more replaces the oldest that has sent no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// The most open connections.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Connections, in the order in which they were accepted.
#[derive(Default)]
pub(super) struct Connections(Vec<Connection>);

struct Connection {
    task: AbortHandle,
    /// Whether its request has arrived.
    is_busy: Arc<AtomicBool>,
}

impl Connections {
    /// Adds a connection. If there are too many, closes the oldest that has sent no request; if all have sent one, the oldest.
    pub(super) fn add(&mut self, task: AbortHandle, is_busy: Arc<AtomicBool>) {
        if self.0.len() >= MAX_CONNECTIONS {
            self.0.retain(|one| !one.task.is_finished());
        }
        if self.0.len() >= MAX_CONNECTIONS {
            let idle = self.0.iter().position(|one| !one.is_busy.load(Ordering::Relaxed));
            self.0.remove(idle.unwrap_or(0)).task.abort();
        }
        self.0.push(Connection { task, is_busy });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_idle_connection_goes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut connections = Connections::default();
            let mut tasks = Vec::new();
            let mut add = |is_busy| {
                let task = tokio::spawn(std::future::pending::<()>());
                connections.add(task.abort_handle(), Arc::new(AtomicBool::new(is_busy)));
                tasks.push(task);
            };
            add(true);
            (1..MAX_CONNECTIONS).for_each(|_| add(false));
            (0..10).for_each(|_| add(false));
            tokio::task::yield_now().await;
            let ended: Vec<usize> = (0..tasks.len()).filter(|number| tasks[*number].is_finished()).collect();
            assert_eq!(ended, (1..=10).collect::<Vec<_>>());
        });
    }

    #[test]
    fn connections_that_have_ended_make_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut connections = Connections::default();
            for _ in 0..3 * MAX_CONNECTIONS {
                let task = tokio::spawn(async {});
                connections.add(task.abort_handle(), Arc::new(AtomicBool::new(true)));
                task.await.expect("not closed");
            }
            assert!(connections.0.len() <= MAX_CONNECTIONS);
        });
    }
}
