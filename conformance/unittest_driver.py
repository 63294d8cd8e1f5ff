"""Runs the tests of one module, and writes one line for each to a file as soon as it ends.

Arguments: the file of results, a file with the tests to leave out, the limit of one test in seconds, the module. The runner
starts this program in each world. A test that never ends ends the program, and the runner starts it again for the rest.

Lines: `start<tab>TEST` and `STATUS<tab>TEST<tab>REASON`, where STATUS is ok, fail or skip.
"""

import faulthandler
import sys
import unittest
from test import support


class Recorder(unittest.TestResult):
    """Writes the outcome of each test."""

    def __init__(self, file, limit):
        super().__init__()
        self.file, self.limit = file, limit
        self.outcome = {}

    def write(self, *fields):
        text = "\t".join(str(field).replace("\t", " ").replace("\n", " ") for field in fields)
        self.file.write(text + "\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.outcome[test.id()] = ("ok", "")
        self.write("start", test.id())
        faulthandler.dump_traceback_later(self.limit, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)
        status, reason = self.outcome.pop(test.id())
        self.write(status, test.id(), reason)

    def failed(self, test, error):
        reason = f"{error[0].__name__}: {error[1]}"
        if test.id() in self.outcome:
            self.outcome[test.id()] = ("fail", reason)
        else:
            # A fixture of a class or a module.
            self.write("fail", test.id(), reason)

    def addError(self, test, err):
        self.failed(test, err)

    def addFailure(self, test, err):
        self.failed(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.failed(test, err)

    def addSkip(self, test, reason):
        if test.id() in self.outcome:
            self.outcome[test.id()] = ("skip", reason)
        else:
            self.write("skip", test.id(), reason)

    def addExpectedFailure(self, test, err):
        pass

    def addUnexpectedSuccess(self, test):
        self.outcome[test.id()] = ("fail", "unexpected success")


def cases(suite):
    """Returns the tests of a suite, in order."""
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [case for part in suite for case in cases(part)]


def main():
    results, left_out, limit, module = sys.argv[1:5]
    # test_socketserver needs it, although it stays within the machine.
    support.use_resources = ["network"]
    support.verbose = 0
    with open(left_out) as file:
        done = set(file.read().split("\n"))
    found = cases(unittest.defaultTestLoader.loadTestsFromName(module))
    with open(results, "a") as file:
        recorder = Recorder(file, float(limit))
        unittest.TestSuite(case for case in found if case.id() not in done).run(recorder)
        recorder.write("end", module)


if __name__ == "__main__":
    main()
