#!/usr/bin/env python3
"""Runs servers over the kernel, in a mode of the kernel's world and in a mode of the datapath, and compares the answers.

usage: conformance/programs.py [--abey target/debug/abey] [--mode suspend20] [--world WORLD ...] [PROGRAM ...]

Each server runs in a network namespace of its own, its client in another, with a veth pair between them. Needs root. Programs that are
not installed are skipped with a printed reason. The table has one row for each program:

    same     the client's commands end as they do over the kernel
    packets  packets that the datapath delivered (datapath only)
    kernel   established connections of the server in the kernel at the end of the client's commands (datapath only)
    end      status after SIGTERM (over the kernel), and what is left then that is not left over the kernel: processes, an XDP program
    said     the lines that `abey run` and libabey.so printed

With --strict, a program that the mode does not reach ends with status 3, which is right: its row says `strict`.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from servers import PROGRAMS

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER, CLIENT = "198.18.20.1", "198.18.20.2"
HANG_LIMIT = 120
READY_LIMIT = 60


class Network:
    """Two namespaces with a veth pair of `queues` queues between them."""

    def __init__(self, name, queues):
        self.server, self.client = f"abey-ps-{name}", f"abey-pc-{name}"
        self.near, self.far = "near0", "far0"
        self.remove()
        for netns in (self.server, self.client):
            ip("netns", "add", netns)
            ip("-n", netns, "link", "set", "lo", "up")
        count = str(queues)
        ip("-n", self.server, "link", "add", self.near, "numrxqueues", count, "numtxqueues", count, "type", "veth",
           "peer", "name", self.far, "numrxqueues", count, "numtxqueues", count, "netns", self.client)
        for netns, device, address in ((self.server, self.near, SERVER), (self.client, self.far, CLIENT)):
            ip("-n", netns, "address", "add", f"{address}/24", "dev", device)
            # A veth device has NAPI instances with GRO only, and computes checksums without offload only.
            subprocess.run(["ip", "netns", "exec", netns, "ethtool", "-K", device, "tx", "off", "gro", "on"], capture_output=True)
            ip("-n", netns, "link", "set", device, "up")

    def remove(self):
        for netns in (self.server, self.client):
            subprocess.run(["ip", "netns", "delete", netns], capture_output=True)

    def command(self, netns, words):
        return ["ip", "netns", "exec", netns, *words]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def listens(network, program):
    kind = "-Hlnu" if program.is_udp else "-Hlnt"
    done = subprocess.run(network.command(network.server, ["ss", kind, f"sport = :{program.port}"]), capture_output=True, text=True)
    return bool(done.stdout.strip())


def established(network, port):
    done = subprocess.run(network.command(network.server, ["ss", "-Htn", "state", "established", f"sport = :{port}"]),
                          capture_output=True, text=True)
    return len(done.stdout.splitlines())


def delivered(abey, network):
    done = subprocess.run(network.command(network.server, [abey, "status", "--json", "--interval", "10ms", f"af_xdp:{network.near}"]),
                          capture_output=True, text=True)
    try:
        datapaths = json.loads(done.stdout)["datapaths"]
    except (ValueError, KeyError):
        return None
    return sum(shard["counters"]["packets"] for one in datapaths for shard in one["shards"])


def processes(network):
    done = subprocess.run(["ip", "netns", "pids", network.server], capture_output=True, text=True)
    return [int(pid) for pid in done.stdout.split()]


def has_xdp(network):
    done = subprocess.run(["ip", "-n", network.server, "link", "show", network.near], capture_output=True, text=True)
    return "xdp" in done.stdout


def fill(words, values):
    return [word.format(**values) for word in words]


def fill_map(map, values):
    return {name: value.format(**values) for name, value in map.items()}


def normal(text):
    for pattern in (r"\d+\.\d+", r"\d{4,}", r"0x[0-9a-f]+", r"/tmp/\S+"):
        text = re.sub(pattern, "#", text)
    return text


class Outcome:
    def __init__(self):
        self.answers, self.packets, self.kernel, self.said, self.problem = [], None, None, [], None
        self.status, self.left, self.log = None, [], ""

    def is_refused(self):
        """Returns whether `--strict` ended the program."""
        return self.status == 3 and bool(self.said)

    def end(self, expected):
        """Describes how the program ended."""
        left = [one for one in self.left if one not in expected.left]
        kernels = [f"({expected.status})"] if self.status != expected.status else []
        return " ".join([str(self.status), *kernels, *(["left:", *left] if left else [])])


def run(program, world, options, network):
    outcome = Outcome()
    directory = tempfile.mkdtemp(prefix=f"abey-{program.name}-")
    os.chmod(directory, 0o777)
    values = {"dir": directory, "server": SERVER, "client": CLIENT, "port": program.port}
    if program.prepare:
        values.update(program.prepare(directory, values) or {})
    command = fill(program.command, values)
    if program.user:
        command = ["setpriv", f"--reuid={program.user}", f"--regid={program.user}", "--init-groups", *command]
    abey = [options.abey, "run", "--mode", options.mode]
    if options.strict:
        abey.append("--strict")
    if world == "linux":
        command = [*abey, "--dev", network.near, "--", *command]
    elif world == "datapath":
        command = [*abey, "--world", "datapath", "--nic", f"af_xdp:{network.near}", "--", *command]
    log = open(os.path.join(directory, "server.log"), "w+", encoding="utf-8", errors="replace")
    server = subprocess.Popen(network.command(network.server, command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                              start_new_session=True, cwd=directory, env={**os.environ, **fill_map(program.env, values)})
    try:
        begin = time.monotonic()
        while not listens(network, program):
            if server.poll() is not None or time.monotonic() - begin > READY_LIMIT:
                outcome.problem = "does not listen" if server.poll() is None else f"ended with {server.returncode}"
                break
            time.sleep(0.1)
        time.sleep(options.settle)
        for words in [] if outcome.problem else program.clients:
            words = fill(words, values)
            try:
                done = subprocess.run(network.command(network.client, words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      errors="replace", timeout=HANG_LIMIT, cwd=directory)
                outcome.answers.append((done.returncode, done.stdout, done.stderr))
            except subprocess.TimeoutExpired as late:
                outcome.answers.append(("hangs", (late.stdout or b"").decode(errors="replace"), ""))
        if world == "datapath":
            outcome.packets, outcome.kernel = delivered(options.abey, network), established(network, program.port)
        if server.poll() is not None:
            outcome.problem = outcome.problem or f"ended with {server.returncode}"
    finally:
        outcome.status = end(server)
        outcome.left = leftovers(network)
        log.seek(0)
        text = log.read()
        outcome.log = text
        outcome.said = [line for line in text.splitlines() if line.startswith(("abey", "libabey", "error:", "warning:", "note:"))]
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def end(server):
    """Ends a program as an administrator does, its first process only. Returns its status as a shell has it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            server.send_signal(sign)
            server.wait(20)
            break
        except subprocess.TimeoutExpired:
            continue
    status = server.wait()
    return status if status >= 0 else 128 - status


