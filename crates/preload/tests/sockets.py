# What a TCP socket answers in each of its states, one line per call. tests/sockets.rs runs this twice against the same peer,
# which uses kernel sockets: without the library, for the expected answers, and with it.
#
#   sockets.py peer PATH          the peer; PATH is the unix socket that takes its commands
#   sockets.py ask PATH PORT WHAT prints the answers; the run uses ports from PORT on. WHAT is "states", "calls" (calls.py), or
#                                 names of scenarios

import ctypes, errno, os, select, signal, socket, struct, sys, time

HERE, THERE = "10.8.0.1", "10.8.0.2"
HERE6, THERE6 = "fd08::1", "fd08::2"
ABSENT, SILENT = "10.8.0.99", "10.8.0.77"  # no such host; its MAC address belongs to no device


def attempt(work):
    try:
        return work()
    except OSError as error:
        return errno.errorcode.get(error.errno, error)


def peer(path):
    names = {"socket": socket, "struct": struct, "attempt": attempt, "time": time, "select": select}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            command, _ = listener.accept()
            for line in command.makefile():
                # A line is an expression, whose value is the answer, or sets a variable (`name = ...`).
                name, assigns, rest = line.strip().partition(" := ")
                try:
                    if assigns:
                        names[name] = eval(rest, names)
                        answer = repr(type(names[name]).__name__)
                    else:
                        answer = repr(eval(line, names))
                except OSError as error:
                    answer = repr(errno.errorcode.get(error.errno, str(error)))
                command.sendall((answer + "\n").encode())
            for name in [name for name, value in names.items() if isinstance(value, socket.socket)]:
                names.pop(name).close()


if sys.argv[1] == "peer":
    peer(sys.argv[2])

signal.alarm(100)
path, base = sys.argv[2], int(sys.argv[3])
control = socket.socket(socket.AF_UNIX)
control.connect(path)
answers = control.makefile()
libc = ctypes.CDLL(None, use_errno=True)


def tell(line):
    control.sendall((line + "\n").encode())
    return eval(answers.readline())


def port():
    global base
    base += 1
    return base


def say(question, answer):
    print(f"{question}: {answer}", flush=True)


def make(family=socket.AF_INET, reuse=True):
    made = socket.socket(family)
    if reuse:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def server(at=HERE, family=socket.AF_INET, backlog=16):
    made, chosen = make(family), port()
    made.bind((at, chosen))
    made.listen(backlog)
    return made, chosen


def use(listener):
    """Uses the listener for the first time, which opens it in the datapath."""
    listener.setblocking(False)
    answer = attempt(listener.accept)
    listener.setblocking(True)
    return answer


def visited(listener, at, name="a"):
    """Accepts a connection that the peer makes."""
    tell(f"{name} := socket.create_connection(({THERE if at is None else at!r}, {listener.getsockname()[1]}))")
    return listener.accept()[0]


def option(made, level, name, size=None):
    return attempt(lambda: made.getsockopt(level, name, size) if size else made.getsockopt(level, name))


def ready(made, events, wait=2.0):
    with select.epoll() as epoll:
        epoll.register(made, events)
        return [event for _, event in epoll.poll(wait)]


def last(made):
    return errno.errorcode.get(option(made, socket.SOL_SOCKET, socket.SO_ERROR), 0)


def listening_at_peer(name="l"):
    tell(f"{name} := socket.create_server(({THERE!r}, 0))")
    return tell(f"{name}.getsockname()")


def unspecified(made):
    address = struct.pack("H14x", socket.AF_UNSPEC)
    return errno.errorcode.get(ctypes.get_errno(), 0) if libc.connect(made.fileno(), address, 16) else 0


