# Calls that programs make on sockets beside sending and receiving, and sockets in several processes and threads. tests/sockets.py
# runs this with its functions and its peer.

import array, fcntl, mmap, stat, tempfile, termios, threading

SIOCOUTQ, SIOCATMARK, FIOASYNC, TIOCGWINSZ = 0x5411, 0x8905, 0x5452, 0x5413
MSG_CMSG_CLOEXEC = 0x40000000


def pair(name="a"):
    "A connection of the datapath, whose peer has the other end under a name."
    listener, at = server()
    use(listener)
    one = visited(listener, HERE, name)
    listener.close()
    return one


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = work() or 0
        finally:
            os._exit(status)
    return status_of(child)


def children():
    one = pair()
    tell("a.sendall(b'for the child')")
    ready(one, select.EPOLLIN)
    say("the child reads and writes", in_child(lambda: one.sendall(b"child: " + one.recv(100))))
    say("they read", tell("a.recv(100)"))
    one.sendall(b"parent")
    say("they read", tell("a.recv(100)"))
    one = pair()
    say("the child closes", in_child(one.close))
    one.sendall(b"still there")
    say("they read", tell("a.recv(100)"))
    say("the child shuts", in_child(lambda: one.shutdown(socket.SHUT_WR)))
    say("they read", tell("a.recv(100)"))
    say("we write", attempt(lambda: one.send(b"x")))
    tell("a.sendall(b'more')")
    say("we read", one.recv(100))
    one = pair()
    fd = one.fileno()
    # Of the shells, bash knows descriptors above 9.

    def execute():
        os.set_inheritable(fd, True)
        os.execvp("bash", ["bash", "-c", f"echo executed >&{fd}"])

    say("the child executes", in_child(execute))
    say("they read", tell("a.recv(100)"))
    one.close()
    say("then the end", tell("a.recv(100)"))
    one = pair()
    say("not inherited", in_child(lambda: os.execvp("bash", ["bash", "-c", f"echo executed 2>/dev/null >&{one.fileno()} && exit 7; exit 5"])))
    one.sendall(b"still ours")
    say("they read", tell("a.recv(100)"))
    here, there = socket.socketpair()
    one = pair()

    def receive():
        data, control, _, _ = there.recvmsg(10, 100, MSG_CMSG_CLOEXEC)
        got = socket.socket(fileno=array.array("i", control[0][2])[0])
        got.sendall(data + b" by the child, " + str(fcntl.fcntl(got, fcntl.F_GETFD)).encode())

    here.sendmsg([b"passed"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
    one.close()
    say("passed and closed", in_child(receive))
    say("they read", tell("a.recv(100)"))
    one = pair()
    grandchild = lambda: in_child(lambda: one.sendall(b"grandchild"))
    say("a grandchild", in_child(grandchild))
    say("they read", tell("a.recv(100)"))
    listener, at = server()
    use(listener)

    def accept():
        tell(f"a := socket.create_connection(({HERE!r}, {at}))")
        listener.accept()[0].sendall(b"accepted by a child")

    for _ in range(2):
        say("the child accepts", in_child(accept))
        say("they read", tell("a.recv(100)"))
    tell(f"a := socket.create_connection(({HERE!r}, {at}))")
    listener.accept()[0].sendall(b"accepted by the parent")
    say("they read", tell("a.recv(100)"))


def duplicates():
    one, other = pair("a"), pair("b")
    copy = os.dup(one.fileno())
    os.write(copy, b"copy")
    say("they read", tell("a.recv(100)"))
    say("over another connection", os.dup2(one.fileno(), other.fileno()) == other.fileno())
    say("whose peer sees", tell("b.recv(100)"))
    other.sendall(b"through the other number")
    say("they read", tell("a.recv(100)"))
    say("close-on-exec", [os.get_inheritable(fd) for fd in (copy, other.fileno(), one.fileno())])
    say("dup2 to itself", os.dup2(copy, copy) == copy)
    say("from none", attempt(lambda: os.dup2(9999, copy)))
    os.write(copy, b"after")
    say("they read", tell("a.recv(100)"))
    third = fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 200)
    say("at least", (third >= 200, fcntl.fcntl(third, fcntl.F_GETFD)))
    os.set_blocking(third, False)
    say("flags are shared", (os.get_blocking(copy), attempt(lambda: os.read(copy, 1))))
    os.set_blocking(copy, True)
    libc.dup3.argtypes = [ctypes.c_int] * 3
    say("dup3 to itself", (libc.dup3(copy, copy, 0), errno.errorcode[ctypes.get_errno()]))
    say("dup3", (libc.dup3(copy, 201, os.O_CLOEXEC), fcntl.fcntl(201, fcntl.F_GETFD)))
    say("dup3 with a bad flag", (libc.dup3(copy, 202, 1), errno.errorcode[ctypes.get_errno()]))
    os.closerange(200, 300)
    say("closed", attempt(lambda: os.write(third, b"x")))
    os.write(copy, b"left")
    say("they read", tell("a.recv(100)"))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, copy)
    say("another file", os.write(copy, b"gone"))
    other.close()
    os.dup2(null, one.fileno())
    say("the last number", tell("a.recv(100)"))
    say("is a file", stat.S_ISCHR(os.fstat(one.fileno()).st_mode))


