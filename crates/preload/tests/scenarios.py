# Waits with every call for sockets, for kernel descriptors and for both, and prints the results. tests/waits.rs runs this
# over the kernel and over the datapath, compares the output, and is the peer.
#
# A line that begins with "!" is a command to the peer, which answers with a line. All other lines are results.

import asyncio, ctypes, errno, faulthandler, fcntl, os, select, signal, socket, struct, sys, termios, threading, time

# The test's alarm would be later, and is replaced by the timer of the signals below.
faulthandler.dump_traceback_later(50, exit=True)
OWN, PEER = os.environ["SCENARIO_OWN"], os.environ["SCENARIO_PEER"]
libc = ctypes.CDLL(None, use_errno=True)
ports = iter(range(7001, 8000))


def say(*words):
    print(*words, flush=True)


def peer(*words):
    say("!" + " ".join(str(word) for word in words))
    answer = sys.stdin.readline().strip()
    assert answer and not answer.startswith("error"), (words, answer)
    return answer


# The C functions.

class PollFd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]

class Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]

class Timeval(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("usec", ctypes.c_long)]

class EpollEvent(ctypes.Structure):
    _pack_ = 1 if os.uname().machine == "x86_64" else 0
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]

BITS = {"IN": 1, "PRI": 2, "OUT": 4, "ERR": 8, "HUP": 16, "NVAL": 32, "RDNORM": 64, "RDBAND": 128, "WRNORM": 256,
        "WRBAND": 512, "RDHUP": 0x2000}
ALL = 1 | 2 | 4 | 64 | 128 | 256 | 512 | 0x2000
IN, OUT, RDHUP = 1, 4, 0x2000


def names(bits):
    return "|".join(name for name, bit in BITS.items() if bits & bit) or "-"


def result(answer):
    return answer if answer >= 0 else errno.errorcode[ctypes.get_errno()]


def time_of(kind, seconds):
    if seconds is None:
        return None
    unit = 1e9 if kind is Timespec else 1e6
    return ctypes.byref(kind(int(seconds), int(seconds % 1 * unit)))


def sigset(*signals):
    bits = sum(1 << (number - 1) for number in signals)
    return (ctypes.c_ulong * 16)(bits)


def poll(wanted, seconds=0, call="poll", mask=None):
    fds = (PollFd * len(wanted))(*[PollFd(fd if isinstance(fd, int) else fd.fileno(), events, -1) for fd, events in wanted])
    millis = -1 if seconds is None else int(seconds * 1000)
    if call == "poll":
        answer = libc.poll(fds, len(fds), millis)
    elif call == "__poll_chk":
        answer = libc.__poll_chk(fds, len(fds), millis, ctypes.c_size_t(ctypes.sizeof(fds)))
    elif call == "ppoll":
        answer = libc.ppoll(fds, len(fds), time_of(Timespec, seconds), mask)
    else:
        answer = libc.__ppoll_chk(fds, len(fds), time_of(Timespec, seconds), mask, ctypes.c_size_t(ctypes.sizeof(fds)))
    answer = result(answer)
    return answer, [names(fd.revents) for fd in fds] if isinstance(answer, int) else None


