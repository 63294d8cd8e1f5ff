"""Servers of tools that measure."""

from .program import Program, sh


PROGRAMS = [
    Program("iperf3", ["iperf3"], 5201, ["iperf3", "-s", "-p", "{port}"],
            [sh("iperf3 -c {server} -p {port} -t 1 -P 3"), sh("iperf3 -c {server} -p {port} -t 1 -R"),
             sh("iperf3 -c {server} -p {port} -t 1 -u -b 5M -l 1200")]),
]
