# A program that connects to its own addresses. tests/datapath.rs runs this over the kernel and over memory:self, and compares
# what it prints. No port is printed, as they differ from run to run.

import asyncio, errno, http.server, os, resource, select, socket, subprocess, sys, threading, urllib.request

V4, OTHER, V6 = "127.0.0.1", "127.8.8.8", "::1"
CHILD = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(b'child'); s.recv(1)"


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def read_all(stream, count):
    data = b""
    while len(data) < count and (part := stream.recv(65536)):
        data += part
    return data


def one_thread(address):
    with socket.create_server((address, 0), family=family(address)) as listener:
        client = socket.create_connection(listener.getsockname()[:2], timeout=60)
        server, peer = listener.accept()
        print(address, client.getpeername() == server.getsockname(), peer == client.getsockname(), peer[0])
        client.sendall(b"x" * 100_000)
        print(len(read_all(server, 100_000)), server.send(b"back"), client.recv(9))
        client.shutdown(socket.SHUT_WR)
        print(server.recv(1), server.close(), client.recv(1), client.close())


def events():
    """A connection of a non-blocking socket, and epoll over both ends in one thread."""
    with socket.create_server((V4, 0)) as listener, select.epoll() as epoll:
        client = socket.socket()
        client.setblocking(False)
        print(errno.errorcode[client.connect_ex(listener.getsockname())])
        epoll.register(client, select.EPOLLOUT)
        epoll.register(listener, select.EPOLLIN)
        seen = set()
        while len(seen) < 2:
            seen |= {fd for fd, _ in epoll.poll(60)}
        server, _ = listener.accept()
        epoll.register(server, select.EPOLLIN)
        epoll.modify(client, select.EPOLLIN)
        print(epoll.poll(0), client.send(b"a"), [(fd == server.fileno(), event) for fd, event in epoll.poll(60)])
        print(client.connect_ex(listener.getsockname()) == errno.EISCONN)
        server.close(), client.close()


def refused(address):
    with socket.socket(family(address)) as unused, socket.socket(family(address)) as client:
        unused.bind((address, 0))
        print(errno.errorcode[client.connect_ex(unused.getsockname()[:2])])


def web():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.path.encode() * 1000)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer((V4, 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        for number in range(20):
            body = urllib.request.urlopen(f"http://{V4}:{server.server_port}/{number}", timeout=60).read()
            print(number, body[:4], len(body))
        server.shutdown()


def tasks():
    async def serve(reader, writer):
        writer.write((await reader.readexactly(50_000))[::-1])
        await writer.drain()
        writer.close()

    async def ask(at, number):
        reader, writer = await asyncio.open_connection(*at)
        writer.write(bytes([number]) * 50_000)
        data = await reader.read()
        writer.close()
        return len(data), data[0]

    async def main():
        server = await asyncio.start_server(serve, V4, 0)
        at = server.sockets[0].getsockname()
        print(await asyncio.gather(*(ask(at, number) for number in range(20))))
        server.close()

    asyncio.run(main())


def datagrams(address):
    sockets = [socket.socket(family(address), socket.SOCK_DGRAM) for _ in range(3)]
    server, bound, unbound = sockets
    for one in sockets:
        one.settimeout(60)
    server.bind((address, 0))
    bound.bind((address, 0))
    at = server.getsockname()
    for client in (bound, unbound):
        for length in (0, 5, 9000):
            print(client.sendto(b"d" * length, at), end=" ")
            data, peer = server.recvfrom(65536)
            print(len(data), peer == client.getsockname() or client is unbound, server.sendto(data, peer), len(client.recv(65536)))
    bound.connect(at)
    print(bound.send(b"connected"), server.recvfrom(99)[0])
    server.close()
    try:
        bound.send(b"x")
        print(bound.recv(9))
    except OSError as error:
        print(errno.errorcode[error.errno])
    for one in sockets:
        one.close()


def control_messages():
    """Control messages that the datapath does not have: the socket becomes the kernel's."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as server, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
        server.bind((V6, 0)), client.bind((V6, 0))
        server.settimeout(60)
        client.sendto(b"before", server.getsockname())
        print(server.recv(9))
        for option in (socket.IPV6_RECVHOPLIMIT, socket.IPV6_RECVTCLASS, socket.IPV6_RECVPKTINFO):
            server.setsockopt(socket.IPPROTO_IPV6, option, 1)
        client.sendmsg([b"after"], [(socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT, (7).to_bytes(4, sys.byteorder))], 0, server.getsockname())
        data, control, flags, _ = server.recvmsg(99, 1000)
        print(data, sorted(control), flags)


def ipv6_only():
    """A socket on [::] with IPV6_V6ONLY leaves IPv4 to others."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind((V6, 0))
        port = server.getsockname()[1]
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as wildcard:
            wildcard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            wildcard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.close()
            wildcard.bind(("::", port))
            wildcard.settimeout(0.3)
            client.connect((V4, port))
            client.send(b"v4")
            try:
                print(wildcard.recv(9))
            except TimeoutError:
                print("not received")


def another_process():
    """A child is another program: it reaches the listener through the kernel."""
    with socket.create_server((V4, 0)) as listener:
        own = socket.create_connection(listener.getsockname(), timeout=60)
        first, _ = listener.accept()
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(listener.getsockname()[1])])
        second, _ = listener.accept()
        own.sendall(b"own")
        print(second.recv(9), first.recv(9), second.send(b"."), child.wait())
        own.close(), first.close(), second.close()


