"""Integration tests of Rust packages: programs that print `test NAME ... ok`."""

import json
import pathlib
import re
import tempfile

from sources import Crate

# What the preloaded library writes may stand before the outcome.
LINE = re.compile(
    r"^test (\S+)(?: - should panic)? \.\.\. (?:libabey\.so: .*\n)*(ok|FAILED|ignored)(?:, (.*))?$", re.MULTILINE
)
STATUS = {"ok": "ok", "FAILED": "fail", "ignored": "skip"}
# The limit of a program, and of one test that is repeated.
PROGRAM_LIMIT, TEST_LIMIT = 90, 30


def parse(text, program):
    """Returns {test: (status, reason)}."""
    found = LINE.findall(text)
    return {f"{program}::{name}": (STATUS[status], reason) for name, status, reason in found}


class Tests:
    """The integration tests of a package. A test that never ends is missing from the results."""

    def __init__(self, crate):
        self.name, self.source = crate.name, crate

    def why_not(self, options):
        return self.source.why_not(options)

    def run(self, world, worlds, options, only=None):
        """Returns {test: (status, reason)}, of all tests or of those in `only`."""
        folder = self.source.folder(options.sources)
        programs = json.loads((folder / self.source.product).read_text())
        found = {}
        for program, path in programs.items():
            if only is None:
                found |= run_program([path], PROGRAM_LIMIT, program, world, worlds, options)
                continue
            for test in only:
                of, _, name = test.partition("::")
                if of == program:
                    found |= run_program([path, "--exact", name], TEST_LIMIT, program, world, worlds, options)
        return found


def run_program(command, limit, name, world, worlds, options):
    with tempfile.TemporaryDirectory(prefix="abey-conformance-") as scratch:
        output = pathlib.Path(scratch, "output")
        # One thread prints each result in a line of its own.
        worlds.run(world, [*command, "--test-threads", "1"], limit, output, cwd=scratch)
        text = output.read_text(errors="replace")
    with open(options.log, "a") as log:
        log.write(text)
    return parse(text, name)


TCP = "accept accept_ready connect echo into_split into_std peek shutdown socket split stream"
SUITES = [
    Tests(
        Crate(
            "tokio",
            "1.54.1",
            "b52fd3255258d26fac7264ab5a76b53c13367136dc011d3d6ad4f8ed070396a3",
            [f"tcp_{part}" for part in TCP.split()]
            + ["udp", "net_bind_resource", "net_panic", "net_quickack", "io_driver", "io_driver_drop", "io_async_fd"],
            ["full"],
        )
    ),
    Tests(
        Crate(
            "async-io",
            "2.6.0",
            "456b8a8feb6f42d237746d4b3e9a178494627745c3c56c6ea55d92ba50d026fc",
            ["async", "block_on", "issue_182", "timer"],
        )
    ),
]
