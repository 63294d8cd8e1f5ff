"""Servers that fork, before or after they accept."""

from .clients import echo_tcp, echo_udp
from .program import Program, sh, write


def python(source):
    def prepare(directory, values):
        write(directory, "server.py", source)
    return prepare


FORKING = """
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64
Server(('0.0.0.0', int(sys.argv[1])), Echo).serve_forever()
"""

SUBPROCESS = """
import socket, subprocess, sys
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))
while True:
    stream, _ = listener.accept()
    subprocess.run(['echo', 'of the child'], stdout=stream.fileno())
    print('of the parent', flush=True)
    stream.sendall(b'end')
    stream.close()
"""

PREFORK = """
import os, socket, sys, threading
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])), backlog=64)
for _ in range(5):
    if os.fork() == 0:
        break
while True:
    stream, _ = listener.accept()
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()
"""


# Waits for its listener first and leaves the connections to children, which are made when there is something to accept.
ON_DEMAND = """
import os, select, socket, sys
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])), backlog=64)
listener.setblocking(False)
poll = select.epoll()
poll.register(listener, select.EPOLLIN)
children = 0
while True:
    poll.poll()
    if children < 3:
        children += 1
        if os.fork() == 0:
            break
    else:
        poll.unregister(listener)
        while True:
            os.wait()
listener.setblocking(True)
while True:
    stream, _ = listener.accept()
    stream.setblocking(True)
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()
"""

# A UDP server that forks for each datagram that it sees, and lets the child receive it.
UDP_WAIT = """
import os, select, socket, sys
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind(('0.0.0.0', int(sys.argv[1])))
while True:
    select.select([port], [], [])
    if os.fork() == 0:
        data, peer = port.recvfrom(65536)
        port.sendto(data, peer)
        os._exit(0)
    os.wait()
"""

# A program that inetd starts for its first datagram (`wait`), and that serves the socket for a second.
UDP_SERVICE = """#!/usr/bin/python3
import select, socket
port = socket.socket(fileno=0)
while select.select([port], [], [], 1)[0]:
    data, peer = port.recvfrom(65536)
    port.sendto(data, peer)
"""

# A program that inherits a listener.
TCP_SERVICE = """#!/usr/bin/python3
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
listener.setblocking(True)
while True:
    stream, _ = listener.accept()
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()
"""


def inetd(directory, values):
    write(directory, "service", UDP_SERVICE, 0o755)
    write(directory, "tcp-service", TCP_SERVICE, 0o755)
    port = values["port"]
    write(directory, "inetd.conf", f"{port} stream tcp nowait root /bin/cat cat\n{port} dgram udp wait root {directory}/service service\n"
          f"7008 stream tcp wait root {directory}/tcp-service tcp-service 0\n")
    service = "service {0}\n{{\ntype = UNLISTED\nport = {1}\nsocket_type = {2}\nprotocol = {3}\nwait = {4}\nuser = root\nserver = {5}\n{6}}}\n"
    write(directory, "xinetd.conf", "defaults\n{\ninstances = UNLIMITED\ncps = 10000 1\n}\n" + service.format("tcp", port, "stream", "tcp", "no", "/bin/cat", "")
          + service.format("udp", port, "dgram", "udp", "yes", f"{directory}/service", "")
          + service.format("waits", "7008", "stream", "tcp", "yes", f"{directory}/tcp-service", "server_args = 0\n"))


echo_wait = [word.replace("{port}", "7008") for word in echo_tcp]

PROGRAMS = [
    Program("socat-fork", ["socat"], 7007, ["socat", "TCP-LISTEN:{port},fork,reuseaddr", "EXEC:cat"], [echo_tcp]),
    Program("python-forking", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"], [echo_tcp], prepare=python(FORKING)),
    Program("python-prefork", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"], [echo_tcp], prepare=python(PREFORK)),
    Program("python-subprocess", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"],
            [sh("for i in 1 2 3; do nc -w 20 {server} {port} < /dev/null > out; printf 'of the child\\nend' | cmp - out; done")],
            prepare=python(SUBPROCESS)),
    Program("python-on-demand", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"], [echo_tcp], prepare=python(ON_DEMAND)),
    Program("python-udp-wait", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"], [echo_udp], prepare=python(UDP_WAIT), is_udp=True),
    Program("inetd", ["inetd"], 7007, ["inetd", "-i", "{dir}/inetd.conf"], [echo_tcp, echo_udp, echo_wait], prepare=inetd),
    Program("xinetd", ["xinetd"], 7007, ["xinetd", "-dontfork", "-f", "{dir}/xinetd.conf", "-pidfile", "{dir}/pid"], [echo_tcp, echo_udp, echo_wait],
            prepare=inetd),
    Program("socket-activate", ["systemd-socket-activate"], 7007,
            ["systemd-socket-activate", "-l", "{port}", "{dir}/tcp-service", "3"], [echo_tcp], prepare=inetd),
    Program("socket-activate-accept", ["systemd-socket-activate"], 7007,
            ["systemd-socket-activate", "-l", "{port}", "--accept", "--inetd", "cat"], [echo_tcp], prepare=inetd),
    Program("tcpserver", ["tcpserver"], 7007, ["tcpserver", "-R", "-H", "-l", "0", "0.0.0.0", "{port}", "cat"], [echo_tcp]),
    Program("ncat", ["ncat"], 7007, ["ncat", "-l", "-k", "-c", "cat", "0.0.0.0", "{port}"], [echo_tcp]),
    Program("ncat-udp", ["ncat"], 7007, ["ncat", "-l", "-u", "-k", "-e", "/bin/cat", "0.0.0.0", "{port}"], [echo_udp], is_udp=True),
    Program("socat-udp-fork", ["socat"], 7007, ["socat", "UDP-LISTEN:{port},fork,reuseaddr", "EXEC:cat"], [echo_udp], is_udp=True),
    Program("socat-udp-recvfrom", ["socat"], 7007, ["socat", "-T1", "UDP-RECVFROM:{port},fork", "EXEC:cat"], [echo_udp], is_udp=True),
    Program("socat-pipe", ["socat"], 7007, ["socat", "TCP-LISTEN:{port},fork,reuseaddr", "PIPE"], [echo_tcp]),
    Program("socat-pty", ["socat"], 7007, ["socat", "TCP6-LISTEN:{port},fork,reuseaddr,ipv6only=0", "EXEC:cat,pty,raw,echo=0"], [echo_tcp]),
    Program("socat-system", ["socat"], 7007, ["socat", "TCP-LISTEN:{port},fork,reuseaddr", "SYSTEM:cat"], [echo_tcp]),
    Program("socat-nofork", ["socat"], 7007, ["socat", "TCP-LISTEN:{port},fork,reuseaddr", "EXEC:cat,nofork"], [echo_tcp]),
]