def as_files():
    one = pair()
    fd = one.fileno()
    tell("a.sendall(b'some bytes')")
    ready(one, select.EPOLLIN)
    for name, call in {
        "pread": lambda: os.pread(fd, 4, 0), "pwrite": lambda: os.pwrite(fd, b"x", 0), "lseek": lambda: os.lseek(fd, 0, 0),
        "preadv": lambda: os.preadv(fd, [bytearray(4)], 0), "pwritev": lambda: os.pwritev(fd, [b"x"], 0),
        "ftruncate": lambda: os.ftruncate(fd, 0), "fsync": lambda: os.fsync(fd), "fdatasync": lambda: os.fdatasync(fd),
        "mmap": lambda: mmap.mmap(fd, 4096), "isatty": lambda: os.isatty(fd), "ttyname": lambda: os.ttyname(fd),
        "window": lambda: fcntl.ioctl(fd, TIOCGWINSZ, bytes(8)), "flock": lambda: fcntl.flock(fd, fcntl.LOCK_EX),
        "lockf": lambda: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), "fchdir": lambda: os.fchdir(fd), "listdir": lambda: os.listdir(fd),
        "reopen": lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR), "posix_fallocate": lambda: os.posix_fallocate(fd, 0, 1),
        "posix_fadvise": lambda: os.posix_fadvise(fd, 0, 1, 0), "copy_file_range": lambda: os.copy_file_range(fd, fd, 1),
        "sendfile to itself": lambda: os.sendfile(fd, fd, None, 1), "link": lambda: os.readlink(f"/proc/self/fd/{fd}")[:8],
        "kind": lambda: stat.S_ISSOCK(os.fstat(fd).st_mode), "pipe size": lambda: fcntl.fcntl(fd, 1032),
        "access": lambda: fcntl.fcntl(fd, fcntl.F_GETFL), "lease": lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    }.items():
        say(name, attempt(call))
    parts = [bytearray(3), bytearray(0), bytearray(100)]
    say("readv", (os.readv(fd, parts), [bytes(part[:10]) for part in parts]))
    say("writev", os.writev(fd, [b"one ", b"", b"two"]))
    say("they read", tell("a.recv(100)"))
    say("no parts", (attempt(lambda: os.writev(fd, [])), attempt(lambda: os.readv(fd, []))))
    say("too many parts", attempt(lambda: os.writev(fd, [b"x"] * 1025)))
    say("no bytes", (os.write(fd, b""), one.send(b"")))
    count = array.array("i", [0])

    def ask(request):
        fcntl.ioctl(fd, request, count)
        return count[0]

    say("nothing", (ask(termios.FIONREAD), ask(SIOCOUTQ)))
    one = pair()
    fd = one.fileno()
    tell("a.sendall(b'twelve bytes')")
    ready(one, select.EPOLLIN)
    say("to read", ask(termios.FIONREAD))
    fcntl.ioctl(fd, termios.FIONBIO, struct.pack("i", 1))
    say("non-blocking", (one.recv(100), attempt(lambda: one.recv(1)), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK != 0))
    fcntl.ioctl(fd, termios.FIONBIO, struct.pack("i", 0))
    say("unknown request", attempt(lambda: fcntl.ioctl(fd, 0x1234, count)))
    for way in ("file", "offset", "beyond"):
        with tempfile.TemporaryFile() as file:
            file.write(b"0123456789" * 1000)
            file.flush()
            file.seek(5)
            offset = {"file": None, "offset": 3, "beyond": 20_000}[way]
            say(way, (os.sendfile(fd, file.fileno(), offset, 12), os.lseek(file.fileno(), 0, os.SEEK_CUR)))
            if way != "beyond":
                say("they read", tell("a.recv(12, socket.MSG_WAITALL)"))
    say("from a pipe", attempt(lambda: os.sendfile(fd, os.pipe()[0], None, 5)))
    with open(os.dup(fd), "rb") as reads, open(os.dup(fd), "wb") as writes:
        tell("a.sendall(b'a line\\nand another\\nrest')")
        say("lines", [reads.readline(), reads.readline()])
        writes.write(b"buffered ")
        writes.write(b"twice")
        writes.flush()
        say("they read", tell("a.recv(100)"))
    say("no urgent data", ask(SIOCATMARK))