def sets_of(count, *sets):
    words = [(ctypes.c_ulong * (count // 64 + 1))() for _ in sets]
    for word, members in zip(words, sets):
        for member in members:
            word[member.fileno() // 64] |= 1 << (member.fileno() % 64)
    return words


def in_sets(words, count):
    return [[fd for fd in range(count) if one[fd // 64] & 1 << fd % 64] for one in words]


def choose(reads=(), writes=(), excepts=(), seconds=0, call="select", mask=None):
    everyone = [*reads, *writes, *excepts]
    count = max([one.fileno() for one in everyone], default=-1) + 1
    sets = sets_of(count, reads, writes, excepts)
    left = Timeval(int(seconds or 0), int((seconds or 0) % 1 * 1e6))
    if call == "select":
        answer = libc.select(count, *sets, None if seconds is None else ctypes.byref(left))
    else:
        answer = libc.pselect(count, *sets, time_of(Timespec, seconds), mask)
    answer = result(answer)
    places = {one.fileno(): at for at, one in enumerate(everyone)}
    results = [[places.get(fd, fd) for fd in one] for one in in_sets(sets, count)]
    return answer, results, left.sec + left.usec / 1e6


class Poll:
    """An epoll instance, used through the C functions."""

    def __init__(self):
        self.fd = libc.epoll_create1(0o2000000)

    def fileno(self):
        return self.fd

    def control(self, op, fd, events=0, data=None):
        fd = fd if isinstance(fd, int) else fd.fileno()
        event = EpollEvent(events & 0xffffffff, fd if data is None else data)
        return result(libc.epoll_ctl(self.fd, {"add": 1, "del": 2, "mod": 3}[op], fd, ctypes.byref(event)))

    def wait(self, seconds=0, room=16, call="epoll_wait", mask=None):
        # While sockets are ready, the kernel members are checked every 100 us only.
        time.sleep(0.0005)
        events = (EpollEvent * room)()
        millis = -1 if seconds is None else int(seconds * 1000)
        if call == "epoll_wait":
            answer = libc.epoll_wait(self.fd, events, room, millis)
        elif call == "epoll_pwait":
            answer = libc.epoll_pwait(self.fd, events, room, millis, mask)
        else:
            answer = libc.epoll_pwait2(self.fd, events, room, time_of(Timespec, seconds), mask)
        answer = result(answer)
        if not isinstance(answer, int):
            return answer
        return sorted((event.data, names(event.events)) for event in events[:answer])

    def close(self):
        os.close(self.fd)


def until(fd, bits, seconds=10):
    """Waits until a descriptor is ready for all of these conditions, and so what the peer did has arrived."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        results = select.poll()
        results.register(fd, ALL)
        if any(revents & bits == bits for _, revents in results.poll(0)):
            return
        time.sleep(0.002)
    raise AssertionError("never came: " + names(bits))


def listening():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((OWN, next(ports)))
    listener.listen(8)
    # A datapath listener is opened by the first wait for it.
    poll([(listener, IN)])
    return listener


def connected(listener):
    number = peer("connect", listener.getsockname()[1])
    until(listener, IN)
    connection, _ = listener.accept()
    return connection, number


def bytes_to_read(connection, count):
    end = time.monotonic() + 120
    while struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))[0] < count:
        assert time.monotonic() < end
        time.sleep(0.002)


# Scenarios.

def states():
    for call in ("poll", "ppoll", "__poll_chk", "__ppoll_chk"):
        listener = listening()
        say(call, "listens", poll([(listener, ALL)], 0, call))
        number = peer("connect", listener.getsockname()[1])
        say("connected", poll([(listener, IN)], 10, call), poll([(listener, ALL)], 0, call))
        connection, _ = listener.accept()
        say("accepted", poll([(listener, ALL), (connection, ALL)], 0, call))
        say("idle", poll([(connection, IN)], 0, call), poll([(connection, IN)], 0.01, call))
        say("writable", poll([(connection, OUT)], None, call), poll([(connection, 256)], 1, call))
        peer("send", number, "hello")
        say("data", poll([(connection, IN)], None, call), poll([(connection, ALL)], 0, call), poll([(connection, 64)], 0, call))
        say(connection.recv(2), poll([(connection, ALL)], 0, call), connection.recv(9), poll([(connection, ALL)], 0, call))
        peer("shut", number)
        say("its end", poll([(connection, RDHUP)], 10, call), poll([(connection, ALL)], 0, call), poll([(connection, 0)], 0, call))
        say(connection.recv(9), poll([(connection, ALL)], 0, call))
        connection.shutdown(socket.SHUT_WR)
        say("both ends", poll([(connection, 0)], 10, call), poll([(connection, ALL)], 0, call))
        connection.close()
        connection, number = connected(listener)
        peer("reset", number)
        say("reset", poll([(connection, RDHUP)], 10, call), poll([(connection, ALL)], 0, call), poll([(connection, 0)], 0, call))
        say(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), poll([(connection, ALL)], 0, call))
        connection.close()
        listener.close()


def mixed():
    listener = listening()
    connection, number = connected(listener)
    reader, writer = os.pipe()
    event = os.eventfd(0, os.EFD_NONBLOCK)
    left, right = socket.socketpair()
    file = open("/etc/passwd")
    closed = os.dup(0)
    os.close(closed)
    everyone = [(reader, ALL), (connection, IN), (-1, ALL), (event, IN), (left, IN), (file, ALL), (closed, ALL), (-7, 0),
                (listener, IN), (writer, OUT), (0 if False else connection, OUT), (connection, IN)]
    say("at first", poll(everyone, None))
    quiet = [(reader, IN), (connection, IN), (-1, ALL), (event, IN), (left, IN), (listener, IN)]
    say("quiet", poll(quiet, 0), poll(quiet, 0.02), poll(quiet, 0.02, "ppoll"))
    os.write(writer, b"x")
    say("a pipe", poll(quiet, None), poll(quiet, None, "ppoll"))
    peer("send", number, "x")
    until(connection, IN)
    say("and the datapath", poll(quiet, None), poll(quiet, 0))
    os.read(reader, 9)
    say("datapath", poll(quiet, None))
    connection.recv(9)
    right.send(b"y")
    os.eventfd_write(event, 3)
    say("kernel's", poll(quiet, 0), poll(quiet, None))
    os.close(writer)
    say("closed pipe", poll(quiet, None))
    say("duplicate", poll([(connection, IN), (os.dup(connection.fileno()), ALL)], None))
    say("nothing", poll([], 0.01), poll([(-1, IN)], 0))
    for one in (listener, connection, left, right, file):
        one.close()
    os.close(reader)
    os.close(event)


def selects():
    listener = listening()
    connection, number = connected(listener)
    reader, writer = os.pipe()
    pipe, end = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)
    for call in ("select", "pselect"):
        say(call, "quiet", choose([listener, connection, pipe], seconds=0, call=call)[:2],
            choose([listener, connection, pipe], seconds=0.01, call=call)[:2])
        say("writable", choose([listener, connection], [connection, end], [connection, end], None, call)[:2])
        peer("send", number, "x")
        say("data", choose([connection, pipe], [], [connection], 10, call)[:2])
        end.write(b"z")
        say("both", choose([connection, pipe, listener], [end], [], None, call)[:2])
        say("once for each set", choose([connection], [connection], [connection], 5, call)[:2])
        connection.recv(9), pipe.read(9)
    left = choose([connection], seconds=0.1)[2]
    say("time passed", left == 0)
    peer("later", 30, "send", number, "x")
    answer, results, left = choose([connection], seconds=50)
    say("time is left", answer, results, 40 < left < 50)
    high = fcntl.fcntl(connection, fcntl.F_DUPFD, 1500)
    far = os.fdopen(high, "rb", 0)
    say("beyond 1024", choose([far, pipe], [end], [], None)[:2])
    far.close()
    class Closed:
        def fileno(self):
            return 900
    say("closed", choose([connection, Closed()])[:1], choose([Closed()])[:1])
    bad = Timeval(-1, 0)
    word = (ctypes.c_ulong * 16)()
    say("no time", result(libc.select(1, word, word, word, ctypes.byref(bad))))
    peer("shut", number)
    connection.recv(9)
    until(connection, RDHUP)
    say("its end", choose([connection], [connection], [connection], 5)[:2])
    connection.shutdown(socket.SHUT_WR)
    until(connection, 16)
    say("both ends", choose([connection], [connection], [connection], 5)[:2], choose([], [], [connection], 0.02)[:2])
    for one in (listener, connection, pipe, end):
        one.close()


def epolls():
    ET, ONESHOT, EXCLUSIVE = 1 << 31, 1 << 30, 1 << 28
    for call in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
        listener, epoll = listening(), Poll()
        wait = lambda seconds=0, room=16: epoll.wait(seconds, room, call)
        say(call, epoll.control("add", listener, IN, 1), epoll.control("add", listener, IN, 1), wait())
        number = peer("connect", listener.getsockname()[1])
        say("connected", wait(10), wait(), wait(0.01))
        connection, _ = listener.accept()
        event = os.eventfd(0)
        say(epoll.control("mod", connection, IN), epoll.control("del", connection), epoll.control("add", event, IN, 9))
        say("added", epoll.control("add", connection, IN | OUT | RDHUP, 2), wait(None), wait(0.01))
        say("mod", epoll.control("mod", connection, IN, 3), wait(), wait(0.01))
        os.eventfd_write(event, 1)
        peer("send", number, "x")
        until(connection, IN)
        say("both", wait(None), wait(None), len(wait(None, 1)), epoll.control("mod", event, IN, 4), wait(1))
        os.eventfd_read(event)
        say("edge", epoll.control("mod", connection, IN | ET, 5), wait(1), wait(0.01))
        peer("send", number, "x")
        bytes_to_read(connection, 2)
        say(wait(1), wait(0.01), connection.recv(1), wait(0.01))
        say("once", epoll.control("mod", connection, IN | ONESHOT, 6), wait(1), wait(0.01),
            epoll.control("mod", connection, IN | ONESHOT, 7), wait(1), wait(0.01))
        say("kernel's edge", epoll.control("mod", event, IN | ET, 8), os.eventfd_write(event, 1), wait(1), wait(0.01))
        say("kernel's once", epoll.control("mod", event, IN | ONESHOT, 8), wait(1), wait(0.01))
        say("exclusive", epoll.control("mod", connection, IN | EXCLUSIVE, 7), epoll.control("del", connection),
            epoll.control("add", connection, IN | EXCLUSIVE, 7), wait(1), epoll.control("mod", connection, IN, 7))
        say("del", epoll.control("del", connection), epoll.control("del", connection), wait(0.01))
        say("wrong", epoll.control("add", epoll, IN), epoll.control("add", 900, IN), epoll.control("add", connection, 0, 1),
            result(libc.epoll_ctl(epoll.fd, 77, connection.fileno(), ctypes.byref(EpollEvent()))),
            result(libc.epoll_ctl(connection.fileno(), 1, listener.fileno(), ctypes.byref(EpollEvent()))),
            wait(0, 0) if call == "epoll_wait" else None)
        os.close(event)
        for one in (listener, connection, epoll):
            one.close()


def names_of_members():
    listener, epoll = listening(), Poll()
    connection, number = connected(listener)
    say(epoll.control("add", connection, IN, 1))
    other = os.dup(connection.fileno())
    say("duplicate", epoll.control("add", other, IN | OUT, 2), epoll.wait(1))
    peer("send", number, "x")
    until(connection, IN)
    say(epoll.wait(1), epoll.control("mod", other, IN, 3), epoll.wait(1))
    number_of_it = connection.fileno()
    connection.close()
    say("one is closed", epoll.wait(1), epoll.control("del", number_of_it), epoll.control("del", other), epoll.wait(0.01))
    os.close(other)
    say("both are", epoll.wait(0.01))
    second, number = connected(listener)
    # It usually has this descriptor anyway.
    if second.fileno() != number_of_it:
        os.dup2(second.fileno(), number_of_it)
        second.close()
        second = socket.socket(fileno=number_of_it)
    say("the number again", epoll.control("add", number_of_it, OUT, 4), epoll.wait(1))
    second.close()
    reader, writer = os.pipe()
    os.dup2(reader, number_of_it)
    say("and a pipe", epoll.control("add", number_of_it, IN, 5), os.write(writer, b"x"), epoll.wait(1))
    for one in {reader, writer, number_of_it}:
        os.close(one)
    say("nothing", epoll.wait(0.01))
    listener.close()
    epoll.close()


def early():
    epoll = Poll()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    say(epoll.control("add", listener, IN, 1))
    listener.bind((OWN, next(ports)))
    say(epoll.control("mod", listener, IN, 2))
    listener.listen(4)
    say("listens", epoll.wait(0.01), epoll.control("add", listener, IN, 2))
    number = peer("connect", listener.getsockname()[1])
    say("connected", epoll.wait(10))
    listener.accept()[0].close()
    say("accepted", epoll.wait(0.01), epoll.control("mod", listener, IN, 3), epoll.control("del", listener), epoll.control("del", listener))
    peer("listen", 7500)
    for waits in (True, False):
        client = socket.socket()
        say("client", epoll.control("add", client, IN | OUT | RDHUP, 5))
        client.setblocking(waits)
        say(client.connect_ex((PEER, 7500)) in (0, errno.EINPROGRESS))
        number = peer("accept", 7500)
        until(client, OUT)
        say(epoll.wait(10), client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), epoll.control("mod", client, IN, 6))
        peer("send", number, "x")
        say(epoll.wait(10), epoll.control("add", client, IN), client.recv(9), epoll.wait(0.01))
        client.close()
        say("closed", epoll.wait(0.01))
    never = socket.socket()
    say("neither", epoll.control("add", never, IN | OUT, 8), epoll.wait(1), poll([(never, ALL)], 0))
    never.close()
    listener.close()
    epoll.close()


def nested():
    inner, outer, third = Poll(), Poll(), Poll()
    listener = listening()
    event = os.eventfd(0)
    say(outer.control("add", inner, IN, 1), third.control("add", outer, IN, 2), outer.control("add", event, IN, 3))
    say(inner.control("add", listener, IN, 4), inner.control("add", outer, IN))
    say("quiet", outer.wait(0.01), third.wait(0.01), poll([(inner, IN), (outer, IN)], 0.01), choose([inner, outer])[:2])
    number = peer("connect", listener.getsockname()[1])
    say("ready", third.wait(10), outer.wait(1), poll([(inner, ALL), (outer, IN), (event, IN)], 1), choose([inner, outer], seconds=1)[:2])
    say(inner.wait(1))
    connection, _ = listener.accept()
    say("taken", third.wait(0.01), outer.wait(0.01), poll([(inner, IN)], 0.01), inner.wait(0.01))
    say("datapath socket in both", outer.control("add", connection, IN, 5), outer.wait(0.01))
    peer("send", number, "x")
    say(outer.wait(10), third.wait(1), poll([(inner, IN), (outer, IN), (connection, IN)], 1))
    connection.recv(9)
    os.eventfd_write(event, 1)
    say(outer.wait(1), inner.wait(0.01))
    peer("connect", listener.getsockname()[1])
    until(listener, IN)
    say("all", outer.wait(1), outer.control("del", inner), outer.wait(1))
    for one in (inner, outer, third, listener, connection):
        one.close()
    os.close(event)


def again():
    """A socket that was reported and emptied receives more, without a wait on its epoll instance in between."""
    inner, outer, edges = Poll(), Poll(), Poll()
    listener = listening()
    connection, number = connected(listener)
    say(inner.control("add", connection, IN, 1), outer.control("add", inner, IN, 2), edges.control("add", inner, IN | 1 << 31, 3))
    for wait in (lambda: poll([(inner, IN)], 10), lambda: choose([inner], seconds=10)[:2], lambda: outer.wait(10),
                 lambda: edges.wait(10)):
        for text in "abc":
            peer("later", 20, "send", number, text)
            say(wait(), inner.wait(1), connection.recv(9))
    for one in (inner, outer, edges, listener, connection):
        one.close()


def shared():
    """Two threads wait on one epoll instance: both get a level-triggered event, one of them an edge-triggered one."""
    listener = listening()
    connection, number = connected(listener)
    for events, seconds in ((IN, 20), (IN | 1 << 31, 2)):
        epoll, results = Poll(), []
        epoll.control("add", connection, events, 1)
        threads = [threading.Thread(target=lambda: results.append(epoll.wait(seconds))) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        peer("send", number, "x")
        for thread in threads:
            thread.join()
        say(sorted(results), connection.recv(9))
        epoll.close()
    for one in (listener, connection):
        one.close()


def while_waiting():
    """Members are added while another thread waits."""
    listener, epoll = listening(), Poll()
    event = os.eventfd(0)
    epoll.control("add", event, IN, 1)
    results = []
    thread = threading.Thread(target=lambda: results.append(epoll.wait(20)))
    thread.start()
    time.sleep(0.05)
    say(epoll.control("add", listener, IN, 2))
    peer("connect", listener.getsockname()[1])
    thread.join()
    say("a first socket", results)
    connection, _ = listener.accept()
    thread = threading.Thread(target=lambda: results.append(epoll.wait(20)))
    thread.start()
    time.sleep(0.05)
    say(epoll.control("add", connection, OUT, 3))
    thread.join()
    say("another", results)
    epoll.control("del", connection)
    threads = [threading.Thread(target=lambda: results.append(poll([(connection, IN), (event, IN)], 20))) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    os.eventfd_write(event, 1)
    for thread in threads:
        thread.join()
    say("polls", results)
    for one in (listener, connection, epoll):
        one.close()
    os.close(event)


class Handled:
    def __init__(self):
        self.count = 0

    def __call__(self, *_):
        self.count += 1


handled = Handled()


# Milliseconds between signals.
APART = 50


def rung(call, first=lambda: None):
    """Returns the result of a call during which signals arrive, and whether one did. Signals repeat, so that one arrives
    during the call even if a busy machine starts it late."""
    before = handled.count
    signal.setitimer(signal.ITIMER_REAL, APART / 1000, APART / 1000)
    first()
    answer = call()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return answer, handled.count > before


def signals():
    old = signal.signal(signal.SIGALRM, handled)
    listener = listening()
    connection, number = connected(listener)
    reader, writer = os.pipe()
    epoll = Poll()
    epoll.control("add", connection, IN)
    epoll.control("add", reader, IN)
    room = ctypes.create_string_buffer(100)
    fd = connection.fileno()

    def receive(call):
        return {"read": lambda: libc.read(fd, room, 100), "recv": lambda: libc.recv(fd, room, 100, 0),
                "recvfrom": lambda: libc.recvfrom(fd, room, 100, 0, None, None),
                "accept": lambda: libc.accept(listener.fileno(), None, None)}[call]()

    # First handlers of one kind only, then with and without SA_RESTART, where a wait has to find out which one runs.
    for restarts in (False, True, False):
        signal.siginterrupt(signal.SIGALRM, not restarts)
        say("restarts" if restarts else "interrupts")
        say("poll", *rung(lambda: poll([(connection, IN)], 20)))
        say("mixed poll", *rung(lambda: poll([(connection, IN), (reader, IN)], None)))
        (answer, _, left), came = rung(lambda: choose([connection], seconds=20))
        say("select", answer, 10 < left < 20, came)
        say("epoll", *rung(lambda: epoll.wait(20)))
        for call in ("read", "recv", "recvfrom", "accept"):
            what = ("connect", listener.getsockname()[1]) if call == "accept" else ("send", number, "abc")
            first = (lambda: peer("later", 3 * APART, *what)) if restarts else (lambda: None)
            answer, came = rung(lambda: receive(call), first)
            if answer >= 0 and call == "accept":
                os.close(answer)
                answer = "accepted"
            say(call, answer if isinstance(answer, str) else result(answer), came)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
        answer, came = rung(lambda: receive("read"))
        say("with a limit", result(answer), came)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20000))
        say("limit", result(receive("read")))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    # Two signals whose handlers differ in SA_RESTART.
    signal.signal(signal.SIGUSR1, handled)
    signal.siginterrupt(signal.SIGUSR1, False)
    main = threading.get_ident()
    for restarts in (True, False, True):
        if restarts:
            threading.Timer(0.03, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
            peer("later", 150, "send", number, "abc")
            answer = receive("read")
        else:
            answer, _ = rung(lambda: receive("read"))
        say("of two kinds", restarts, result(answer))
    signal.signal(signal.SIGWINCH, signal.SIG_DFL)
    threading.Timer(0.03, lambda: signal.pthread_kill(main, signal.SIGWINCH)).start()
    peer("later", 100, "send", number, "abc")
    say("ignored", result(receive("read")))
    threading.Timer(0.03, lambda: signal.pthread_kill(main, signal.SIGWINCH)).start()
    say("ignored", poll([(connection, IN)], 0.1), epoll.wait(0.1))
    # A writer that waits for buffer space.
    big = bytes(1 << 24)
    answer = -1
    while answer < 0:
        answer, _ = rung(lambda: libc.write(fd, big, len(big)))
    say("a part was written", 0 < answer < len(big))
    # The peer's buffer may accept a little more.
    for _ in range(50):
        answer, _ = rung(lambda: libc.write(fd, big, len(big)))
        if answer < 0:
            break
    say("nothing was", result(answer))
    signal.signal(signal.SIGALRM, old)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    peer("close", number)
    for one in (listener, connection, epoll):
        one.close()
    os.close(reader)
    os.close(writer)


def masks():
    old = signal.signal(signal.SIGUSR1, handled)
    listener = listening()
    connection, number = connected(listener)
    reader, writer = os.pipe()
    epoll = Poll()
    epoll.control("add", connection, IN, 1)
    open_mask, closed_mask = sigset(), sigset(signal.SIGUSR1)
    calls = {
        "ppoll": lambda mask, seconds: poll([(connection, IN)], seconds, "ppoll", mask),
        "mixed ppoll": lambda mask, seconds: poll([(connection, IN), (reader, IN)], seconds, "ppoll", mask),
        "pselect": lambda mask, seconds: choose([connection], seconds=seconds, call="pselect", mask=mask)[:1],
        "epoll_pwait": lambda mask, seconds: epoll.wait(seconds, call="epoll_pwait", mask=mask),
        "epoll_pwait2": lambda mask, seconds: epoll.wait(seconds, call="epoll_pwait2", mask=mask),
    }
    for name, call in calls.items():
        # Blocked and pending: the wait's mask unblocks it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        before = handled.count
        os.kill(os.getpid(), signal.SIGUSR1)
        say(name, "pending", call(open_mask, 20), handled.count - before, signal.sigpending())
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        say("comes", call(open_mask, 20), handled.count - before)
        # It is blocked again after the wait, and during a wait with a mask that blocks it.
        os.kill(os.getpid(), signal.SIGUSR1)
        say("blocked", call(closed_mask, 0.02), handled.count - before, signal.sigpending())
        # Events take precedence.
        peer("send", number, "x")
        until(connection, IN)
        say("events", call(open_mask, 20), handled.count - before, signal.sigpending())
        connection.recv(9)
        say("at once", call(open_mask, 0), handled.count - before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        say("unblocked", handled.count - before)
        # Blocked during the wait only.
        timer = threading.Timer(0.02, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1))
        timer.start()
        answer = call(closed_mask, 0.1)
        timer.join()
        say("during", answer, handled.count - before)
        say(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    signal.signal(signal.SIGUSR1, old)
    for one in (listener, connection, epoll):
        one.close()
    os.close(reader)
    os.close(writer)


def parameters():
    """Busy-poll parameters of an epoll instance, set and read back with ioctl."""
    if os.environ.get("SCENARIO_PARAMETERS") != "1":
        return
    listener, epoll = listening(), Poll()
    SET, GET = 0x40088a01, 0x80088a02
    room = bytearray(8)
    for given in ((50, 8, 0), (0, 16, 1), (0, 0, 0)):
        fcntl.ioctl(epoll.fd, SET, struct.pack("IHBx", *given))
        fcntl.ioctl(epoll.fd, GET, room)
        say("before", struct.unpack("IHBx", room))
    fcntl.ioctl(epoll.fd, SET, struct.pack("IHBx", 20, 8, 0))
    epoll.control("add", listener, IN, 1)
    fcntl.ioctl(epoll.fd, GET, room)
    say("with a socket", struct.unpack("IHBx", room))
    fcntl.ioctl(epoll.fd, SET, struct.pack("IHBx", 0, 8, 1))
    fcntl.ioctl(epoll.fd, GET, room)
    say("changed", struct.unpack("IHBx", room))
    try:
        fcntl.ioctl(epoll.fd, SET, struct.pack("IHBB", 0, 8, 0, 7))
    except OSError as error:
        say(errno.errorcode[error.errno])
    listener.close()
    epoll.close()


def children():
    listener, epoll = listening(), Poll()
    connection, number = connected(listener)
    epoll.control("add", connection, IN, 1)
    poll([(connection, IN)], 0.01)
    reader, writer = os.pipe()
    is_quiet, tell = os.pipe()
    child = os.fork()
    if child == 0:
        own = Poll()
        own.control("add", reader, IN, 3)
        quiet = poll([(reader, IN)], 0.01)
        os.write(tell, b"x")
        lines = [quiet, poll([(reader, IN)], 20), own.wait(20),
                 choose([os.fdopen(os.dup(reader), "rb", 0)], seconds=20)[:2]]
        say("child", lines)
        os._exit(0)
    os.read(is_quiet, 1)
    os.write(writer, b"x")
    say("ended", os.waitpid(child, 0)[1])
    peer("send", number, "x")
    say("parent", epoll.wait(10), poll([(connection, IN), (reader, IN)], 10))
    for one in (listener, connection, epoll):
        one.close()
    os.close(is_quiet)
    os.close(tell)
    os.close(reader)
    os.close(writer)


def python_itself():
    """Waits of Python itself: sockets with a timeout call poll first, asyncio uses epoll."""
    peer("listen", 7600)
    client = socket.create_connection((PEER, 7600), timeout=10)
    number = peer("accept", 7600)
    client.settimeout(0.02)
    try:
        client.recv(9)
    except TimeoutError as error:
        say(error)
    client.settimeout(10)
    peer("later", 30, "send", number, "x")
    say(client.recv(9))
    say(select.select([client], [client], [], 0)[1] == [client])
    peer("later", 30, "shut", number)
    say(client.recv(9))
    client.close()
    try:
        socket.create_connection((PEER, 7601), timeout=10)
    except OSError as error:
        say(errno.errorcode[error.errno])

    async def serve():
        done = asyncio.Event()

        async def echo(reader, writer):
            while data := await reader.read(100):
                writer.write(data.upper())
                await writer.drain()
                received.append(data)
            writer.close()
            done.set()

        received = []
        server = await asyncio.start_server(echo, OWN, 7602, reuse_address=True)
        number = await asyncio.to_thread(peer, "connect", 7602)
        await asyncio.to_thread(peer, "send", number, "hello")
        await asyncio.to_thread(peer, "shut", number)
        await done.wait()
        reader, writer = await asyncio.open_connection(PEER, 7600)
        number = await asyncio.to_thread(peer, "accept", 7600)
        await asyncio.to_thread(peer, "later", 20, "send", number, "there")
        say(b"".join(received), await reader.read(100), await asyncio.to_thread(lambda: "a thread"))
        writer.close()
        server.close()

    asyncio.run(serve())


def double():
    """A listener that accepts from both sides is reported once."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", 0))
    port = listener.getsockname()[1]
    epoll, edges, once, early = Poll(), Poll(), Poll(), Poll()
    say(early.control("add", listener, IN, 9))
    listener.listen(8)
    ET, ONESHOT = 1 << 31, 1 << 30
    say(epoll.control("add", listener, IN, 1), edges.control("add", listener, IN | ET, 2), once.control("add", listener, IN | ONESHOT, 3))
    others = lambda: (epoll.wait(0.01), early.wait(0.01), edges.wait(0.01), poll([(listener, ALL)], 0.01), choose([listener], seconds=0.01)[:2])
    say("quiet", others())
    here = socket.create_connection(("127.0.0.1", port))
    say("here", epoll.wait(10), early.wait(10), edges.wait(10), poll([(listener, ALL)], 10), choose([listener], seconds=10)[:2])
    number = peer("connect", port)
    say("there", edges.wait(10), others())
    say("once", once.wait(10), once.wait(0.01))
    here2 = socket.create_connection(("127.0.0.1", port))
    number2 = peer("connect", port)
    say("no more", once.wait(0.02), once.control("mod", listener, IN | ONESHOT, 4), once.wait(10), once.wait(0.02))
    accepted = [listener.accept()[0] for _ in range(4)]
    say("all", len(accepted), epoll.wait(0.01), poll([(listener, ALL)], 0))
    peer("later", 30, "connect", port)
    accepted.append(listener.accept()[0])
    threading.Timer(0.03, lambda: accepted.append(socket.create_connection(("127.0.0.1", port)))).start()
    accepted.append(listener.accept()[0])
    say("accepts from both", epoll.wait(0.01))
    edges.wait(0)
    say(epoll.control("del", listener), epoll.control("del", listener))
    peer("later", 20, "connect", port)
    say(epoll.wait(0.05), edges.wait(10), early.wait(1))
    listener.close()
    say("closed", edges.wait(0.01), early.wait(0.01))
    for one in (epoll, edges, once, early, here, here2, *accepted):
        one.close()


def only_v6():
    """A listener on the IPv6 wildcard only; the NIC has no IPv6 address."""
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(("::", 0))
    listener.listen(8)
    epoll = Poll()
    say(epoll.control("add", listener, IN, 1), epoll.wait(0.01))
    here = socket.create_connection(("::1", listener.getsockname()[1]))
    say(epoll.wait(10), poll([(listener, IN)], 10), listener.accept()[1][0])
    for one in (listener, epoll, here):
        one.close()


for scenario in (states, mixed, selects, epolls, names_of_members, early, nested, again, shared, while_waiting, signals, masks,
                 parameters, children, python_itself, double, only_v6):
    say("#", scenario.__name__)
    scenario()
