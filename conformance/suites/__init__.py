"""The suites, by name."""

from . import cpython, tap

SUITES = {suite.name: suite for suite in [*cpython.SUITES, *tap.SUITES]}
# What CI runs, in about two minutes.
# The others take more than five minutes on a busy machine.
QUICK = ["selectors", "socketserver", "httplib", "smtplib"]
