"""redis's own tests in Tcl, against a server that is started for each of their files (`--host`).

The tests that start servers of their own, to restart, replicate or count them, leave themselves out in this set-up.
"""

import pathlib
import re
import shutil
import tempfile

import link
from sources import Tarball

LINE = re.compile(r"^\[(ok|err|skip|ignore|exception)\]: (.*)$", re.MULTILINE)
STATUS = {"ok": "ok", "err": "fail", "exception": "fail", "skip": "skip", "ignore": "skip"}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PORT = "6379"
# The limits of one file, and of the server's start.
LIMIT, START_LIMIT = 240, 20


def parse(text, unit):
    """Returns {test: (status, reason)}. Tests of the same name are numbered."""
    found, counts = {}, {}
    for word, rest in LINE.findall(COLOURS.sub("", text)):
        name = re.sub(r" \(\d+ ms\)$", "", rest)
        name, _, reason = name.partition(" in tests/") if word == "err" else (name, "", "")
        name = f"{unit}: {name if word != 'exception' else 'exception'}"
        counts[name] = counts.get(name, 0) + 1
        name += f" #{counts[name]}" if counts[name] > 1 else ""
        found[name] = (STATUS[word], reason)
    return found


class Redis:
    """The files in `tests/unit`, without those tests that redis itself calls slow."""

    name = "redis"
    source = Tarball(
        "redis",
        "7.0.15",
        "gz",
        "4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982",
        ["make -j2 MALLOC=libc OPTIMIZATION=-O1"],
        "src/redis-benchmark",
    )

    def why_not(self, options):
        if not shutil.which("tclsh8.6"):
            return "tclsh8.6 is missing: install tcl"
        return link.why_not() or self.source.why_not(options)

    def run(self, world, worlds, options, only=None):
        """Returns {test: (status, reason)}, of all tests or of those in `only`."""
        found = {}
        wanted = None if only is None else {name.split(":")[0] for name in only}
        with tempfile.TemporaryDirectory(prefix="abey-conformance-") as scratch, link.Link(world, worlds) as pair:
            folder = pathlib.Path(scratch, "redis")
            shutil.copytree(self.source.folder(options.sources), folder)
            units = re.search(r"set ::all_tests \{(.*?)\}", (folder / "tests/test_helper.tcl").read_text(), re.DOTALL)
            for unit in units[1].split():
                if unit.startswith("unit/") and (wanted is None or unit in wanted):
                    found |= run_unit(unit, folder, pair, options)
        return found


def run_unit(unit, folder, pair, options):
    output = folder / "abey-output"
    output.write_text("")
    arguments = ["--bind", link.SERVER, "--port", PORT, "--protected-mode", "no", "--save", ""]
    for what in ("debug-command", "protected-configs", "module-command"):
        arguments += [f"--enable-{what}", "yes"]
    with pair.running([str(folder / "src/redis-server"), *arguments], options.log, cwd=folder):
        ping = ["sh", "-c", 'until "$@" ping >/dev/null 2>&1; do sleep 0.1; done', "sh", "src/redis-cli"]
        pair.run([*ping, "-h", link.SERVER, "-p", PORT], START_LIMIT, options.log, cwd=folder)
        command = ["tclsh8.6", "tests/test_helper.tcl", "--host", link.SERVER, "--port", PORT, "--single", unit]
        pair.run([*command, "--tags", "-slow", "--durable"], LIMIT, output, cwd=folder)
    text = output.read_text(errors="replace")
    with open(options.log, "a") as log:
        log.write(f"{pair.world}: {unit}\n{text}")
    return parse(text, unit)


SUITES = [Redis()]