def asynchronous():
    one = pair()
    fd = one.fileno()
    arrived = []
    signal.signal(signal.SIGIO, lambda *_: arrived.append(1))
    say("owner", (fcntl.fcntl(fd, fcntl.F_GETOWN), fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid()), fcntl.fcntl(fd, fcntl.F_GETOWN) == os.getpid()))
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    tell("a.sendall(b'signal')")
    end = time.monotonic() + 20
    while not arrived and time.monotonic() < end:
        time.sleep(0.01)
    say("signals", (len(arrived) > 0, one.recv(100)))
    signal.signal(signal.SIGIO, signal.SIG_DFL)


def receive_flags():
    one = pair()
    tell("a.sendall(b'0123456789')")
    ready(one, select.EPOLLIN)
    P, T, W, D = socket.MSG_PEEK, socket.MSG_TRUNC, socket.MSG_WAITALL, socket.MSG_DONTWAIT
    say("peek", (one.recv(3, P), one.recv(3, P | D), one.recv(100, P)))
    say("peek all", one.recv(5, P | W))
    say("peek more than there is", one.recv(50, P | D | W))
    say("discard", (libc.recv(one.fileno(), None, 4, T), one.recv(2)))
    say("peek and discard", (libc.recv(one.fileno(), None, 2, T | P), one.recv(2)))
    buffer = bytearray(10)
    say("message", (one.recvmsg_into([buffer], 100), bytes(buffer)))
    say("empty", (attempt(lambda: one.recv(1, D)), attempt(lambda: one.recv(1, D | P)), attempt(lambda: one.recv(0, D))))
    say("errors", attempt(lambda: one.recv(1, MSG_ERRQUEUE)))
    say("unknown flags", attempt(lambda: one.recv(1, D | 0x8000000)))
    tell("a.sendall(b'first')")
    timer = threading.Timer(0.2, lambda: tell("a.sendall(b'second')"))
    timer.start()
    say("wait for all", one.recv(11, W))
    timer.join()
    tell("a.sendall(b'last')")
    tell("a.close()")
    say("until the end", one.recv(100, W))
    say("then", (one.recv(1), one.recv(1, P), one.recv(1, W), one.recv(1, D), one.recv(0)))
    say("event", ready(one, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLOUT))
    say("urgent", attempt(lambda: pair().recv(1, socket.MSG_OOB | D)))


