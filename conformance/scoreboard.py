"""Compares the results of a suite in the two worlds, and holds the differences against the list of known ones."""

import dataclasses
import tomllib

# From worst to best.
RANK = {"hang": 0, "crash": 0, "fail": 0, "missing": 0, "skip": 1, "ok": 2}


@dataclasses.dataclass
class Difference:
    """A test that ends in another way over Abey than over the kernel."""

    suite: str
    test: str
    kernel: str
    abey: str
    reason: str

    @property
    def is_worse(self):
        return RANK[self.abey] < RANK[self.kernel]


@dataclasses.dataclass
class Row:
    """One line of the table."""

    suite: str
    tests: int = 0
    same: int = 0
    better: int = 0
    worse: int = 0


def compare(suite, kernel, abey):
    """Returns the row of a suite and its differences. Results are {test: (status, reason)}."""
    row, differences = Row(suite), []
    for test in sorted(set(kernel) | set(abey)):
        one, other = kernel.get(test, ("missing", "")), abey.get(test, ("missing", ""))
        row.tests += 1
        if RANK[one[0]] == RANK[other[0]]:
            row.same += 1
            continue
        reason = other[1] or one[1]
        difference = Difference(suite, test, one[0], other[0], reason)
        differences.append(difference)
        row.worse += difference.is_worse
        row.better += not difference.is_worse
    return row, differences


def read_known(path):
    """Returns the known differences: {(suite, test): reason}."""
    with open(path, "rb") as file:
        listed = tomllib.load(file).get("difference", [])
    known = {}
    for entry in listed:
        key = entry["suite"], entry["test"]
        if key in known or not entry["reason"].strip():
            raise ValueError(f"{path}: {key[0]} {key[1]} is listed twice, or has no reason")
        known[key] = entry["reason"]
    return known


def judge(differences, known, ran):
    """Returns the differences that are not listed, and the listed ones of the tests in `ran` that are gone.

    A test that is better over Abey needs no entry.
    """
    worse = {(one.suite, one.test): one for one in differences if one.is_worse}
    new = [one for key, one in worse.items() if key not in known]
    gone = [key for key in known if key in ran and key not in worse]
    return new, gone


def table(rows):
    """Returns the table as Markdown."""
    lines = ["| suite | tests | same | better | worse |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        lines.append(f"| {row.suite} | {row.tests} | {row.same} | {row.better} | {row.worse} |")
    total = [sum(getattr(row, name) for row in rows) for name in ("tests", "same", "better", "worse")]
    lines.append("| all | " + " | ".join(map(str, total)) + " |")
    return "\n".join(lines)
