"""Tests of the comparison, the list of known differences, and the parsers of results."""

import pathlib
import tempfile
import unittest

import run
import scoreboard
from suites import cpython, curl, libevent, libtest, memcached, redis, tap

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

    def test_lines_of_libevent(self):
        text = "a/b: [forking] OK\na/c: SKIPPED\na/d: \n  FAIL x.c:1: assert(y)\n  [d FAILED]\na/e: [forking] \na/f: DISABLED\n"
        found = libevent.parse(text)
        self.assertEqual({test: status for test, (status, _) in found.items()}, {
            "a/b": "ok", "a/c": "skip", "a/d": "fail", "a/e": "crash", "a/f": "skip",
        })
        self.assertEqual(found["a/d"][1], "FAIL x.c:1: assert(y)")

    def test_lines_of_libtest(self):
        text = "test a ... ok\ntest b::c ... libabey.so: a line\nok\ntest d ... FAILED\ntest e ... ignored, why\ntest f ... "
        expected = {"p::a": ("ok", ""), "p::b::c": ("ok", ""), "p::d": ("fail", ""), "p::e": ("skip", "why")}
        self.assertEqual(libtest.parse(text, "p"), expected)

    def test_a_program_of_memcached_fails_if_one_line_does_or_some_are_missing(self):
        self.assertEqual(memcached.judge("1..2\nok 1 - a\nok 2\n", 0), ("ok", ""))
        self.assertEqual(memcached.judge("1..0 # SKIP no TLS\n", 0), ("skip", "no TLS"))
        self.assertEqual(memcached.judge("1..3\nok 1 - a\nnot ok 2 - b\n", 2), ("fail", "1 of 3 failed, 2 ran: 2 - b"))
        self.assertEqual(memcached.judge("1..3\nok 1 - a\n", None)[0], "hang")

    def test_lines_of_redis(self):
        text = "\x1b[0m[\x1b[0;32mok\x1b[0m]: a (3 ms)\n[ok]: a (4 ms)\n[err]: b in tests/unit/u.tcl\nwhy\n[ignore]: c\n"
        expected = {"u: a": ("ok", ""), "u: a #2": ("ok", ""), "u: b": ("fail", "unit/u.tcl"), "u: c": ("skip", "")}
        self.assertEqual(redis.parse(text, "u"), expected)

    def test_lines_of_curl(self):
        text = "test 0001...[a]\n--pd---e-v- OK (1 out of 4, x)\ntest 0002...[b]\n\n 2: data FAILED:\n--- x\ntest 0003 SKIPPED: why\n"
        text += "test 0004...[c]\n"
        expected = {"test1": ("ok", ""), "test2": ("fail", "data"), "test3": ("skip", "why"), "test4": ("crash", "")}
        self.assertEqual(curl.parse(text), expected)


if __name__ == "__main__":
    unittest.main()
