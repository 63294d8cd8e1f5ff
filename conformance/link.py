"""Two network namespaces with a veth pair between them, for suites whose server and client are different processes.

The client is in one namespace, over the kernel's TCP. The server is in the other: over the kernel in one world, and over
Abey's AF_XDP datapath in the other. So a suite needs the server's address in place of 127.0.0.1, and a server's program
that enters its namespace, which is all that differs from its own set-up.
"""

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import sys

from worlds import OURS, end_group, execute

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
DEVICE = "server0"
NUMBERS = itertools.count()


def why_not():
    """Returns why there can be no link, if so."""
    if os.geteuid() != 0:
        return "it makes network namespaces: run as root"
    missing = [program for program in ("ip", "nsenter", "ethtool") if not shutil.which(program)]
    return f"{missing[0]} is missing" if missing else None


class Link:
    """The namespaces, which exist within a `with` statement."""

    def __init__(self, world, worlds):
        self.world, self.worlds = world, worlds
        # Both worlds run at the same time.
        name = f"abey-conformance-{os.getpid()}-{next(NUMBERS)}"
        self.server, self.client = f"{name}-server", f"{name}-client"

    def __enter__(self):
        ip("netns", "add", self.server)
        ip("netns", "add", self.client)
        ip("link", "add", DEVICE, "netns", self.server, "type", "veth", "peer", "name", "client0", "netns", self.client)
        for namespace, device, address in ((self.server, DEVICE, SERVER), (self.client, "client0", CLIENT)):
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "link", "set", device, "up")
            # Partial checksums are what the datapath would see as wrong ones.
            off = ["ethtool", "-K", device, "tx", "off", "tso", "off"]
            subprocess.run(self.inside(namespace, off), check=True, stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        print(f"{self.world}: the server's kernel had {self.connections()} TCP connections", file=sys.stderr, flush=True)
        for namespace in (self.server, self.client):
            ip("netns", "del", namespace)

    def connections(self):
        """Returns the number of TCP connections that the kernel of the server's namespace has begun or accepted: in the kernel's
        world all, in ours those that the datapath did not have."""
        command = self.inside(self.server, ["cat", "/proc/net/snmp"])
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
        counters = dict(zip(names, values))
        return int(counters["ActiveOpens"]) + int(counters["PassiveOpens"])

    def inside(self, namespace, command):
        return ["nsenter", f"--net=/run/netns/{namespace}", *command]

    def serve(self, command):
        """Returns the command that runs a server. While another server has the datapath, one is the kernel's."""
        if self.world == OURS:
            nic = ["--nic", f"af_xdp:{DEVICE}", "--mode", self.worlds.mode]
            command = [self.worlds.abey, "run", "--world", "datapath", *nic, "--", *command]
        return self.inside(self.server, command)

    def wrap(self, path, program, *plain):
        """Writes a program to `path` that runs `program` as a server; without a server if its first argument is in `plain`."""
        cases = "".join(f'[ "$1" = {one} ] && exec {shlex.quote(str(program))} "$@"\n' for one in plain)
        path.write_text(f'#!/bin/sh\n{cases}exec {shlex.join(self.serve([str(program)]))} "$@"\n')
        path.chmod(0o755)

    @contextlib.contextmanager
    def running(self, command, log, **options):
        """Runs a server within a `with` statement."""
        with open(log, "ab") as output:
            command = self.serve(command)
            options = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **options}
            server = subprocess.Popen(command, start_new_session=True, **options)
        try:
            yield
        finally:
            end_group(server)

    def run(self, command, limit, log, **options):
        """Runs a client. Returns what [`execute`] returns."""
        return execute(self.inside(self.client, command), limit, log, **options)


def ip(*words):
    subprocess.run(["ip", *words], check=True)
