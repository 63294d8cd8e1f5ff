"""curl's own tests of HTTP. Here it is the client that runs over Abey: the tests' server stays with the kernel."""

import pathlib
import re
import shutil
import tempfile

import link
from sources import Tarball

START = re.compile(r"^test (\d+)\.\.\.\[.*\]$")
SKIPPED = re.compile(r"^test (\d+) SKIPPED: (.*)$")
FAILED = re.compile(r"^ ?(?:\d+: )?(.*?) ?FAILED[:!]?")
# The limits of all tests, and of one that is repeated.
SUITE_LIMIT, TEST_LIMIT = 2400, 120


def parse(text):
    """Returns {test: (status, reason)}. A result is in one of the lines that follow the test's name."""
    found, test = {}, None
    for line in text.splitlines():
        if match := START.match(line):
            test = f"test{int(match[1])}"
            found[test] = ("crash", "")
        elif match := SKIPPED.match(line):
            found[f"test{int(match[1])}"] = ("skip", match[2])
        elif test and " OK (" in line:
            found[test], test = ("ok", ""), None
        elif test and (match := FAILED.match(line)):
            found[test], test = ("fail", match[1]), None
    return found


def is_of_tool(path):
    """Returns whether a test runs the tool, and needs no server but the one for HTTP over IPv4."""
    text = path.read_text(encoding="latin-1")
    servers = re.search(r"<server>\s*(.*?)\s*</server>", text, re.DOTALL)
    return servers is not None and servers[1] == "http" and "<tool>" not in text


class Curl:
    """The tests of the tool with a server for HTTP."""

    name = "curl"
    source = Tarball(
        "curl",
        "7.88.1",
        "gz",
        "cdb38b72e36bc5d33d5b8810f8018ece1baa29a8f215b4495e495ded82bbf3c7",
        [
            "./configure --without-ssl --disable-shared --enable-static --without-libpsl --disable-ldap --disable-manual "
            "--without-zstd --without-brotli --without-nghttp2 --without-libidn2",
            "make -j2 -C lib && make -j2 -C src && make -j2 -C tests/server",
        ],
        "tests/server/sws",
    )

    def why_not(self, options):
        return link.why_not() or self.source.why_not(options)

    def run(self, world, worlds, options, only=None):
        """Returns {test: (status, reason)}, of all tests or of those in `only`."""
        with tempfile.TemporaryDirectory(prefix="abey-conformance-") as scratch, link.Link(world, worlds) as pair:
            folder = pathlib.Path(scratch, "curl")
            shutil.copytree(self.source.folder(options.sources), folder)
            tests, program = folder / "tests", folder / "curl-of-tests"
            # Seen from the tests, curl is on another host.
            pair.wrap(program, folder / "src/curl", "--version", "-V")
            runner = tests / "runtests.pl"
            text = runner.read_text()
            text = text.replace('$HOSTIP="127.0.0.1"', f'$HOSTIP="{link.CLIENT}"')
            runner.write_text(text.replace('$CLIENTIP="127.0.0.1"', f'$CLIENTIP="{link.SERVER}"'))
            all_tests = [path.name for path in (tests / "data").glob("test*[0-9]") if is_of_tool(path)]
            numbers = sorted(int(name[4:]) for name in only or all_tests)
            output = pathlib.Path(scratch, "output")
            output.write_text("")
            command = ["perl", "-I.", "runtests.pl", "-a", "-n", "-c", str(program), *map(str, numbers)]
            pair.run(command, TEST_LIMIT * len(only) if only else SUITE_LIMIT, output, cwd=tests)
            text = output.read_text(errors="replace")
        with open(options.log, "a") as log:
            log.write(f"{world}:\n{text}")
        return parse(text)


SUITES = [Curl()]
