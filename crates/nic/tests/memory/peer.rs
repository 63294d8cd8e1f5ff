//! The other process: this test binary, which echoes frames until it is killed if an environment variable is set.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use abey_nic::{Frame, Nic};

const ROLE: &str = "ABEY_NIC_TEST_ROLE";
const NAME: &str = "ABEY_NIC_TEST_NAME";

/// A running peer, killed at the latest when dropped.
pub(crate) struct Peer(Child);

impl Peer {
    /// Starts a peer that creates or attaches to the NIC and echoes.
    pub(crate) fn start(role: &str, name: &str) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "peer::echo", "--nocapture"])
            .envs([(ROLE, role), (NAME, name)])
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("start the peer"))
    }

    /// Kills it without a chance to say goodbye.
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: the body of the peer. Without its environment it has nothing to do.
#[test]
fn echo() {
    let (Ok(role), Ok(name)) = (std::env::var(ROLE), std::env::var(NAME)) else { return };
    let mut nic: Nic = if role == "create" { super::create(&name) } else { super::attach(&name).expect("attach") };
    let mut queues = nic.take_queues();
    let mut frames = Frame::burst(32, 1500);
    let end = Instant::now() + Duration::from_secs(60);
    let mut turn = 0;
    while Instant::now() < end {
        let mut idle = true;
        for queue in &mut queues {
            let count = queue.receive(&mut frames).expect("receive");
            let mut sent = 0;
            while sent < count {
                sent += queue.transmit(&frames[sent..count]).expect("transmit");
                queue.kick().expect("kick");
            }
            idle &= count == 0;
        }
        if idle {
            turn += 1;
            super::sleep(&mut queues[turn % 2]);
        }
    }
}