def binding():
    first, at = server()
    say("bound twice", attempt(lambda: make().bind((HERE, at))))
    say("bound again", attempt(lambda: first.bind((HERE, port()))))
    say("bound to an absent address", attempt(lambda: make().bind(("192.0.2.1", at))))
    say("wildcard beside", attempt(lambda: make().bind(("", at))))
    say("loopback beside", attempt(lambda: make().bind(("127.0.0.1", at))))
    say("listen twice", attempt(lambda: first.listen(3)))
    plain = make()
    say("listen unbound", attempt(plain.listen))
    say("has a port", plain.getsockname()[1] != 0)
    zero = make()
    zero.bind((HERE, 0))
    say("port 0", zero.getsockname()[1] != 0)
    group = [make() for _ in range(3)]
    at = port()
    for member in group[:2]:
        member.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        member.bind((HERE, at))
        member.listen()
    say("group", attempt(lambda: group[2].bind((HERE, at))))
    for member in group[:2]:
        use(member)
        member.setblocking(False)
    tell(f"c := [socket.create_connection(({HERE!r}, {at})) for _ in range(20)]")
    accepted, end = [], time.monotonic() + 120
    while len(accepted) < 20 and time.monotonic() < end:
        for member in group[:2]:
            one = attempt(member.accept)
            if not isinstance(one, str):
                accepted.append(one)
    say("the group accepts", len(accepted))
    tell("[one.close() for one in c]")