def send_flags():
    one = pair()
    for name, flags in {"DONTWAIT": 0x40, "NOSIGNAL": 0x4000, "EOR": 0x80, "CONFIRM": 0x800, "DONTROUTE": 4, "unknown": 0x100000,
                        "ERRQUEUE": 0x2000, "PEEK": 2, "FASTOPEN": 0x20000000}.items():
        say(name, attempt(lambda: one.send(b"x", flags)))
    say("with an address", attempt(lambda: one.sendto(b"y", (THERE, 9))))
    say("they read", tell("(time.sleep(0.2), a.recv(100))[1]"))
    one.setblocking(False)
    total = 0
    while isinstance(sent := attempt(lambda: one.send(bytes(100_000))), int):
        total += sent
    say("full", (sent, total > 100_000, ready(one, select.EPOLLOUT, 0)))
    tell("a.close()")
    say("reset", ready(one, select.EPOLLOUT, 5) != [])
    one = pair()
    tell("a.close()")
    say("the end", one.recv(1))
    one.send(b"x")
    time.sleep(0.1)
    got = []
    signal.signal(signal.SIGPIPE, lambda *_: got.append(1))
    # A reset after the peer's FIN is EPIPE in the kernel, and ECONNRESET in the datapath.
    say("reset", attempt(lambda: one.send(b"x", 0x4000)) in ("EPIPE", "ECONNRESET"))
    say("broken", (list(got), attempt(lambda: one.send(b"x")), list(got), attempt(lambda: os.write(one.fileno(), b"x")), list(got)))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def shutdowns():
    R, W, B = socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR
    for order in ([R], [W], [B], [R, W], [W, R], [R, R], [W, W], [B, B], [R, B], [W, B]):
        for peer_first in (False, True):
            one = pair()
            tell("a.sendall(b'before')")
            ready(one, select.EPOLLIN)
            if peer_first:
                tell("a.shutdown(socket.SHUT_WR)")
                ready(one, select.EPOLLRDHUP)
            # The second call finds the peer's answer to the first.
            answers = [(attempt(lambda: one.shutdown(how)), time.sleep(0.05))[0] for how in order]
            say((order, peer_first), answers)
            say("read", [attempt(lambda: one.recv(100, socket.MSG_DONTWAIT)) for _ in range(2)])
            events = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP
            say("events", ready(one, events, 0))
            say("write", attempt(lambda: one.send(b"x")))
            say("state", option(one, socket.IPPROTO_TCP, socket.TCP_INFO, 1))
            say("names", (attempt(one.getpeername) == "ENOTCONN", one.getsockname()[0]))
            one.close()
            say("they read", [tell("a.recv(100)") if W in order or B in order else None])


def epoll_rules():
    one = pair()
    tell("a.sendall(b'x')")
    ready(one, select.EPOLLIN)
    with select.epoll() as epoll:
        say("add", attempt(lambda: epoll.register(one, select.EPOLLIN)))
        say("twice", attempt(lambda: epoll.register(one, select.EPOLLIN)))
        copy = one.dup()
        say("a copy", attempt(lambda: epoll.register(copy.fileno(), select.EPOLLIN)))
        say("events", len(epoll.poll(0)))
        epoll.unregister(copy)
        say("modify", attempt(lambda: epoll.modify(one, select.EPOLLOUT)))
        say("events", epoll.poll(0)[0][1])
        say("nothing", attempt(lambda: epoll.modify(one, 0)))
        say("events", epoll.poll(0))
        say("remove", attempt(lambda: epoll.unregister(one)))
        say("twice", attempt(lambda: epoll.unregister(one)))
        say("modify none", attempt(lambda: epoll.modify(one, 1)))
        say("itself", attempt(lambda: epoll.register(epoll.fileno(), 1)))
        say("a file", attempt(lambda: epoll.register(os.open("/dev/null", os.O_RDONLY), 1)))
        E, O, X, R = select.EPOLLET, select.EPOLLONESHOT, select.EPOLLEXCLUSIVE, select.EPOLLRDHUP
        say("edges", attempt(lambda: epoll.register(one, E | 1)))
        say("once", (len(epoll.poll(0)), len(epoll.poll(0))))
        tell("a.sendall(b'y')")
        say("again", (len(epoll.poll(5)), len(epoll.poll(0))))
        epoll.modify(one, E | 1)
        say("after a change", len(epoll.poll(0)))
        epoll.modify(one, O | 1)
        say("one shot", (len(epoll.poll(0)), len(epoll.poll(0))))
        epoll.modify(one, O | 1)
        say("armed again", len(epoll.poll(0)))
        epoll.unregister(one)
        say("exclusive", attempt(lambda: epoll.register(one, X | 1)))
        say("events", len(epoll.poll(0)))
        say("changed", attempt(lambda: epoll.modify(one, 1)))
        epoll.unregister(one)
        say("exclusive, one shot", attempt(lambda: epoll.register(one, X | O | 1)))
        say("exclusive, hang-up", attempt(lambda: epoll.register(one, X | R | 1)))
        epoll.register(one, R | 1)
        tell("a.shutdown(1)")
        say("hang-up", (time.sleep(0.1), epoll.poll(5)[0][1])[1])
        one.recv(9)
        say("still", epoll.poll(5)[0][1])
        one.shutdown(socket.SHUT_WR)
        say("both", (time.sleep(0.2), epoll.poll(5)[0][1])[1])
        one.close()
        copy.close()
        say("closed", epoll.poll(0))


