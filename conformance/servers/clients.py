"""Clients of programs.py. Each ends with 0 if the answers are right."""

import sys

from .program import sh


def http(path="/", count=200, concurrency=16):
    """Single requests, then keep-alive load in which no request may fail."""
    return [
        sh("for i in 1 2 3 4 5 6 7 8; do curl -sSf --max-time 60 http://{server}:{port}" + path + " | grep -q hello; done"),
        sh(f"ab -q -k -s 60 -n {count} -c {concurrency} http://{{server}}:{{port}}{path} > ab.out; "
           "grep -q 'Failed requests: *0' ab.out; ! grep -q Non-2xx ab.out"),
        # Connections that stay open while others come.
        [sys.executable, "-c", KEEP_ALIVE, "{server}", "{port}", path],
    ]


KEEP_ALIVE = """
import http.client, sys
server, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
alive = [http.client.HTTPConnection(server, port, timeout=60) for _ in range(8)]
for turn in range(3):
    for one in alive:
        one.request("GET", path)
        answer = one.getresponse()
        assert b"hello" in answer.read() and answer.status == 200
"""

ECHO_TCP = """
import socket, sys, os
server, port = sys.argv[1], int(sys.argv[2])
for turn in range(int(sys.argv[3])):
    with socket.create_connection((server, port), 60) as stream:
        for size in (1, 100, 20000, 100000):
            sent = os.urandom(size)
            stream.sendall(sent)
            got = b""
            while len(got) < size:
                more = stream.recv(65536)
                assert more, "closed"
                got += more
            assert got == sent
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
"""

ECHO_UDP = """
import socket, sys, os
server, port = sys.argv[1], int(sys.argv[2])
for turn in range(int(sys.argv[3])):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(60)
        peer.connect((server, port))
        for size in (1, 100, 1400):
            sent = os.urandom(size)
            peer.send(sent)
            assert peer.recv(65536) == sent
"""

echo_tcp = [sys.executable, "-c", ECHO_TCP, "{server}", "{port}", "20"]
echo_udp = [sys.executable, "-c", ECHO_UDP, "{server}", "{port}", "20"]
