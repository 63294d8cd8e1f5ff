"""CPython's own tests of its network modules, one test module at a time."""

import os
import pathlib
import shutil
import subprocess
import tempfile

DRIVER = pathlib.Path(__file__).parent.parent / "unittest_driver.py"
# The limit of one test, and of the parts of a module that are run again after a test that hung or crashed.
TEST_LIMIT, MODULE_LIMIT, MAX_RESTARTS = 60, 1200, 20


class Module:
    """A module of CPython's tests."""

    def __init__(self, name, modules):
        self.name, self.modules = name, modules

    def why_not(self, options):
        """Returns why the suite cannot run here, if so."""
        probe = subprocess.run([options.python, "-c", f"import {self.modules[0]}"], capture_output=True)
        if probe.returncode == 0:
            return None
        return f"{options.python} has no tests: install libpython3-testsuite"

    def run(self, world, worlds, options, only=None):
        """Returns {test: (status, reason)}, of all tests or of those in `only`."""
        found = {}
        for module in self.modules:
            found |= run_module(module, world, worlds, options, only)
        return found


def run_module(module, world, worlds, options, only):
    """Runs the tests of a module, again from where it stopped if one of them hung or crashed."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="abey-conformance-") as scratch:
        results, left_out = pathlib.Path(scratch, "results"), pathlib.Path(scratch, "left-out")
        for _ in range(MAX_RESTARTS):
            left_out.write_text("\n".join(found))
            results.write_text("")
            command = [options.python, str(DRIVER), str(results), str(left_out), str(TEST_LIMIT)]
            names = [module] if only is None else sorted(test for test in only if test.startswith(module + "."))
            if not names:
                return found
            status = None
            for name in names:
                status = worlds.run(
                    world, [*command, name], MODULE_LIMIT, options.log, cwd=scratch, env=environment(scratch)
                )
            started, is_complete = read_results(results, found)
            if is_complete or only is not None and not started:
                break
            if not started:
                found[module] = ("crash", f"ended with status {status} before its first test")
                break
            found |= {test: ("hang" if status in (1, None) else "crash", f"status {status}") for test in started}
    return found


def environment(scratch):
    return {**os.environ, "HOME": scratch, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": scratch}


def read_results(path, found):
    """Adds the results of a file. Returns the tests that were started and did not end, and whether the module ended."""
    started, is_complete = [], False
    for line in path.read_text(errors="replace").splitlines():
        status, test, *reason = line.split("\t")
        if status == "start":
            started.append(test)
        elif status == "end":
            is_complete = True
        else:
            found[test] = (status, " ".join(reason))
            started = [other for other in started if other != test]
    return started, is_complete


def asyncio_modules():
    """The parts of test_asyncio that use sockets."""
    parts = "buffered_proto sock_lowlevel selector_events server sendfile sslproto ssl streams subprocess unix_events"
    return [f"test.test_asyncio.test_{part}" for part in ["base_events", "events", *parts.split()]]


SUITES = [
    Module("selectors", ["test.test_selectors"]),
    Module("socketserver", ["test.test_socketserver"]),
    Module("socket", ["test.test_socket"]),
    Module("asyncio", asyncio_modules()),
    Module("ssl", ["test.test_ssl"]),
    Module("httplib", ["test.test_httplib"]),
    Module("ftplib", ["test.test_ftplib"]),
    Module("smtplib", ["test.test_smtplib"]),
]
