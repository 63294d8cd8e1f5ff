# The calls of families.py, which executes this file, by their numbers: `syscall(2)` in place of the C library's functions.
# The kernel is the oracle: every line is the same over the datapath.

import platform

X86 = platform.machine() == "x86_64"
# Name: the numbers on x86-64 and on AArch64 (None: it has no such call).
NUMBERS = {name: numbers[not X86] for name, numbers in {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "preadv2": (327, 286), "pwritev2": (328, 287),
    "recvfrom": (45, 207), "sendto": (44, 206), "recvmsg": (47, 212), "sendmsg": (46, 211), "recvmmsg": (299, 243),
    "sendmmsg": (307, 269), "sendfile": (40, 71), "socket": (41, 198), "bind": (49, 200), "listen": (50, 201),
    "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "getsockname": (51, 204), "getpeername": (52, 205),
    "shutdown": (48, 210), "setsockopt": (54, 208), "getsockopt": (55, 209), "fcntl": (72, 25), "ioctl": (16, 29),
    "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "poll": (7, None),
    "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "rt_sigaction": (13, 134), "clone": (56, 220), "fork": (57, None), "exit": (60, 93), "getpid": (39, 172),
    "gettid": (186, 178), "pipe2": (293, 59), "io_uring_setup": (425, 425),
}.items()}
libc.syscall.restype = ctypes.c_long

def number(name, *arguments):
    "Makes a call by its number. Returns its answer, or the name of its error."
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    ctypes.set_errno(0)
    answer = libc.syscall(ctypes.c_long(NUMBERS[name]), *words)
    return errno.errorcode.get(ctypes.get_errno(), "no error") if answer == -1 else answer

def raw_by_number(name, *arguments):
    "The same as `raw`, for the functions that are system calls."
    more = {"recv": ("recvfrom", None, None), "send": ("sendto", None, None)}.get(name)
    if more:
        name, arguments = more[0], arguments + more[1:]
    if name in ("preadv2", "pwritev2"):
        arguments = (*arguments[:4], 0, *arguments[4:])
    if name not in NUMBERS:
        return raw_function(name, *arguments)
    answer = number(name, *arguments)
    say(name, *(("by number", answer, "") if isinstance(answer, int) else ("by number", -1, answer)))
    return answer

raw_function = raw

def by_number(scenario):
    "Runs a scenario with every call of C's by its number."
    global raw
    raw = raw_by_number
    try:
        scenario()
    finally:
        raw = raw_function

class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

def address(host, port):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)

def named(call, fd):
    "An address that a call writes."
    to, length = ctypes.create_string_buffer(16), ctypes.c_int(16)
    answer = number(call, fd, to, ctypes.byref(length))
    return answer or (length.value, socket.inet_ntoa(to.raw[4:8]), struct.unpack("!H", to.raw[2:4])[0])

def event(events, data):
    return ctypes.create_string_buffer(struct.pack("=IQ" if X86 else "IxxxxQ", events, data))

def events_in(buffer, count):
    size = 12 if X86 else 16
    return [struct.unpack_from("=IQ" if X86 else "IxxxxQ", buffer.raw, at * size) for at in range(count)]

def listening(reuse=1):
    global port
    port += 1
    fd = number("socket", socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0)
    on = ctypes.c_int(reuse)
    say("reuse", number("setsockopt", fd, socket.SOL_SOCKET, socket.SO_REUSEADDR, ctypes.byref(on), 4))
    say("bound", number("bind", fd, address(OWN, port), 16), "listens", number("listen", fd, 16))
    return fd