def short_addresses():
    one = pair()
    buffer, length = ctypes.create_string_buffer(32), ctypes.c_uint(5)
    for name in ("getsockname", "getpeername"):
        for room in (0, 2, 5, 16, 32):
            length = ctypes.c_uint(room)
            ctypes.memset(buffer, 0xee, 32)
            answer = getattr(libc, name)(one.fileno(), buffer, ctypes.byref(length))
            say((name, room), (answer, length.value, bytes(buffer)[:2], bytes(buffer)[room:room + 1]))
        say(name, (getattr(libc, name)(one.fileno(), None, ctypes.byref(length)), errno.errorcode[ctypes.get_errno()]))
    listener, at = server()
    use(listener)
    for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 1):
        tell(f"a := socket.create_connection(({HERE!r}, {at}))")
        length = ctypes.c_uint(6)
        fd = libc.accept4(listener.fileno(), buffer, ctypes.byref(length), flags)
        if fd < 0:
            say("accept4", errno.errorcode[ctypes.get_errno()])
            fd = libc.accept(listener.fileno(), None, None)
        say(flags, (length.value, fcntl.fcntl(fd, fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK))
        os.close(fd)
    for size in (0, 1, 2, 3, 4, 8):
        length, value = ctypes.c_uint(size), ctypes.create_string_buffer(b"\xee" * 8, 8)
        say(("option", size), (libc.getsockopt(one.fileno(), 1, 3, value, ctypes.byref(length)), length.value, value.raw[:size]))
        length = ctypes.c_uint(size)
        say(("error", size), (libc.getsockopt(one.fileno(), 1, 4, value, ctypes.byref(length)), length.value, value.raw[:size]))


def threads():
    one = pair()
    results = []
    thread = threading.Thread(target=lambda: results.append(attempt(lambda: one.recv(100))))
    thread.start()
    time.sleep(0.3)
    one.shutdown(socket.SHUT_RD)
    thread.join(20)
    say("shut while another thread reads", results)
    one = pair()
    results.clear()
    fd = one.detach()
    thread = threading.Thread(target=lambda: results.append(attempt(lambda: os.read(fd, 100))))
    thread.start()
    time.sleep(0.3)
    os.close(fd)
    tell("a.sendall(b'late')")
    thread.join(20)
    say("closed while another thread reads", results)
    say("they see", tell("attempt(lambda: a.recv(100))"))
    one, other = pair("a"), pair("b")
    results.clear()
    thread = threading.Thread(target=lambda: results.append(attempt(lambda: one.recv(100))))
    thread.start()
    time.sleep(0.3)
    os.dup2(other.fileno(), one.fileno())
    tell("a.sendall(b'to the first')")
    thread.join(20)
    say("replaced while another thread reads", results)
    tell("b.sendall(b'to the second')")
    say("then", one.recv(100))
    listener, at = server()
    use(listener)
    results.clear()
    thread = threading.Thread(target=lambda: results.append(attempt(listener.accept)))
    thread.start()
    time.sleep(0.3)
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)
    say("shut while another thread accepts", results)