def listeners():
    listener, at = server()
    say("listens", option(listener, socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    say("bound, not listening", option(make(), socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    say("accept of one that does not listen", attempt(make().accept))
    say("no client", use(listener))
    say("peer of a listener", attempt(listener.getpeername))
    say("read a listener", attempt(lambda: listener.recv(1)))
    say("write a listener", attempt(lambda: listener.send(b"x")))
    say("connect a listener", attempt(lambda: listener.connect((THERE, 9))))
    say("shut the writing of a listener", attempt(lambda: listener.shutdown(socket.SHUT_WR)))
    connection = visited(listener, HERE)
    say("names", (connection.getsockname() == (HERE, at), connection.getpeername() == tuple(tell("a.getsockname()"))))
    say("bind a connection", attempt(lambda: connection.bind((HERE, port()))))
    say("listen on a connection", attempt(connection.listen))
    say("accept of a connection", attempt(connection.accept))
    for name in ("SO_TYPE", "SO_PROTOCOL", "SO_DOMAIN", "SO_ERROR", "SO_ACCEPTCONN"):
        say(name, (option(connection, socket.SOL_SOCKET, getattr(socket, name, 38 if name == "SO_PROTOCOL" else 39))))
    listener.settimeout(None)
    limit = struct.pack("ll", 0, 50_000)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    say("accept with a limit", attempt(listener.accept))
    say("shut a listener", attempt(lambda: listener.shutdown(socket.SHUT_RDWR)))
    say("accept of one that was shut", attempt(listener.accept))
    say("refused", tell(f"attempt(lambda: socket.create_connection(({HERE!r}, {at})))"))
    say("listen again", attempt(listener.listen))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
    say("and accept", visited(listener, HERE, "b").getsockname() == (HERE, at))


def inheritance():
    listener, _ = server()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3, 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    use(listener)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 4, 0))
    one = visited(listener, HERE)
    inherited = [
        option(one, socket.IPPROTO_TCP, socket.TCP_NODELAY),
        option(one, socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        option(one, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        option(one, socket.SOL_SOCKET, socket.SO_LINGER, 8),
        option(one, socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16),
        option(one, socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16),
        option(one, socket.SOL_SOCKET, socket.SO_RCVBUF),
    ]
    say("inherited", inherited)
    for name in ("QUICKACK", "CORK", "DEFER_ACCEPT", "USER_TIMEOUT", "SYNCNT"):
        say(name, attempt(lambda: one.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_" + name), 1)))
        say(name, option(one, socket.IPPROTO_TCP, getattr(socket, "TCP_" + name)))
    say("state", option(one, socket.IPPROTO_TCP, socket.TCP_INFO, 1))


TCP, LEVEL_IP, LEVEL_IPV6 = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
OF_TCP = {"MAXSEG": 2, "CORK": 3, "SYNCNT": 7, "USER_TIMEOUT": 18, "NOTSENT_LOWAT": 25}


def read_back(made):
    answers = {name: option(made, TCP, number) for name, number in OF_TCP.items()}
    answers["CONGESTION"] = option(made, TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    answers["TOS"] = option(made, LEVEL_IP, socket.IP_TOS)
    return answers


def set_options(made, segment=1000):
    values = {"MAXSEG": segment, "CORK": 1, "SYNCNT": 3, "USER_TIMEOUT": 12_345, "NOTSENT_LOWAT": 20_000}
    for name, value in values.items():
        say("set " + name, attempt(lambda: made.setsockopt(TCP, OF_TCP[name], value)))
    say("set CONGESTION", attempt(lambda: made.setsockopt(TCP, socket.TCP_CONGESTION, b"reno")))
    say("set TOS", attempt(lambda: made.setsockopt(LEVEL_IP, socket.IP_TOS, 0x2b)))


def options():
    "What an option of a listener and of a connection reads back, before and after; invalid values."
    listener, at = server()
    say("fresh", read_back(listener))
    set_options(listener)
    say("set", read_back(listener))
    use(listener)
    one = visited(listener, HERE)
    say("inherited", read_back(one))
    for name, value in (("MAXSEG", 1), ("SYNCNT", 0), ("SYNCNT", 200), ("USER_TIMEOUT", -1)):
        say("bad " + name, attempt(lambda: one.setsockopt(TCP, OF_TCP[name], value)))
    say("bad CONGESTION", attempt(lambda: one.setsockopt(TCP, socket.TCP_CONGESTION, b"none such")))
    set_options(one, 800)
    say("set on a connection", read_back(one))
    to = listening_at_peer()
    two = make()
    set_options(two)
    two.connect(to)
    say("connected", read_back(two))
    three = make()
    three.connect(to)
    say("plain", read_back(three))
    info = option(three, TCP, socket.TCP_INFO, 104)
    words = struct.unpack("8B24I", info)
    # State, state of recovery, options; segment sizes, unacknowledged segments, path MTU; announced segment size.
    say("info", (words[:6], words[10], words[12], words[21], words[27]))
    say("plausible", (200_000 <= words[8] <= 3_000_000, 0 < words[23] < 5_000_000, words[26] >= 2))
    say("length", len(option(three, TCP, socket.TCP_INFO, 8)))


def seen(command, count):
    "What the peer sees of TCP segments from here: of each one with data, the type of service and the payload's length."
    tell("raw.setblocking(False)")
    tell("[None for _ in iter(lambda: attempt(lambda: raw.recv(2000)), 'EAGAIN')]")
    command()
    tell("raw.settimeout(5)")
    packets = []
    while len(packets) < count:
        packet = tell("attempt(lambda: raw.recv(2000))")
        if not isinstance(packet, bytes):
            break
        length, header = int.from_bytes(packet[2:4], "big"), 4 * (packet[0] & 15)
        if packet[9] == 6 and packet[12:16] == socket.inet_aton(HERE):
            data = length - header - 4 * (packet[header + 12] >> 4)
            if data:
                packets.append((hex(packet[1]), data))
    return packets


def on_the_wire():
    "TCP_MAXSEG, TCP_CORK, MSG_MORE and IP_TOS, as the peer sees them."
    tell("raw := socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))")
    listener, at = server()
    use(listener)
    one = visited(listener, HERE)
    one.setsockopt(LEVEL_IP, socket.IP_TOS, 0x48)
    say("a class", seen(lambda: one.send(b"x"), 1))
    one.setsockopt(TCP, OF_TCP["CORK"], 1)
    began = time.monotonic()
    say("corked, for a time", seen(lambda: one.send(b"x" * 7), 1))
    say("not at once", time.monotonic() - began > 0.15)

    def pieces():
        for _ in range(5):
            one.send(b"x" * 10)
        one.setsockopt(TCP, OF_TCP["CORK"], 0)

    say("corked", seen(pieces, 1))
    say("more", seen(lambda: [one.send(b"y" * 3, socket.MSG_MORE), one.send(b"y" * 4)], 1))
    say("read", len(tell("a.recv(1000)")))
    one.close()
    small, at = server()
    small.setsockopt(TCP, OF_TCP["MAXSEG"], 700)
    use(small)
    one = visited(small, HERE)
    lengths = [length for _, length in seen(lambda: one.send(bytes(3000)), 5)]
    # The kernel's segments may be seen before they are cut (TSO).
    say("small segments", ({length % 688 for length in lengths} <= {0, 3000 % 688}, sum(lengths)))
    say("the peer's, too", tell("a.getsockopt(6, 2)"))
    tell("raw.close()")


def hops(command):
    "The TTL of the first packet with data that the peer sees."
    tell("raw.setblocking(False)")
    tell("[None for _ in iter(lambda: attempt(lambda: raw.recv(2000)), 'EAGAIN')]")
    command()
    tell("raw.settimeout(5)")
    while isinstance(packet := tell("attempt(lambda: raw.recv(2000))"), bytes):
        if packet[12:16] == socket.inet_aton(HERE) and b"hops" in packet:
            return packet[8]


SO_MAX_PACING_RATE, TCP_WINDOW_CLAMP, TCP_ULP, TCP_REPAIR, SO_TIMESTAMPNS, IP_RECVTTL, IP_RECVERR, MSG_ERRQUEUE = 47, 10, 31, 19, 35, 12, 11, 0x2000


def exchange(one):
    "Sends as many bytes in each direction as need several windows."
    tell("a.sendall(b'x' * 50_000)")
    got = 0
    while got < 50_000:
        got += len(one.recv(100_000))
    one.sendall(bytes(50_000))
    return len(tell("a.recv(50_000, socket.MSG_WAITALL)"))


def options_of_the_kernel():
    "Options that change what is sent or received, on connections and before."
    tell("raw := socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))")
    listener, at = server()
    use(listener)
    one = visited(listener, HERE)
    say("TTL", (attempt(lambda: one.setsockopt(LEVEL_IP, socket.IP_TTL, 77)), option(one, LEVEL_IP, socket.IP_TTL)))
    say("sent", hops(lambda: one.send(b"hops")))
    say("received", tell("a.recv(9)"))
    one = visited(listener, HERE)
    tell("a.sendall(b'abc')")
    ready(one, select.EPOLLIN)
    say("low water", attempt(lambda: one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)))
    say("below", ready(one, select.EPOLLIN, 0.2))
    tell("a.sendall(b'x' * 20)")
    say("above", (ready(one, select.EPOLLIN), len(one.recv(100))))
    one = visited(listener, HERE)
    say("timestamps", attempt(lambda: one.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)))
    time.sleep(0.2)
    tell("a.sendall(b'abc')")
    say("one", [(level, kind, len(value)) for level, kind, value in one.recvmsg(10, 100)[1]])
    for level, number, value in (
        (socket.SOL_SOCKET, SO_MAX_PACING_RATE, 100_000_000),
        (socket.SOL_SOCKET, socket.SO_MARK, 7),
        (TCP, TCP_WINDOW_CLAMP, 30_000),
        (TCP, socket.TCP_CONGESTION, b"bbr"),
        (TCP, TCP_REPAIR, 1),
        (TCP, TCP_REPAIR, 0),
        (TCP, TCP_ULP, b"none such"),
        (socket.SOL_SOCKET, socket.SO_PRIORITY, 3),
        (LEVEL_IP, IP_RECVERR, 1),
    ):
        one = visited(listener, HERE)
        say((level, number), attempt(lambda: one.setsockopt(level, number, value)))
        if number != TCP_ULP:
            say("reads", option(one, level, number, len(value) if isinstance(value, bytes) else None))
        if number == TCP_REPAIR and value:
            one.setsockopt(level, number, 0)
        say("works", exchange(one))
        say("names", (one.getsockname() == (HERE, at), one.getpeername() == tuple(tell("a.getsockname()"))))
    to = listening_at_peer()
    one = make()
    one.setsockopt(LEVEL_IP, socket.IP_TTL, 33)
    one.connect(to)
    say("connected with it", hops(lambda: one.send(b"hops")))
    early = make()
    at = port()
    early.bind((HERE, at))
    early.setsockopt(LEVEL_IP, socket.IP_TTL, 44)
    early.listen()
    use(early)
    say("inherited", hops(lambda: visited(early, HERE).send(b"hops")))
    say("read", tell("a.recv(9)"))
    late, at = server()
    use(late)
    late.setsockopt(LEVEL_IP, socket.IP_TTL, 55)
    time.sleep(0.1)
    say("inherited later", hops(lambda: visited(late, HERE).send(b"hops")))
    tell("raw.close()")


def options_of_datagrams():
    tell("u := socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    tell(f"u.bind(({THERE!r}, 0))")
    tell("u.settimeout(5)")
    for when in ("before", "after", "with a datagram"):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        at = port()

        def set_all():
            for level, number in ((LEVEL_IP, IP_RECVTTL), (LEVEL_IP, IP_RECVERR), (socket.SOL_SOCKET, SO_TIMESTAMPNS)):
                one.setsockopt(level, number, 1)

        if when == "before":
            set_all()
        one.bind((HERE, at))
        if when == "with a datagram":
            tell(f"u.sendto(b'early', ({HERE!r}, {at}))")
            ready(one, select.EPOLLIN)
        if when != "before":
            set_all()
        if when == "with a datagram":
            say("the early one", one.recv(9))
        one.sendto(b"out", tuple(tell("u.getsockname()")))
        say("they read", tell("u.recvfrom(9)") == (b"out", (HERE, at)))
        tell(f"u.sendto(b'in', ({HERE!r}, {at}))")
        data, control, flags, peer = one.recvmsg(9, 200)
        say(when, (data, sorted((level, kind, len(value)) for level, kind, value in control), peer[0]))
        one.sendto(b"refused", (THERE, 1))
        say("an error", ready(one, select.EPOLLIN))
        data, control, flags, peer = one.recvmsg(9, 200, MSG_ERRQUEUE)
        say("which", (data, [(level, kind, len(value)) for level, kind, value in control if kind == IP_RECVERR], peer))


def unsent():
    "TCP_NOTSENT_LOWAT, with a peer that does not read."
    listener, at = server()
    use(listener)
    tell("a := socket.socket()")
    tell("a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)")
    tell(f"a.connect(({HERE!r}, {at}))")
    one = listener.accept()[0]
    one.setblocking(False)
    one.setsockopt(TCP, OF_TCP["NOTSENT_LOWAT"], 10_000)
    total = 0
    # Until the peer's window is full, too.
    while True:
        while isinstance(sent := attempt(lambda: one.send(bytes(2000))), int):
            total += sent
        if not ready(one, select.EPOLLOUT, 0.3):
            break
    # The send buffer would hold more.
    say("refused", (sent, total < 300_000))
    left = total
    while left > 1000:
        left -= len(tell("a.recv(60_000)"))
    say("writable", ready(one, select.EPOLLOUT))
    say("all of it", total - left > 0)


def linger():
    "`close` waits until the peer has everything, or for a time."
    listener, at = server()
    use(listener)
    one = visited(listener, HERE)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    one.sendall(b"x" * 10_000)
    began = time.monotonic()
    one.close()
    say("soon", time.monotonic() - began < 15)
    say("all there", len(tell("b''.join(iter(lambda: a.recv(100_000), b''))")))
    for blocking in (True, False):
        tell("a := socket.socket()")
        tell("a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)")
        tell(f"a.connect(({HERE!r}, {at}))")
        one = listener.accept()[0]
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
        one.setblocking(False)
        total = 0
        while total < 200_000 and isinstance(sent := attempt(lambda: one.send(bytes(2000))), int):
            total += sent
        one.setblocking(blocking)
        began = time.monotonic()
        one.close()
        waited = time.monotonic() - began
        say("for its time", (waited > 0.9, waited < 30))
        say("and not reset", len(tell("b''.join(iter(lambda: a.recv(100_000), b''))")) == total)
    # Only the last descriptor waits.
    one = visited(listener, HERE)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    other = one.dup()
    one.sendall(b"x")
    one.close()
    other.sendall(b"y")
    other.close()
    say("both", tell("b''.join(iter(lambda: a.recv(100_000), b''))"))


def deferred():
    "TCP_DEFER_ACCEPT."
    listener, at = server()
    listener.setsockopt(TCP, socket.TCP_DEFER_ACCEPT, 30)
    say("reads", option(listener, TCP, socket.TCP_DEFER_ACCEPT))
    use(listener)
    tell(f"a := socket.create_connection(({HERE!r}, {at}))")
    listener.setblocking(False)
    say("not ready", ready(listener, select.EPOLLIN, 0.1))
    say("nobody", attempt(listener.accept))
    tell("a.sendall(b'now')")
    say("ready", ready(listener, select.EPOLLIN))
    say("with data", listener.accept()[0].recv(9))


def silent():
    "TCP_USER_TIMEOUT, with a peer that has gone away."
    listener, at = server()
    use(listener)
    one = visited(listener, HERE)
    one.setsockopt(TCP, OF_TCP["USER_TIMEOUT"], 700)
    tell("drop := __import__('subprocess').call(['ip', 'route', 'add', 'blackhole', '10.8.0.1/32'])")
    one.send(b"x")
    began = time.monotonic()
    say("error", ready(one, select.EPOLLIN, 20))
    say("which", last(one))
    say("soon", time.monotonic() - began < 18)
    tell("drop := __import__('subprocess').call(['ip', 'route', 'del', 'blackhole', '10.8.0.1/32'])")


def families():
    wildcard, at = server("::", socket.AF_INET6)
    use(wildcard)
    for to, mapped in ((HERE, "::ffff:"), (HERE6, "")):
        one = visited(wildcard, to)
        say("dual", (one.getpeername()[0], one.getsockname()[:2] == (mapped + to, at)))
    only = make(socket.AF_INET6)
    at = port()
    only.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    only.bind(("::", at))
    only.listen()
    use(only)
    say("IPv6 only", visited(only, HERE6).getpeername()[0])
    say("and not IPv4", tell(f"attempt(lambda: socket.create_connection(({HERE!r}, {at})))"))
    beside = make()
    say("IPv4 beside", attempt(lambda: beside.bind(("", at))))
    beside.listen()
    use(beside)
    say("its visitor", visited(beside, HERE).getpeername()[0])
    say("the other's", visited(only, HERE6).getpeername()[0])
    to = listening_at_peer()
    mapped = make(socket.AF_INET6)
    say("mapped", attempt(lambda: mapped.connect(("::ffff:" + THERE, to[1]))))
    say("its names", (mapped.getpeername()[0], mapped.getsockname()[0]))
    say("a family too many", attempt(lambda: make(socket.AF_INET6).connect((THERE6, to[1]))))


def connecting():
    to = listening_at_peer()
    closed = (THERE, 1)
    one = make()
    say("peer of none", attempt(one.getpeername))
    say("name of none", one.getsockname())
    say("shut none", attempt(lambda: one.shutdown(socket.SHUT_RDWR)))
    say("read none", attempt(lambda: one.recv(1)))
    say("refused", attempt(lambda: one.connect(closed)))
    say("no error left", last(one))
    say("peer after", attempt(one.getpeername))
    say("then connected", attempt(lambda: one.connect(to)))
    say("connected again", attempt(lambda: one.connect(to)))
    say("names", (one.getpeername() == tuple(to), one.getsockname()[0]))
    say("state", option(one, socket.IPPROTO_TCP, socket.TCP_INFO, 1))

    two = make()
    two.setblocking(False)
    say("begun", attempt(lambda: two.connect(to)))
    say("writable", ready(two, select.EPOLLOUT))
    say("no error", last(two))
    say("reported once", attempt(lambda: two.connect(to)))
    say("then", attempt(lambda: two.connect(to)))

    for order in ("asked for", "not asked for"):
        three = make()
        three.setblocking(False)
        say("begun", attempt(lambda: three.connect(closed)))
        say("failed", ready(three, select.EPOLLOUT))
        if order == "asked for":
            say("error", (last(three), last(three)))
        say("connect tells", attempt(lambda: three.connect(to)))
        say("and begins anew", attempt(lambda: three.connect(to)))
        say("writable", ready(three, select.EPOLLOUT))
        say("error", last(three))

    four = make()
    four.setblocking(False)
    say("begun", attempt(lambda: four.connect((SILENT, 9))))
    say("again", attempt(lambda: four.connect((SILENT, 9))))
    say("not writable", ready(four, select.EPOLLOUT, 0.05))
    say("peer of half", attempt(four.getpeername))
    say("read half", attempt(lambda: four.recv(1)))
    say("write half", attempt(lambda: four.send(b"x")))
    say("state of half", option(four, socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    say("shut half", attempt(lambda: four.shutdown(socket.SHUT_RDWR)))
    five = make()
    five.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    say("with a limit", attempt(lambda: five.connect((SILENT, 9))))
    say("absent host", attempt(lambda: make().connect((ABSENT, 9))))
    say("no port", attempt(lambda: make().connect((THERE, 0))) in ("ECONNREFUSED", "EINVAL"))


def bound_before():
    to, other = listening_at_peer(), listening_at_peer("m")
    at = port()
    one = make()
    one.bind((HERE, at))
    say("bound and connected", attempt(lambda: one.connect(to)))
    say("from there", (one.getsockname() == (HERE, at), tell("l.accept()[0].getpeername()[0]")))
    two = make()
    say("the port again", attempt(lambda: two.bind((HERE, at))))
    say("to the same", attempt(lambda: two.connect(to)))
    say("to another", attempt(lambda: two.connect(other)))
    three = make()
    three.bind((HERE, 0))
    chosen = three.getsockname()
    say("port of the kernel's", attempt(lambda: three.connect(to)))
    say("kept", three.getsockname() == chosen)
    four = make()
    at = port()
    four.bind(("", at))
    say("wildcard and port", attempt(lambda: four.connect(to)))
    say("name", four.getsockname() == (HERE, at))
    say("disconnected", unspecified(four))
    say("peer after", attempt(four.getpeername))
    say("port after", four.getsockname()[1] == at)
    say("and connected to another", attempt(lambda: four.connect(other)))
    say("from loopback", attempt(lambda: (lambda five: (five.bind(("127.0.0.1", 0)), five.connect(to)))(make())))


def endings():
    listener, at = server()
    use(listener)
    one = visited(listener, HERE)
    say("half closed by us", attempt(lambda: one.shutdown(socket.SHUT_WR)))
    say("peer's end", tell("a.recv(9)"))
    say("write after", attempt(lambda: one.send(b"x")))
    tell("a.sendall(b'still')")
    say("read on", one.recv(9))
    say("shut twice", attempt(lambda: one.shutdown(socket.SHUT_WR)))
    tell("a.close()")
    say("the end", one.recv(9))

    one = visited(listener, HERE)
    tell("a.shutdown(1)")
    say("half closed by them", one.recv(9))
    say("event", ready(one, select.EPOLLIN | select.EPOLLRDHUP))
    say("state", option(one, socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    one.sendall(b"more")
    say("they read", tell("a.recv(9)"))
    one.close()
    say("their end", tell("a.recv(9)"))

    one = visited(listener, HERE)
    tell("a.sendall(b'unread')")
    ready(one, select.EPOLLIN)
    one.close()
    say("closed with data unread", tell("a.recv(9)"))

    one = visited(listener, HERE)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
    say("closed without lingering", tell("a.recv(9)"))

    one = visited(listener, HERE)
    tell("a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))")
    tell("a.close()")
    say("reset by them", ready(one, select.EPOLLIN))
    say("read it", attempt(lambda: one.recv(9)))
    say("no more", (last(one), attempt(lambda: one.recv(9)), attempt(lambda: one.send(b"x"))))
    say("peer", attempt(one.getpeername))
    say("shut", attempt(lambda: one.shutdown(socket.SHUT_RDWR)))

    one = visited(listener, HERE)
    say("reading shut", attempt(lambda: one.shutdown(socket.SHUT_RD)))
    say("read", one.recv(9))
    one.sendall(b"out")
    say("they read", tell("a.recv(9)"))

    one = visited(listener, HERE)
    duplicate = one.dup()
    one.close()
    duplicate.sendall(b"alive")
    say("a duplicate", tell("a.recv(9)"))
    say("disconnected", unspecified(duplicate))
    say("they see", tell("a.recv(9)"))
    say("we see", attempt(duplicate.getpeername))

    one = visited(listener, HERE)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 300, 0))
    began = time.monotonic()
    say("read with a limit", attempt(lambda: one.recv(9)))
    say("in time", time.monotonic() - began < 120)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 300, 0))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 50_000))
    began = time.monotonic()
    total = 0
    while isinstance(sent := attempt(lambda: one.send(bytes(1 << 20))), int):
        total += sent
    say("write with a limit", (sent, total > 100_000, time.monotonic() - began < 120))


def overflow():
    listener, at = server(backlog=1)
    use(listener)
    tell("c := [socket.socket() for _ in range(12)]")
    tell("[one.setblocking(False) for one in c]")
    tell(f"[(attempt(lambda: one.connect(({HERE!r}, {at}))), time.sleep(0.02)) for one in c]")
    came = tell("[len(select.select([], [one], [], 0)[1]) for one in c].count(1)")
    # The datapath has a backlog of this length for each of the NIC's two queues, and passes what exceeds it to the kernel.
    say("they came", 2 <= came <= 6)
    listener.setblocking(False)
    accepted = []
    while not isinstance(one := attempt(listener.accept), str):
        accepted.append(one)
    say("accepted", len(accepted) == came)
    tell("[one.close() for one in c]")


def restart():
    listener, at = server()
    use(listener)
    one, other = visited(listener, HERE), visited(listener, HERE, "b")
    one.close()
    say("their end", tell("a.recv(9)"))
    tell("a.close()")
    listener.close()
    time.sleep(0.2)
    say("refused meanwhile", tell(f"attempt(lambda: socket.create_connection(({HERE!r}, {at})))"))
    again = make()
    say("bound at once", attempt(lambda: again.bind((HERE, at))))
    say("listens at once", attempt(again.listen))
    use(again)
    visited(again, HERE).sendall(b"new")
    say("serves", tell("a.recv(9)"))
    other.sendall(b"old")
    say("and the old one", tell("b.recv(9)"))


exec(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls.py")).read())

STATES = (binding, listeners, inheritance, options, on_the_wire, options_of_the_kernel, options_of_datagrams, unsent, linger, deferred,
          silent, families, connecting, bound_before, endings, overflow, restart)
only = sys.argv[4:]
for scenario in STATES + CALLS:
    kind = "states" if scenario in STATES else "calls"
    if kind in only or scenario.__name__ in only:
        print(f"{scenario.__name__}:")
        scenario()
