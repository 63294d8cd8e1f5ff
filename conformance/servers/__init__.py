"""The servers of programs.py. A client's command checks the answers itself and ends with 0 if they are right."""

from . import data, dns, files, forking, more, runtimes, tools, web

PROGRAMS = [one for group in (data, web, dns, files, runtimes, forking, tools, more) for one in group.PROGRAMS]
