"""Suites of programs that print the Test Anything Protocol: `ok 1 - NAME`, `not ok 2 - NAME`, `ok 3 - NAME # SKIP WHY`."""

import pathlib
import re
import shutil
import tempfile

from sources import Tarball

LINE = re.compile(r"^(not )?ok \d+(?: - | )?(.*?)(?: # (SKIP|TODO)\b ?(.*))?$")
# The limit of a whole suite, and of one test that is repeated. A test that failed may leave a process that does not end.
SUITE_LIMIT, TEST_LIMIT = 400, 30


def parse(text, prefix=""):
    """Returns {test: (status, reason)}. Tests of the same name are numbered."""
    found, counts = {}, {}
    for line in text.splitlines():
        if not (match := LINE.match(line)):
            continue
        failed, name, directive, reason = match.groups()
        name = prefix + name.strip()
        counts[name] = counts.get(name, 0) + 1
        name += f" #{counts[name]}" if counts[name] > 1 else ""
        status = "skip" if directive else "fail" if failed else "ok"
        found[name] = (status, reason or "")
    return found


class Libuv:
    """libuv's own tests. Each runs in a process of its own."""

    name = "libuv"
    source = Tarball(
        "libuv1",
        "1.44.2",
        "gz",
        "d79b4b06ef04be85fb890bf39d55942cc64c2e15fd14eaa32dae5dce94485484",
        ["cmake -B build -DLIBUV_BUILD_TESTS=ON", "make -C build -j2 uv_run_tests"],
        "build/uv_run_tests",
    )

    def why_not(self, options):
        return self.source.why_not(options)

    def run(self, world, worlds, options, only=None):
        """Returns {test: (status, reason)}, of all tests or of those in `only`."""
        with tempfile.TemporaryDirectory(prefix="abey-conformance-") as scratch:
            # The tests write into their folder, which the other world must not see.
            folder = pathlib.Path(scratch, "libuv")
            shutil.copytree(self.source.folder(options.sources), folder)
            found, program = {}, [str(folder / "build/uv_run_tests")]
            for test in only or [None]:
                output = pathlib.Path(scratch, "output")
                output.write_text("")
                limit = SUITE_LIMIT if test is None else TEST_LIMIT
                command = worlds.unprivileged(scratch, program if test is None else [*program, test])
                status = worlds.run(world, command, limit, output, cwd=folder)
                text = output.read_text(errors="replace")
                with open(options.log, "a") as log:
                    log.write(text)
                if test is None:
                    found = parse(text)
                else:
                    found[test] = ("ok", "") if status == 0 else ("fail", text.strip().split("\n")[-1])
            return found


SUITES = [Libuv()]
