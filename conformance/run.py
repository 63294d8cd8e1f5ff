#!/usr/bin/env python3
"""Runs other projects' test suites over the kernel's sockets and over Abey's, and prints one table of the differences.

    conformance/run.py                      every suite that this machine has
    conformance/run.py socket asyncio       some of them
    conformance/run.py --quick              what CI runs, in about five minutes

The status is 0 if every test that is worse over Abey is in known.toml, and every test there is still worse.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import time
from concurrent import futures

import scoreboard
from suites import QUICK, SUITES
from worlds import KERNEL, OURS, Worlds

HERE = pathlib.Path(__file__).parent


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"run these suites: {', '.join(SUITES)} [default: all]")
    parser.add_argument("--quick", action="store_true", help="run the part that CI runs")
    parser.add_argument("--abey", help="use this abey [default: the one on PATH]")
    parser.add_argument("--python", default=sys.executable, help="test this Python [default: the one that runs this]")
    parser.add_argument("--mode", default="base", help="use this delivery mode [default: base]")
    parser.add_argument("--queues", type=int, default=2, help="number of queue pairs [default: 2]")
    parser.add_argument("--repeat", type=int, default=3, help="run tests that differ this often in all [default: 3]")
    parser.add_argument("--fetch", action="store_true", help="download and build the sources of suites that need them")
    parser.add_argument("--sources", default="/tmp/abey-conformance", help="folder of the sources [default: %(default)s]")
    parser.add_argument("--json", type=pathlib.Path, help="write rows and differences to this file")
    parser.add_argument("--log", default=os.devnull, help="append the output of the suites to this file")
    options = parser.parse_args()
    options.abey = options.abey or shutil.which("abey")
    if not options.abey:
        parser.error("there is no abey on PATH: give --abey")
    # The suites run in directories of their own.
    options.abey = os.path.abspath(options.abey)
    if unknown := [name for name in options.suites if name not in SUITES]:
        parser.error(f"there is no suite {unknown[0]}: choose from {', '.join(SUITES)}")
    options.suites = options.suites or (QUICK if options.quick else list(SUITES))
    return options


def majority(outcomes):
    """Returns the most frequent status with its last reason; of equally frequent ones the best."""
    statuses = [status for status, _ in outcomes]
    best = max(set(statuses), key=lambda status: (statuses.count(status), scoreboard.RANK[status]))
    return best, next(reason for status, reason in reversed(outcomes) if status == best)


def run_in_both(suite, worlds, options, only=None):
    """Returns {world: results}. The worlds run at the same time if namespaces keep them apart."""
    with futures.ThreadPoolExecutor(2 if worlds.is_isolated else 1) as pool:
        running = {world: pool.submit(suite.run, world, worlds, options, only) for world in (KERNEL, OURS)}
        return {world: run.result() for world, run in running.items()}


def run_suite(suite, worlds, options):
    """Runs a suite in both worlds. Tests that differ are repeated, and the majority counts."""
    results = run_in_both(suite, worlds, options)
    row, differences = scoreboard.compare(suite.name, results[KERNEL], results[OURS])
    if differences and options.repeat > 1:
        names = [one.test for one in differences]
        outcomes = {world: {name: [results[world].get(name, ("missing", ""))] for name in names} for world in results}
        for _ in range(options.repeat - 1):
            for world, again in run_in_both(suite, worlds, options, names).items():
                for name in names:
                    outcomes[world][name].append(again.get(name, ("missing", "")))
        for world in results:
            results[world] |= {name: majority(found) for name, found in outcomes[world].items()}
        row, differences = scoreboard.compare(suite.name, results[KERNEL], results[OURS])
    ran = {(suite.name, test) for test in set(results[KERNEL]) | set(results[OURS])}
    return row, differences, ran


def main():
    options = parse()
    worlds = Worlds(options.abey, options.mode, options.queues)
    known = scoreboard.read_known(HERE / "known.toml")
    rows, differences, ran = [], [], set()
    for name in options.suites:
        suite = SUITES[name]
        if why := suite.why_not(options):
            print(f"skipped: {name}: {why}", file=sys.stderr)
            continue
        start = time.monotonic()
        row, found, tests = run_suite(suite, worlds, options)
        print(f"{name}: {row.tests} tests in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        rows.append(row)
        differences += found
        ran |= tests
    print(scoreboard.table(rows))
    if options.json:
        document = {"rows": [vars(row) for row in rows], "differences": [vars(one) for one in differences]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    new, gone = scoreboard.judge(differences, known, ran)
    for one in new:
        print(f"new: {one.suite} {one.test}: {one.kernel} over the kernel, {one.abey} over Abey: {one.reason}")
    for suite, test in gone:
        print(f"gone: {suite} {test}: remove it from {HERE / 'known.toml'}")
    sys.exit(1 if new or gone else 0)


if __name__ == "__main__":
    main()
