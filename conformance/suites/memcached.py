"""memcached's own tests: Perl programs that start the server and print the Test Anything Protocol."""

import pathlib
import re
import shutil
import tempfile

import link
from sources import Tarball

from . import libevent

# The limit of one program.
LIMIT = 150


def judge(text, status):
    """Returns the status and the reason of a program: some of them print ten thousands of results."""
    if skipped := re.search(r"^1\.\.0 # skip (.*)", text, re.IGNORECASE | re.MULTILINE):
        return "skip", skipped[1]
    if status is None:
        return "hang", f"no end within {LIMIT} s"
    failed = re.findall(r"^not ok (.*)", text, re.MULTILINE)
    planned = re.search(r"^1\.\.(\d+)", text, re.MULTILINE)
    done = len(re.findall(r"^(?:not )?ok ", text, re.MULTILINE))
    if failed or status != 0:
        of = planned[1] if planned else "?"
        return "fail", f"{len(failed)} of {of} failed, {done} ran: {', '.join(failed[:2])}"
    return "ok", ""


class Memcached:
    """The tests in `t`. Those of the proxy, TLS and SASL skip themselves in this build."""

    name = "memcached"
    source = Tarball(
        "memcached",
        "1.6.18",
        "xz",
        "35872bd25f8d29d7cc2072d23e74344530891bfd0aa4f4f64184a8ae7291164b",
        [
            # The tests use TCP where the server has no Unix sockets.
            "./configure --disable-unix-socket --disable-docs --with-libevent=SOURCES/libevent-2.1.12-stable/installed",
            "make -j2 memcached-debug timedrun",
        ],
        "timedrun",
    )

    def why_not(self, options):
        return link.why_not() or libevent.SOURCE.why_not(options) or self.source.why_not(options)

    def run(self, world, worlds, options, only=None):
        """Returns {test: (status, reason)}, of all tests or of those in `only`."""
        found = {}
        with tempfile.TemporaryDirectory(prefix="abey-conformance-") as scratch, link.Link(world, worlds) as pair:
            folder = pathlib.Path(scratch, "memcached")
            shutil.copytree(self.source.folder(options.sources), folder)
            prepare(folder, pair)
            for test in sorted(folder.glob("t/*.t")):
                if only is not None and test.name not in only:
                    continue
                output = pathlib.Path(scratch, "output")
                output.write_text("")
                status = pair.run(["perl", str(test)], LIMIT, output, cwd=folder)
                text = output.read_text(errors="replace")
                with open(options.log, "a") as log:
                    log.write(f"{world}: {test.name}\n{text}")
                found[test.name] = judge(text, status)
        return found


def prepare(folder, pair):
    """Makes the tests start the server through the link, and connect to it there."""
    program = folder / "memcached-debug"
    program.rename(folder / "memcached-real")
    pair.wrap(program, folder / "memcached-real", "-h")
    for path in [*folder.glob("t/*.t"), folder / "t/lib/MemcachedTest.pm"]:
        # One file is in Latin 1.
        text = path.read_text(encoding="latin-1")
        text = re.sub(r"(LocalAddr\s*=> ['\"])127\.0\.0\.1", r"\g<1>0.0.0.0", text)
        path.write_text(text.replace("127.0.0.1", link.SERVER), encoding="latin-1")


SUITES = [Memcached()]
