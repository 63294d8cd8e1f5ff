"""Tests of the comparison, the list of known differences, and the parsers of results."""

import pathlib
import tempfile
import unittest

import run
import scoreboard
from suites import cpython, tap

KERNEL = {"a": ("ok", ""), "b": ("ok", ""), "c": ("fail", "x"), "d": ("skip", ""), "e": ("hang", "")}
ABEY = {"a": ("ok", ""), "b": ("hang", "slow"), "c": ("ok", ""), "d": ("skip", ""), "e": ("fail", "")}


class Scoreboard(unittest.TestCase):
    def test_a_row_counts_better_and_worse(self):
        row, differences = scoreboard.compare("s", KERNEL, ABEY)
        self.assertEqual(vars(row), {"suite": "s", "tests": 5, "same": 3, "better": 1, "worse": 1})
        self.assertEqual([(one.test, one.is_worse) for one in differences], [("b", True), ("c", False)])

    def test_a_test_that_is_missing_is_worse(self):
        _, differences = scoreboard.compare("s", {"a": ("ok", "")}, {})
        self.assertEqual([(one.abey, one.is_worse) for one in differences], [("missing", True)])

    def test_new_and_vanished_differences_are_found(self):
        _, differences = scoreboard.compare("s", KERNEL, ABEY)
        ran = {("s", test) for test in KERNEL}
        self.assertEqual(scoreboard.judge(differences, {("s", "b"): "why"}, ran), ([], []))
        new, gone = scoreboard.judge(differences, {("s", "c"): "why", ("other", "b"): "did not run"}, ran)
        self.assertEqual(([one.test for one in new], gone), (["b"], [("s", "c")]))

    def test_the_list_has_one_reason_for_each_difference(self):
        known = scoreboard.read_known(run.HERE / "known.toml")
        self.assertTrue(all(suite in run.SUITES for suite, _ in known))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "known.toml")
            path.write_text('[[difference]]\nsuite = "s"\ntest = "t"\nreason = " "\n')
            self.assertRaises(ValueError, scoreboard.read_known, path)

    def test_of_repeated_runs_the_majority_counts(self):
        ok, fail = ("ok", ""), ("fail", "x")
        self.assertEqual(run.majority([fail, ok, ok]), ok)
        self.assertEqual(run.majority([fail, ok, fail]), fail)
        self.assertEqual(run.majority([fail, ok]), ok)


class Results(unittest.TestCase):
    def test_a_test_that_was_started_and_did_not_end_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "results")
            path.write_text("start\ta\nok\ta\t\nstart\tb\nfail\tb\twhy\nstart\tc\n")
            found = {}
            self.assertEqual(cpython.read_results(path, found), (["c"], False))
            self.assertEqual(found, {"a": ("ok", ""), "b": ("fail", "why")})

    def test_lines_of_tap(self):
        text = "1..4\nok 1 - a\nnot ok 2 - b\n# why\nok 3 - c # SKIP no IPv6\nok 4 - a\n"
        expected = {"a": ("ok", ""), "b": ("fail", ""), "c": ("skip", "no IPv6"), "a #2": ("ok", "")}
        self.assertEqual(tap.parse(text), expected)


if __name__ == "__main__":
    unittest.main()