def ports():
    """The kernel knows which ports are taken, whoever has them."""
    with socket.create_server((V4, 0)) as listener, socket.socket() as second:
        try:
            second.bind(listener.getsockname())
        except OSError as error:
            print(errno.errorcode[error.errno])
    with socket.socket() as bound, socket.create_server((V4, 0)) as listener:
        bound.bind((V4, 0))
        before = bound.getsockname()
        bound.connect(listener.getsockname())
        server, peer = listener.accept()
        print(peer == before, bound.getsockname() == before)
        server.close()


def inherited():
    """A child uses a connection after its parent has closed it."""
    with socket.create_server((V4, 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=60)
        server, _ = listener.accept()
        closed, writes = os.pipe()
        if (child := os.fork()) == 0:
            os.close(writes), client.close()
            os.read(closed, 1)
            server.sendall(server.recv(9)[::-1])
            server.close()
            os._exit(0)
        server.close()
        os.close(writes)
        print(client.send(b"request"), client.recv(99), client.recv(1), os.waitpid(child, 0)[1])
        os.close(closed), client.close()


def urgent():
    """Urgent data that the receiver has in the stream (SO_OOBINLINE)."""
    with socket.create_server((V4, 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=60)
        server, _ = listener.accept()
        server.settimeout(60)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        print(client.send(b"before"), client.send(b"urgent", socket.MSG_OOB), read_all(server, 12))
        client.close(), server.close()


def no_descriptor_left():
    """A thread that waits for the first time when the process has no descriptor left."""
    with socket.create_server((V4, 0)) as listener, select.epoll() as epoll:
        epoll.register(listener)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError as error:
            print(errno.errorcode[error.errno])
        thread = threading.Thread(target=lambda: print(epoll.poll(0.01)))
        thread.start(), thread.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)


LISTENS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as parent:
    parent.connect(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0))
    socket.send_fds(parent, [b"."], [listener.fileno()])
    print("the other", listener.accept()[0].recv(9))
"""


def shared_listener():
    """Two processes have a listener: connections of one of them to it are for both."""
    path = f"/tmp/abey-hairpin-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as meeting:
        meeting.bind(path), meeting.listen()
        child = subprocess.Popen([sys.executable, "-c", LISTENS, path], stdout=subprocess.PIPE)
        stream, _ = meeting.accept()
        os.unlink(path)
        listener = socket.socket(fileno=socket.recv_fds(stream, 9, 1)[1][0])
        listener.listen()
        client = socket.create_connection(listener.getsockname(), timeout=60)
        client.sendall(b"shared")
        print(child.communicate(timeout=60)[0], child.returncode)
        client.close(), listener.close(), stream.close()


def wildcard():
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        for address in (V4, OTHER, V6, "0.0.0.0"):
            client = socket.create_connection((address, port), timeout=60)
            server, peer = listener.accept()
            print(peer[0], client.send(b"w"), server.recv(1))
            server.close(), client.close()


mine = sys.argv[1:] or ["mine", "shared"]
if "mine" in mine:
    for address in (V4, OTHER, V6):
        one_thread(address)
        datagrams(address)
    events(), web(), tasks(), ports()
if "shared" in mine:
    for address in (V4, V6):
        refused(address)
    inherited(), urgent(), no_descriptor_left(), shared_listener()
    another_process(), wildcard(), control_messages(), ipv6_only()