def streams_by_number():
    own = listening()
    say("nobody", number("accept4", own, None, None, 0))
    epoll = number("epoll_create1", 0)
    say("added", number("epoll_ctl", epoll, 1, own, event(select.EPOLLIN, 77)), number("epoll_ctl", epoll, 1, own, event(1, 1)))
    found, none = ctypes.create_string_buffer(12 * 16), ctypes.create_string_buffer(8)
    say("no event", number("epoll_pwait", epoll, found, 8, 0, None, 8), number("epoll_pwait2", epoll, found, 8, ctypes.byref(Time(0, 1000)), None, 8))
    peer(f"s = socket.create_connection(({OWN!r}, {port}))")
    say("event", number("epoll_pwait", epoll, found, 8, 100_000, none, 8), events_in(found, 1))
    say("a mask of 4 bytes", number("epoll_pwait", epoll, found, 8, 0, none, 4), number("ppoll", None, 0, None, none, 4))
    at, length = ctypes.create_string_buffer(16), ctypes.c_int(16)
    c = number("accept4", own, at, ctypes.byref(length), socket.SOCK_CLOEXEC)
    say("accepted", c > 2, socket.inet_ntoa(at.raw[4:8]), length.value, number("fcntl", c, 1, 0))
    say("names", named("getsockname", c)[1:] == (OWN, port), named("getpeername", c)[1], named("getpeername", own))
    say("ours", number("sendto", c, b"hello", 5, 0, None, 0), peer("r = s.recv(9).decode()"))
    peer("s.sendall(b'0123456789')")
    waiting = ctypes.create_string_buffer(struct.pack("ihh", c, select.POLLIN, 0), 8)
    time = Time(100, 0)
    say("ppoll", number("ppoll", waiting, 1, ctypes.byref(time), none, 8), struct.unpack("ihh", waiting.raw)[2], 0 < time.seconds < 100)
    if X86:
        say("poll", number("poll", waiting, 1, 100_000), struct.unpack("ihh", waiting.raw)[2])
        say("epoll_wait", number("epoll_wait", epoll, found, 8, 0))
    sets = [ctypes.create_string_buffer(struct.pack("16Q", *[1 << c % 64 if word == c // 64 else 0 for word in range(16)])) for _ in range(2)]
    time, mask = Time(100, 0), struct.pack("PQ", ctypes.addressof(none), 8)
    say("pselect6", number("pselect6", c + 1, sets[0], sets[1], None, ctypes.byref(time), mask), [any(one.raw) for one in sets], 0 < time.seconds < 100)
    if X86:
        say("select", number("select", c + 1, sets[0], None, None, ctypes.byref(Time(100, 0))), any(sets[0].raw))
    count = ctypes.c_int()
    say("FIONREAD", number("ioctl", c, termios.FIONREAD, ctypes.byref(count)), count.value)
    room = ctypes.create_string_buffer(4)
    say("read", number("read", c, room, 4), room.raw, number("recvfrom", c, room, 4, socket.MSG_PEEK, None, None), room.raw)
    vector = iovec(ctypes.cast(room, POINTER), 4)
    say("readv", number("readv", c, ctypes.byref(vector), 1), room.raw)
    say("preadv2", number("preadv2", c, ctypes.byref(vector), 1, -1, 0, 0), room.raw[:2], number("preadv2", c, ctypes.byref(vector), 1, 0, 0, 0))
    say("no wait", number("preadv2", c, ctypes.byref(vector), 1, -1, 0, 8), number("recvfrom", c, room, 4, socket.MSG_DONTWAIT, None, None))
    say("writes", number("write", c, b"ab", 2), number("writev", c, ctypes.byref(vector), 1), number("pwritev2", c, ctypes.byref(vector), 1, -1, 0, 0), peer("r = s.recv(10, socket.MSG_WAITALL).decode()"))
    with tempfile.TemporaryFile() as file:
        file.write(b"of a file")
        file.flush()
        offset = ctypes.c_long(3)
        say("sendfile", number("sendfile", c, file.fileno(), ctypes.byref(offset), 6), offset.value, peer("r = s.recv(6, socket.MSG_WAITALL).decode()"))
    one = ctypes.c_int(1)
    length = ctypes.c_int(4)
    say("option", number("setsockopt", c, socket.IPPROTO_TCP, socket.TCP_NODELAY, ctypes.byref(one), 4), number("getsockopt", c, socket.IPPROTO_TCP, socket.TCP_NODELAY, ctypes.byref(one), ctypes.byref(length)), one.value != 0)
    copies = [number("dup", c), number("fcntl", c, 0, 90), number("fcntl", c, 1030, 90), number("dup3", c, 95, os.O_CLOEXEC)]
    if X86:
        copies.append(number("dup2", c, 96))
    say("copies", [copy > 2 for copy in copies], copies[1:])
    say("closed", number("close", c), number("close", c), number("write", c, b"x", 1))
    for copy in copies:
        say("a copy", number("write", copy, b"!", 1), peer("r = s.recv(1).decode()"))
    for copy in copies[1:]:
        say("closed", number("close", copy))
    say("end", number("shutdown", copies[0], socket.SHUT_WR), peer("r = len(s.recv(1))"), number("close_range", copies[0], copies[0], 0), number("read", copies[0], room, 1))
    say("gone", number("epoll_ctl", epoll, 2, own, None), number("close", own), number("close", epoll))

def connects_by_number():
    peer("l = socket.create_server((PEER, 0)); r = l.getsockname()[1]")
    to = peer("r = l.getsockname()[1]")
    c = number("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    say("not connected", number("write", c, b"x", 0), named("getpeername", c))
    say("connected", number("connect", c, address(PEER, to), 16), number("connect", c, address(PEER, to), 16))
    peer("s = l.accept()[0]; s.sendall(b'welcome')")
    room = ctypes.create_string_buffer(7)
    say("read", number("recvfrom", c, room, 7, socket.MSG_WAITALL, None, None), room.raw, named("getpeername", c)[1:] == (PEER, to))
    say("closed", number("close", c), peer("r = len(s.recv(1))"))
    c = number("socket", socket.AF_INET, socket.SOCK_STREAM, 0)
    say("refused", number("connect", c, address(PEER, 1), 16), number("close", c))

def children_by_number():
    "A child made by number uses its copies of descriptors, and its parent's connection stays."
    own = listening()
    peer(f"s = socket.create_connection(({OWN!r}, {port}))")
    # A thread keeps the connection in use meanwhile.
    while isinstance(c := number("accept4", own, None, None, 0), str):
        pass
    say("before", number("write", c, b"1", 1), peer("r = s.recv(1).decode()"))
    for call, arguments in (("clone", (signal.SIGCHLD, 0, 0, 0, 0)),) + ((("fork", ()),) if X86 else ()):
        child = number(call, *arguments)
        if child == 0:
            mine = number("socket", socket.AF_INET, socket.SOCK_DGRAM, 0)
            good = isinstance(mine, int) and number("bind", mine, address("127.0.0.1", 0), 16) == 0
            libc._exit(7 if good and number("close", mine) == 0 and number("close", c) == 0 and number("close", own) == 0 else 8)
        say(call, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        say("after", number("write", c, b"2", 1), peer("r = s.recv(1).decode()"))
    say("closed", number("close", c), peer("r = len(s.recv(1))"), number("close", own))

def others_by_number():
    "What is not a socket of the datapath's goes to the kernel with all six words."
    ends = (ctypes.c_int * 2)()
    say("pipe2", number("pipe2", ends, 0), number("write", ends[1], b"abc", 3), number("getpid") == os.getpid(), number("gettid") == threading.get_native_id())
    room = ctypes.create_string_buffer(3)
    say("read", number("read", ends[0], room, 3), room.raw, number("read", 999, room, 3), number("read", ends[0], None, 0))
    say("closed", number("close", ends[0]), number("close", ends[1]), number("close", ends[1]))
    mapped = libc.mmap
    mapped.restype, mapped.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    page = libc.syscall(ctypes.c_long(9 if X86 else 222), None, ctypes.c_long(4096), ctypes.c_long(1), ctypes.c_long(0x22), ctypes.c_long(-1), ctypes.c_long(0))
    say("six words", page != -1)
    # A time in memory that cannot be written is not updated.
    c = pair()
    waiting = ctypes.create_string_buffer(struct.pack("ihh", c.fileno(), select.POLLIN, 0), 8)
    say("a time in read-only memory", number("ppoll", waiting, 1, ctypes.c_void_p(page), None, 8))

def datagrams_by_number():
    global port
    port += 1
    u = number("socket", socket.AF_INET, socket.SOCK_DGRAM, 0)
    say("bound", number("bind", u, address(OWN, port), 16), named("getsockname", u))
    far = peer(f"u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120); u.sendto(b'hello', (OWN, {port})); r = u.getsockname()[1]")
    room, at, length = ctypes.create_string_buffer(9), ctypes.create_string_buffer(16), ctypes.c_int(16)
    say("received", number("recvfrom", u, room, 9, 0, at, ctypes.byref(length)), room.raw[:5], at.raw[:8] == address(PEER, far)[:8], length.value)
    say("answered", number("sendto", u, b"answer", 6, 0, at, 16), peer("r = u.recv(9).decode()"))
    say("nothing", number("recvfrom", u, room, 9, socket.MSG_DONTWAIT, None, None))
    # An unbound socket that sends to the NIC's network.
    v = number("socket", socket.AF_INET, socket.SOCK_DGRAM, 0)
    say("unbound", number("sendto", v, b"unbound", 7, 0, address(PEER, far), 16), peer("a = u.recvfrom(9); r = a[0].decode()"))
    peer("u.sendto(b'back', a[1])")
    say("and back", number("recvfrom", v, room, 9, 0, None, None), room.raw[:4])
    say("connected", number("connect", v, address(PEER, far), 16), named("getpeername", v)[1:] == (PEER, far), number("write", v, b"x", 1), peer("r = u.recv(9).decode()"))
    say("closed", number("close", u), number("close", v))

for scenario in ("edges", "batches_of_a_stream", "files", "batches_of_datagrams"):
    globals()[scenario + "_by_number"] = lambda scenario=globals()[scenario]: by_number(scenario)
