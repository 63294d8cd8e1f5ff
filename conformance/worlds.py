"""The two worlds in which a suite runs: the kernel's sockets, and Abey's on a NIC that connects a program to itself."""

import os
import shutil
import subprocess

KERNEL, OURS = "kernel", "abey"


class Worlds:
    """How a command is started in each world."""

    def __init__(self, abey, mode="base", queues=2):
        self.abey, self.mode, self.queues = abey, mode, queues
        # A namespace of its own keeps a suite off the machine's ports. It needs root.
        self.is_isolated = os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("ip") is not None

    def command(self, world, command):
        """Returns the command that runs `command` in a world."""
        if world == OURS:
            nic = ["--nic", "memory:self", "--nic-queues", str(self.queues)]
            command = [self.abey, "run", "--world", "datapath", "--mode", self.mode, *nic, "--", *command]
        if self.is_isolated:
            command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command]
        return command

    def run(self, world, command, limit, log, **options):
        """Runs a command in a world. Returns what [`execute`] returns."""
        return execute(self.command(world, command), limit, log, **options)

    def unprivileged(self, scratch, command):
        """Returns the command that runs `command` as a user who may write to `scratch`. Some suites refuse root."""
        if os.geteuid() != 0:
            return command
        subprocess.run(["chown", "-R", "nobody:nogroup", scratch], check=True)
        who = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]
        return [*who, "env", f"HOME={scratch}", f"TMPDIR={scratch}", *command]


def execute(command, limit, log, **options):
    """Runs a command for at most `limit` seconds. Returns its status, or None after the limit."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_group(process)


def end_group(process):
    """Kills what is left of the processes of a command."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait()
