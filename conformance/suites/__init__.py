"""The suites, by name."""

from . import cpython, curl, libevent, libtest, memcached, redis, tap

PARTS = [cpython, tap, libevent, libtest, memcached, redis, curl]
SUITES = {suite.name: suite for part in PARTS for suite in part.SUITES}
# What CI runs, in half a minute.
QUICK = ["selectors", "socketserver", "httplib", "ftplib", "smtplib"]
