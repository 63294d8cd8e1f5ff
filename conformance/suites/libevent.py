"""libevent's own tests, by each of its methods to wait. Each test runs in a process of its own."""

import os
import pathlib
import re
import tempfile

from sources import Tarball

METHODS = ["EPOLL", "POLL", "SELECT"]
LINE = re.compile(r"^(\w+/\w+): (?:\[forking\] )?(.*)$")
# The limit of all tests, and of one that is repeated.
SUITE_LIMIT, TEST_LIMIT = 900, 120

SOURCE = Tarball(
    "libevent",
    "2.1.12-stable",
    "gz",
    "92e6de1be9ec176428fd2367677e61ceffc2ee1cb119035037a27d346b0403bb",
    [
        "cmake -B build -DCMAKE_BUILD_TYPE=Release -DEVENT__LIBRARY_TYPE=STATIC -DEVENT__DISABLE_BENCHMARK=ON "
        "-DEVENT__DISABLE_SAMPLES=ON -DEVENT__DISABLE_MBEDTLS=ON",
        "make -C build -j2",
        "cmake --install build --prefix installed",
    ],
    "build/bin/regress",
)


def parse(text):
    """Returns {test: (status, reason)}. The outcome stands at the end of the test's line, or a few lines below."""
    found, test = {}, None
    for line in text.splitlines():
        if match := LINE.match(line):
            test, rest = match.groups()
            # It never ended, unless its outcome follows.
            found[test] = ("crash", "")
        else:
            rest = line
        if test is None:
            continue
        if rest.endswith("OK"):
            found[test] = ("ok", "")
        elif "SKIPPED" in rest or rest.startswith("DISABLED"):
            found[test] = ("skip", rest)
        elif rest.lstrip().startswith("FAIL "):
            found[test] = ("fail", rest.strip())
    return found


class Libevent:
    """libevent's `regress`, without the tests of its library for DNS servers in the Internet, which it leaves out itself."""

    def __init__(self, method):
        self.method, self.name = method, f"libevent-{method.lower()}"

    def why_not(self, options):
        return SOURCE.why_not(options)

    def run(self, world, worlds, options, only=None):
        """Returns {test: (status, reason)}, of all tests or of those in `only`."""
        program = str(SOURCE.folder(options.sources) / "build/bin/regress")
        others = {f"EVENT_NO{other}": "yes" for other in METHODS if other != self.method}
        with tempfile.TemporaryDirectory(prefix="abey-conformance-") as scratch:
            output = pathlib.Path(scratch, "output")
            limit = SUITE_LIMIT if only is None else TEST_LIMIT * len(only)
            worlds.run(world, [program, *(only or [])], limit, output, cwd=scratch, env={**os.environ, **others})
            text = output.read_text(errors="replace")
        with open(options.log, "a") as log:
            log.write(text)
        return parse(text)


SUITES = [Libevent(method) for method in METHODS]