def datagram_calls():
    tell("u := socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    tell(f"u.bind(({THERE!r}, 0))")
    tell("v := socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    tell(f"v.bind(({THERE!r}, 0))")
    tell("[one.settimeout(5) for one in (u, v)]")
    to, other = tuple(tell("u.getsockname()")), tuple(tell("v.getsockname()"))
    for where in (HERE, ""):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        say("names", (one.getsockname(), attempt(one.getpeername)))
        at = port()
        one.bind((where, at))
        one.settimeout(5)
        back = (HERE, at)
        say("no destination", attempt(lambda: one.send(b"x")))
        say("no port", attempt(lambda: one.sendto(b"x", (THERE, 0))))
        say("too long", attempt(lambda: one.sendto(bytes(65_508), to)))
        say("empty", (one.sendto(b"", to), tell("u.recvfrom(9)") == (b"", back)))
        tell(f"u.sendto(b'0123456789', {back!r})")
        say("short", (one.recvfrom(4, socket.MSG_PEEK) == (b"0123", to), one.recvmsg(4)[:3], attempt(lambda: one.recv(4, socket.MSG_DONTWAIT))))
        tell(f"u.sendto(b'0123456789', {back!r})")
        buffer = bytearray(4)
        say("real length", (one.recv_into(buffer, 4, socket.MSG_TRUNC), bytes(buffer)))
        tell(f"u.sendto(b'', {back!r})")
        say("an empty one", (ready(one, select.EPOLLIN), one.recvfrom(9) == (b"", to)))
        tell(f"[u.sendto(b'x' * size, {back!r}) for size in (3, 5)]")
        time.sleep(0.2)
        count = array.array("i", [0])
        fcntl.ioctl(one, termios.FIONREAD, count)
        say("next", (count[0], len(one.recv(9)), len(one.recv(9))))
        one.setsockopt(LEVEL_IP, 8, 1)  # IP_PKTINFO
        tell(f"u.sendto(b'info', {back!r})")
        data, control, flags, peer = one.recvmsg(9, 100)
        say("destination", (data, [(level, kind, value[4:]) for level, kind, value in control], flags, peer == to))
        tell(f"u.sendto(b'info', {back!r})")
        data, control, flags, peer = one.recvmsg(9, 10)
        say("cut off", (data, len(control), flags))
        info = struct.pack("i4s4s", 0, socket.inet_aton(HERE), bytes(4))
        say("from an address", (one.sendmsg([b"from"], [(LEVEL_IP, 8, info)], 0, to), tell("u.recvfrom(9)") == (b"from", back)))
        wrong = struct.pack("i4s4s", 0, socket.inet_aton("192.0.2.9"), bytes(4))
        say("from another's", attempt(lambda: one.sendmsg([b"from"], [(LEVEL_IP, 8, wrong)], 0, to)))
        one.connect(to)
        say("connected", (one.getpeername() == to, one.getsockname() == back))
        say("to another", (one.sendto(b"aside", other), tell("v.recvfrom(9)") == (b"aside", back)))
        tell(f"v.sendto(b'ignored', {back!r})")
        tell(f"u.sendto(b'wanted', {back!r})")
        say("from the peer only", one.recv(9))
        say("shut", attempt(lambda: one.shutdown(socket.SHUT_RD)))
        say("read", attempt(lambda: one.recv(9)))
        say("disconnected", (unspecified(one), attempt(one.getpeername), attempt(lambda: one.send(b"x"))))
        one.close()
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.settimeout(5)
        one.connect((THERE, 1))
        say("to a closed port", one.send(b"x"))
        say("refused", (ready(one, select.EPOLLIN), last(one), attempt(lambda: one.recv(9, socket.MSG_DONTWAIT))))
        one.send(b"x")
        time.sleep(0.2)
        say("reported by a send", (attempt(lambda: one.send(b"y")), ready(one, select.EPOLLIN, 0.3)))
    one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    at = port()
    one.bind(("::", at))
    one.settimeout(5)
    one.setsockopt(LEVEL_IPV6, 49, 1)  # IPV6_RECVPKTINFO
    tell(f"u.sendto(b'mapped', ({HERE!r}, {at}))")
    data, control, flags, peer = one.recvmsg(9, 100)
    say("mapped", (data, [(level, kind, value[:16]) for level, kind, value in control], peer[0]))
    say("back", (one.sendto(b"back", peer), tell("u.recvfrom(9)") == (b"back", (HERE, at))))


CALLS = (children, duplicates, as_files, asynchronous, receive_flags, send_flags, shutdowns, epoll_rules, short_addresses, threads,
         datagram_calls)
