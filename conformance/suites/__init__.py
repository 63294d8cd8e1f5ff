"""The suites, by name."""

from . import cpython, tap

SUITES = {suite.name: suite for suite in [*cpython.SUITES, *tap.SUITES]}
# What CI runs, in half a minute.
QUICK = ["selectors", "socketserver", "httplib", "smtplib"]
