"""The servers of programs.py. A client's command checks the answers itself and ends with 0 if they are right."""

from . import data, databases, dns, files, forking, messages, php, proxies, reloads, runtimes, tools, web

GROUPS = (data, web, dns, files, runtimes, forking, tools, databases, messages, proxies, php, reloads)
PROGRAMS = [one for group in GROUPS for one in group.PROGRAMS]