def leftovers(network):
    """Returns what a program has left in its namespace, and ends it."""
    begin = time.monotonic()
    while (pids := processes(network)) and time.monotonic() - begin < 3:
        time.sleep(0.1)
    left = [f"process {command_name(pid)}" for pid in pids] + (["XDP program"] if has_xdp(network) else [])
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left


def command_name(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return str(pid)


def statuses(outcome):
    return [answer[0] for answer in outcome.answers]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abey", default=os.path.join(HERE, "..", "target", "debug", "abey"))
    parser.add_argument("--mode", default="suspend20")
    parser.add_argument("--world", action="append", choices=["linux", "datapath"])
    parser.add_argument("--queues", type=int, default=2)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--settle", type=float, default=1.5, help="seconds between the listener and the first client")
    parser.add_argument("--width", type=int, default=300, help="characters of the last column")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("programs", nargs="*")
    options = parser.parse_args()
    options.abey = os.path.abspath(options.abey)
    if os.geteuid() != 0:
        sys.exit("skipped: network namespaces need root")
    chosen = [one for one in PROGRAMS if not options.programs or one.name in options.programs]
    unknown = set(options.programs) - {one.name for one in PROGRAMS}
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: not known; known are {', '.join(one.name for one in PROGRAMS)}")
    failed = 0
    print(f"{'program':<20} {'world':<9} {'same':<5} {'packets':>8} {'kernel':>7} {'end':<6} said", flush=True)
    for program in chosen:
        if missing := program.missing():
            print(f"{program.name:<20} skipped: {', '.join(missing)} not installed", flush=True)
            continue
        network = Network(str(os.getpid()), options.queues)
        try:
            expected = run(program, "kernel", options, network)
            if expected.problem or any(status != 0 for status in statuses(expected)):
                print(f"{program.name:<20} over the kernel: {expected.problem} {expected.answers}\n{expected.log}"[:3000], flush=True)
                failed += 1
                continue
            for world in options.world or ["linux", "datapath"]:
                found = run(program, world, options, network)
                same = not found.problem and statuses(found) == statuses(expected)
                is_refused = options.strict and found.is_refused()
                failed += not same and not is_refused
                said = "; ".join(dict.fromkeys(normal(line) for line in found.said)) or "-"
                cell = lambda value: "-" if value is None else str(value)
                mark = "yes" if same else "strict" if is_refused else "NO"
                print(f"{program.name:<20} {world:<9} {mark:<6} {cell(found.packets):>7} {cell(found.kernel):>7} "
                      f"{found.end(expected):<6} {found.problem or ''} {said[:options.width]}", flush=True)
                if options.verbose or mark == "NO":
                    for words, answer in zip(program.clients, found.answers):
                        if answer[0] != 0:
                            print(f"    {' '.join(words)}: {answer[0]}\n{answer[1][-800:]}{answer[2][-800:]}", flush=True)
                    print("    server: " + "\n    ".join(found.log.splitlines()[-12:]), flush=True)
        finally:
            network.remove()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
