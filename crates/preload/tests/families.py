# Every family of calls that transfers bytes, one line per result. tests/families.rs runs this with the library and without,
# and compares the output: the kernel is the oracle.
#
# `families.py program OWN PEER` prints the results; `families.py peer OWN PEER`, in the far namespace and never with the
# library, executes its commands. They communicate over standard input, which is a socket pair.

import array, ctypes, errno, fcntl, hashlib, json, os, random, select, signal, socket, struct, sys, tempfile, termios, threading, time, traceback

signal.alarm(100)
ROLE, OWN, PEER = sys.argv[1:4]
control = socket.socket(fileno=os.dup(0))
lines = control.makefile("rw")

if ROLE == "peer":
    scope = {"OWN": OWN, "PEER": PEER}
    exec("import errno, hashlib, os, random, select, socket, struct, threading, time", scope)
    for line in lines:
        scope["r"] = None
        try:
            exec(json.loads(line), scope)
            answer = scope["r"]
        except Exception:
            answer = {"failed": traceback.format_exc()}
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
    sys.exit()

libc = ctypes.CDLL(None, use_errno=True)
libc.fdopen.restype, libc.getline.restype = ctypes.c_void_p, ctypes.c_ssize_t
POINTER = ctypes.c_void_p
for name in ("fclose", "fflush", "fileno", "ferror", "feof"):
    getattr(libc, name).argtypes = [POINTER]
libc.sendfile.argtypes = [ctypes.c_int, ctypes.c_int, POINTER, ctypes.c_size_t]
libc.splice.argtypes = [ctypes.c_int, POINTER, ctypes.c_int, POINTER, ctypes.c_size_t, ctypes.c_uint]
for name in ("sendfile", "splice", "read", "write", "recv", "send", "recvfrom", "readv", "writev", "preadv2", "pwritev2", "recvmsg", "__read_chk", "__recv_chk"):
    getattr(libc, name).restype = ctypes.c_ssize_t

turn = threading.Lock()

def peer(code):
    with turn:
        lines.write(json.dumps(code) + "\n")
        lines.flush()
        answer = json.loads(lines.readline())
    if isinstance(answer, dict) and "failed" in answer:
        raise RuntimeError(answer["failed"])
    return answer

def say(*words):
    print(*words, flush=True)

def attempt(name, call, *arguments):
    "Says what a call of Python's gives, or how it fails."
    try:
        answer = call(*arguments)
    except OSError as error:
        answer = errno.errorcode.get(error.errno, error)
    if isinstance(answer, (bytes, bytearray)) and len(answer) > 60:
        answer = (len(answer), hashlib.sha256(answer).hexdigest()[:16])
    say(name, answer)
    return answer

def raw(name, *arguments):
    "Says what a call of C's gives."
    ctypes.set_errno(0)
    answer = getattr(libc, name)(*arguments)
    say(name, answer, errno.errorcode.get(ctypes.get_errno(), 0) if answer == -1 else "")
    return answer

def number_of(fd, request):
    try:
        return struct.unpack("i", fcntl.ioctl(fd, request, bytes(4)))[0]
    except OSError as error:
        return errno.errorcode[error.errno]

def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)

port = 7100

def pair():
    "Makes a connection: returns the accepted end; the peer has the other as `s`."
    global port
    port += 1
    listener = socket.create_server((OWN, port))
    peer(f"s = socket.create_connection(({OWN!r}, {port}))")
    connection, _ = listener.accept()
    listener.close()
    return connection

def text(size, seed):
    return random.Random(seed).randbytes(size)

# --- TCP ---

def edges():
    c = pair()
    buffer = ctypes.create_string_buffer(100)
    c.setblocking(False)
    for name in ("read", "recv", "recvfrom"):
        more = {"read": (), "recv": (0,), "recvfrom": (0, None, None)}[name]
        raw(name, c.fileno(), buffer, 10, *more)
        raw(name, c.fileno(), buffer, 0, *more)
    raw("write", c.fileno(), buffer, 0)
    raw("send", c.fileno(), buffer, 0, 0)
    peer("s.sendall(b'0123456789')")
    until(lambda: number_of(c, termios.FIONREAD) == 10)
    raw("read", c.fileno(), None, 10)
    raw("recv", c.fileno(), buffer, 0, 0)
    raw("recv", c.fileno(), None, 10, 0)
    raw("__read_chk", c.fileno(), buffer, 1, 100)
    raw("__recv_chk", c.fileno(), buffer, 1, 100, 0)
    attempt("peek", c.recv, 4, socket.MSG_PEEK)
    attempt("peek all", c.recv, 100, socket.MSG_PEEK)
    raw("recv", c.fileno(), None, 3, socket.MSG_TRUNC)
    attempt("trunc into", c.recv_into, bytearray(2), 2, socket.MSG_TRUNC)
    attempt("out of band", c.recv, 1, socket.MSG_OOB)
    attempt("error queue", c.recv, 1, socket.MSG_ERRQUEUE)
    length = ctypes.c_int(28)
    raw("recvfrom", c.fileno(), buffer, 1, 0, ctypes.create_string_buffer(28), ctypes.byref(length))
    say("length of no name", length.value)
    attempt("rest", c.recv, 100)
    say("FIONREAD", number_of(c, termios.FIONREAD))
    raw("write", c.fileno(), None, 10)
    raw("readv", c.fileno(), None, 0)
    raw("readv", c.fileno(), None, -1)
    raw("writev", c.fileno(), None, 2)
    raw("writev", c.fileno(), None, 2000)
    raw("preadv2", c.fileno(), None, 0, ctypes.c_long(0), 0)
    attempt("pread", os.pread, c.fileno(), 1, 0)
    attempt("pwrite", os.pwrite, c.fileno(), b"x", 0)
    attempt("lseek", os.lseek, c.fileno(), 0, os.SEEK_CUR)
    raw("recvmsg", c.fileno(), None, 0)
    duplicate = os.dup(c.fileno())
    os.set_blocking(duplicate, True)
    say("blocking through a duplicate", os.get_blocking(c.fileno()))
    fcntl.ioctl(duplicate, termios.FIONBIO, struct.pack("i", 1))
    say("blocking", os.get_blocking(c.fileno()), attempt("read", os.read, c.fileno(), 1))
    os.close(duplicate)
    listener = socket.create_server((OWN, 7099))
    say("FIONREAD of a listener", number_of(listener, termios.FIONREAD))
    attempt("read of a listener", os.read, listener.fileno(), 1)
    attempt("write to a listener", lambda: listener.send(b"x", socket.MSG_NOSIGNAL))
    fresh = socket.socket()
    attempt("read of nothing", os.read, fresh.fileno(), 1)

def messages():
    c = pair()
    peer("s.sendall(bytes(range(100)))")
    parts = [bytearray(10), bytearray(0), bytearray(30)]
    count, control, flags, address = c.recvmsg_into(parts, 100, socket.MSG_WAITALL)
    say(count, control, flags, address, [bytes(part) for part in parts])
    say(c.recvmsg(100, 0, socket.MSG_PEEK)[:1])
    rest = bytearray(60)
    attempt("wait for all", c.recv_into, rest, 60, socket.MSG_WAITALL)
    threading.Timer(0.05, lambda: peer("s.sendall(b'ab'); time.sleep(0.05); s.sendall(b'cd'); s.shutdown(1)")).start()
    attempt("all that comes", c.recv, 100, socket.MSG_WAITALL)
    attempt("end", c.recv, 10)
    attempt("end again", c.recvmsg, 10)
    say(c.sendmsg([b"a" * 3000, b"", b"b" * 5000, b"c"]), c.sendmsg([]), c.sendto(b"to", (PEER, 1)))
    say(os.writev(c.fileno(), [b"x"] * 500))
    c.send(b"more", socket.MSG_MORE)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    c.send(b"corked")
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    c.shutdown(socket.SHUT_WR)
    say(peer("b = b''.join(iter(lambda: s.recv(65536), b'')); r = [len(b), hashlib.sha256(b).hexdigest()]"))
    signal.signal(signal.SIGPIPE, lambda *_: say("SIGPIPE"))
    attempt("after shutdown", c.send, b"x")
    attempt("after shutdown, quietly", c.send, b"x", socket.MSG_NOSIGNAL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)

def resets():
    for first in ("read", "write"):
        c = pair()
        peer("s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()")
        until(lambda: is_reset(c))
        calls = {"read": lambda: c.recv(1), "write": lambda: c.send(b"x", socket.MSG_NOSIGNAL)}
        for name in (first, "read", "write", "read"):
            attempt(name, calls[name])

def is_reset(c):
    "Looks at what waits without taking it."
    try:
        if c.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
            return True
    except BlockingIOError:
        return False
    except OSError as error:
        say("reported by the peek", errno.errorcode[error.errno])
        return True

class mmsghdr(ctypes.Structure):
    class msghdr(ctypes.Structure):
        _fields_ = [("name", POINTER), ("namelen", ctypes.c_uint), ("iov", POINTER), ("iovlen", ctypes.c_size_t), ("control", POINTER), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]
    _fields_ = [("header", msghdr), ("length", ctypes.c_uint)]

class iovec(ctypes.Structure):
    _fields_ = [("base", POINTER), ("length", ctypes.c_size_t)]

def batch(buffers, keep, name=None):
    headers = (mmsghdr * len(buffers))()
    for header, buffer in zip(headers, buffers):
        vector = iovec(ctypes.cast(buffer, POINTER), len(buffer))
        header.header.iov, header.header.iovlen = ctypes.addressof(vector), 1
        if name:
            header.header.name, header.header.namelen = ctypes.cast(name, POINTER), len(name)
        keep.append(vector)
    return headers

def batches_of_a_stream():
    c, keep = pair(), []
    out = batch([ctypes.create_string_buffer(text(n, n), n) for n in (1, 5000, 3)], keep)
    raw("sendmmsg", c.fileno(), out, 3, 0)
    say([header.length for header in out])
    say(peer("b = b''.join(s.recv(5004, socket.MSG_WAITALL) for _ in range(1)); r = hashlib.sha256(b).hexdigest()"))
    peer("s.sendall(b'abcdefgh')")
    until(lambda: number_of(c, termios.FIONREAD) == 8)
    room = [ctypes.create_string_buffer(n) for n in (3, 3, 3, 3)]
    into = batch(room, keep)
    raw("recvmmsg", c.fileno(), into, 4, socket.MSG_DONTWAIT, None)
    say([header.length for header in into], [buffer.raw for buffer in room])
    raw("recvmmsg", c.fileno(), into, 4, socket.MSG_DONTWAIT, None)
    raw("recvmmsg", c.fileno(), None, 1, 0, None)

def files():
    c = pair()
    with tempfile.TemporaryFile() as file:
        whole = text(1_000_000, 1)
        file.write(whole)
        file.flush()
        peer("got = hashlib.sha256(); total = 0\ndef take(n):\n global total\n while n:\n  b = s.recv(min(n, 65536)); assert b; got.update(b); total += len(b); n -= len(b)")
        os.lseek(file.fileno(), 0, 0)
        # In several calls. The socket blocks, so each call sends all of its part.
        reader = threading.Thread(target=lambda: peer("take(1_000_000 + 10 + 5 + 999_990)"))
        reader.start()
        attempt("without an offset", os.sendfile, c.fileno(), file.fileno(), None, 10)
        say("the file's place", os.lseek(file.fileno(), 0, os.SEEK_CUR))
        attempt("the rest", os.sendfile, c.fileno(), file.fileno(), None, 2_000_000)
        say("the file's place", os.lseek(file.fileno(), 0, os.SEEK_CUR))
        attempt("at the end", os.sendfile, c.fileno(), file.fileno(), None, 10)
        attempt("at an offset", os.sendfile, c.fileno(), file.fileno(), 3, 5)
        attempt("all of it", os.sendfile, c.fileno(), file.fileno(), 0, 1_000_000)
        say("the file's place", os.lseek(file.fileno(), 0, os.SEEK_CUR))
        reader.join()
        say(peer("r = [total, got.hexdigest()]"))
        attempt("nothing", os.sendfile, c.fileno(), file.fileno(), 0, 0)
        attempt("beyond", os.sendfile, c.fileno(), file.fileno(), 5_000_000, 10)
        attempt("before", os.sendfile, c.fileno(), file.fileno(), -1, 10)
        attempt("no file", os.sendfile, c.fileno(), 9999, 0, 10)
        # Non-blocking: the file's offset shows how much was sent.
        c.setblocking(False)
        total = 0
        while True:
            try:
                total += os.sendfile(c.fileno(), file.fileno(), total % 1_000_000, 1_000_000 - total % 1_000_000)
            except BlockingIOError:
                break
            assert total < 100_000_000
        peer(f"total, got = 0, hashlib.sha256(); take({total})")
        expected = hashlib.sha256((whole * (total // 1_000_000 + 1))[:total]).hexdigest()
        say("everything arrived", peer("r = got.hexdigest()") == expected)
    inside, outside = os.pipe()
    attempt("from a pipe", os.sendfile, c.fileno(), inside, None, 10)
    attempt("from a socket", os.sendfile, c.fileno(), c.fileno(), None, 10)

def stdio():
    c = pair()
    streams = [libc.fdopen(os.dup(c.fileno()), mode) for mode in (b"r", b"w")]
    fileno = [libc.fileno(stream) for stream in streams]
    say("fileno", [n > 2 and os.fstat(n).st_mode & 0o170000 == 0o140000 for n in fileno], fileno[0] != fileno[1])
    reader, writer = [POINTER(stream) for stream in streams]
    # As a line-based server written in C does it.
    peer("f = s.makefile('rw'); f.write('HELO you\\nDATA\\n' + 'x' * 10000 + '\\n'); f.flush()")
    line, room = POINTER(None), ctypes.c_size_t(0)
    for _ in range(3):
        count = libc.getline(ctypes.byref(line), ctypes.byref(room), reader)
        say("getline", count, ctypes.string_at(line.value, count)[:20])
        libc.fprintf(writer, b"%d of %s\n", 250 + count, b"you")
        libc.fflush(writer)
        say(peer("r = f.readline()"))
    libc.dprintf(c.fileno(), b"%s %d %g %s %s %d %g\n", b"directly", 7, ctypes.c_double(1.5), b"a", b"b", 8, ctypes.c_double(2.5))
    say(peer("r = f.readline()"))
    libc.fputs(b"y" * 100000 + b"\n", writer)
    closing = threading.Thread(target=lambda: [libc.fclose(stream) for stream in (reader, writer)] + [c.close()])
    closing.start()
    say(peer("r = len(f.readline())"))
    closing.join()
    say(peer("r = f.readline()"))
    say("not a descriptor", libc.fdopen(9999, b"r"))
    # One stream for both directions, and its end.
    c = pair()
    stream = POINTER(libc.fdopen(c.detach(), b"r+"))
    peer("f = s.makefile('rw'); f.write('one\\n'); f.flush()")
    room = ctypes.create_string_buffer(100)
    say("fgets", libc.fgets(room, 100, stream) is not None, room.value)
    libc.fputs(b"two\n", stream)
    libc.fflush(stream)
    say(peer("r = f.readline()"))
    peer("f.write('last'); f.close(); s.close()")
    say("fread", libc.fread(room, 1, 100, stream), room.value[:4], libc.feof(stream) != 0, libc.ferror(stream))
    libc.fclose(stream)

def integrity():
    "Random sizes by every call; what arrives is what was sent, both ways."
    choice = random.Random(5)
    c = pair()
    whole = text(3_000_000, 2)
    peer("import random\nchoice = random.Random(6); whole = random.Random(2).randbytes(3_000_000)")
    peer("""
def give():
    at = 0
    while at < len(whole):
        at += s.send(whole[at:at + choice.randint(1, 70_000)])
def check():
    global same
    at, same = 0, True
    while at < len(whole):
        b = s.recv(choice.randint(1, 70_000))
        assert b
        same = same and b == whole[at:at + len(b)]
        at += len(b)
giver, checker = threading.Thread(target=give), threading.Thread(target=check)
giver.start(); checker.start()""")
    def send():
        at = 0
        while at < len(whole):
            piece = whole[at:at + choice.choice((1, 100, 4095, 4096, 4097, 65536, 200_000))]
            half = len(piece) // 3
            at += choice.choice((c.send, lambda p: os.write(c.fileno(), p), lambda p: c.sendmsg([p[:half], p[half:]]), lambda p: os.writev(c.fileno(), [p[:half], b"", p[half:]]), lambda p: c.sendto(p, (PEER, 9))))(piece)
    sender = threading.Thread(target=send)
    sender.start()
    at, same, pick = 0, True, random.Random(7)
    while at < len(whole):
        n = pick.choice((1, 10, 4096, 65536, 300_000))
        kind = pick.randrange(6)
        if kind == 0:
            b = c.recv(n)
        elif kind == 1:
            b = os.read(c.fileno(), n)
        elif kind == 2:
            b = c.recvfrom(n)[0]
        elif kind == 3:
            seen = c.recv(n, socket.MSG_PEEK)
            b = c.recv(len(seen))
            same = same and seen == b
        elif kind == 4:
            b = c.recv(min(n, len(whole) - at), socket.MSG_WAITALL)
        else:
            parts = [bytearray(n // 2 + 1), bytearray(n)]
            count = c.recvmsg_into(parts)[0] if pick.random() < .5 else os.readv(c.fileno(), parts)
            b = b"".join(parts)[:count]
        assert b
        same = same and b == whole[at:at + len(b)]
        at += len(b)
    sender.join()
    say("here", same, "at the peer", peer("checker.join(); giver.join(); r = same"))

# --- UDP ---

def patient(s):
    "Ours wait in the call itself, and no longer than this."
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 10, 0))
    return s

def bound(address=None, family=socket.AF_INET):
    "On all addresses with a port of its own: one that the kernel chose would be the kernel's until it sends."
    global port
    port += 1
    u = patient(socket.socket(family, socket.SOCK_DGRAM))
    u.bind((address, port) if address else (OWN, 0))
    return u

def datagrams():
    peer("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120); r = u.getsockname()[1]")
    for address in (None, "0.0.0.0"):
        u = bound(address)
        port = u.getsockname()[1]
        say("bound", u.getsockname()[0])
        attempt("absent peer", u.send, b"x")
        attempt("no peer", u.getpeername)
        attempt("nothing", u.recv, 10, socket.MSG_DONTWAIT)
        say("FIONREAD", number_of(u, termios.FIONREAD))
        peer(f"[u.sendto(bytes([n]) * n, (OWN, {port})) for n in (10, 20, 30, 0, 40, 50, 60, 7)]")
        until(lambda: number_of(u, termios.FIONREAD) == 10)
        data, source = u.recvfrom(100)
        say(data, source[0])
        attempt("cut", u.recv, 5)
        attempt("truncated, and reported", u.recv_into, bytearray(5), 5, socket.MSG_TRUNC | socket.MSG_PEEK)
        message = u.recvmsg(5)
        say(message[0], message[1], bool(message[2] & socket.MSG_TRUNC), message[3][0])
        attempt("empty", u.recv, 10)
        attempt("no bytes of a file", os.read, u.fileno(), 0)
        attempt("no bytes", u.recv, 0)
        parts = [bytearray(20), bytearray(20), bytearray(20)]
        count, *_ = u.recvmsg_into(parts)
        say(count, parts)
        say("read", os.read(u.fileno(), 100))
        parts = [bytearray(3), bytearray(10)]
        say("readv", os.readv(u.fileno(), parts), parts)
        say(u.sendto(b"answer", source), u.sendmsg([b"in ", b"parts"], [], 0, source), u.sendto(b"", source))
        say([peer("r = u.recv(100).decode()") for _ in range(3)])
        attempt("no port", u.sendto, b"x", (PEER, 0))
        attempt("broadcast", u.sendto, b"x", ("10.8.0.255", 9))
        u.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        attempt("broadcast, allowed", u.sendto, b"x", ("10.8.0.255", 9))
        u.connect(source)
        say("connected", u.getsockname()[0] == OWN, u.getsockname()[1] == port, u.getpeername() == source)
        attempt("send", u.send, b"connected")
        attempt("write", os.write, u.fileno(), b"written")
        say([peer("r = u.recv(100).decode()") for _ in range(2)])
        peer(f"v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); v.bind((PEER, 0)); v.sendto(b'stranger', (OWN, {port})); u.sendto(b'peer', (OWN, {port}))")
        attempt("from before", u.recv, 100)
        attempt("from the peer", u.recv, 100)
        attempt("from no other peer", u.recv, 100, socket.MSG_DONTWAIT)
        u.shutdown(socket.SHUT_WR)
        attempt("after shutdown", lambda: u.send(b"x", socket.MSG_NOSIGNAL))
        u.close()

def nobody_there():
    port = peer("w = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); w.bind((PEER, 0)); r = w.getsockname()[1]; w.close()")
    u = patient(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    u.connect((PEER, port))
    say("own address", u.getsockname()[0] == OWN)
    u.send(b"x")
    attempt("refused", u.recv, 10)
    u.send(b"x")
    until(lambda: u.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED)
    attempt("nothing more", u.recv, 10, socket.MSG_DONTWAIT)

def both_sides():
    u = bound("0.0.0.0")
    port = u.getsockname()[1]
    peer(f"u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120)")
    local = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    local.bind(("127.0.0.1", 0))
    heard = set()
    # A blocking receive returns a datagram from either side.
    for send in (lambda: peer(f"u.sendto(b'far', (OWN, {port}))"), lambda: local.sendto(b"near", ("127.0.0.1", port))):
        threading.Timer(0.05, send).start()
        data, source = u.recvfrom(10)
        say(data, source[0])
        say(u.sendto(b"to " + data, source))
    say(peer("r = u.recv(10).decode()"), local.recv(10))
    # Neither side starves the other.
    peer(f"[u.sendto(b'far', (OWN, {port})) for _ in range(100)]; u.setblocking(1)")
    for _ in range(100):
        local.sendto(b"near", ("127.0.0.1", port))
    got = [u.recv(10) for _ in range(200)]
    say(got.count(b"far"), got.count(b"near"))
    attempt("no more", u.recv, 10, socket.MSG_DONTWAIT)
    u.connect(("127.0.0.1", local.getsockname()[1]))
    say(u.send(b"local now"), local.recv(20), u.getsockname()[0])

def packet_information():
    peer("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120)")
    u = bound("0.0.0.0")
    port = u.getsockname()[1]
    u.setsockopt(socket.IPPROTO_IP, 8, 1)
    peer(f"u.sendto(b'hello', (OWN, {port}))")
    data, control, flags, source = u.recvmsg(100, 100)
    for level, kind, value in control:
        index, chosen, address = struct.unpack("i4s4s", value)
        say(level, kind, index == socket.if_nametoindex("near0"), socket.inet_ntoa(chosen), socket.inet_ntoa(address))
        say(u.sendmsg([b"back"], [(level, kind, struct.pack("i4s4s", 0, address, bytes(4)))], 0, source))
    say(peer("a = u.recvfrom(100); r = [a[0].decode(), a[1][0], a[1][1] == %d]" % port))
    peer(f"u.sendto(b'hello', (OWN, {port}))")
    data, control, flags, _ = u.recvmsg(100, 8)
    say(control, bool(flags & socket.MSG_CTRUNC))

def version_six():
    own, far = "fd08::1", "fd08::2"
    peer(f"u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); u.bind(('::', 0)); u.settimeout(120); v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); v.settimeout(120)")
    u = bound("::", socket.AF_INET6)
    port = u.getsockname()[1]
    u.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    for sender, to in (("u", own), ("v", OWN)):
        peer(f"{sender}.sendto(b'hello', ({to!r}, {port}))")
        data, control, flags, source = u.recvmsg(100, 100)
        kinds = [(level, kind, socket.inet_ntop(socket.AF_INET6, value[:16])) for level, kind, value in control if level == socket.IPPROTO_IPV6]
        say(data, source[0], kinds)
        say(u.sendto(b"answer", source), peer(f"r = {sender}.recv(100).decode()"))
    c = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    c.connect((far, peer("r = u.getsockname()[1]")))
    say(c.getsockname()[0], c.getpeername()[0], c.send(b"x"), peer("r = u.recv(10).decode()"))

def same_port():
    "As in iperf3's server: the receiving socket is connected to the sender, and a new socket replaces it."
    first = patient(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    first.bind(("0.0.0.0", 7098))
    port = 7098
    peer(f"u, v = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]; u.settimeout(120); u.sendto(b'one', (OWN, {port}))")
    data, source = first.recvfrom(10)
    first.connect(source)
    second = patient(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    second.bind(("0.0.0.0", port))
    peer(f"v.sendto(b'two', (OWN, {port})); u.sendto(b'one again', (OWN, {port}))")
    attempt("first", first.recv, 20)
    attempt("second", second.recv, 20)
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    attempt("taken", other.bind, (OWN, port))

def shared_ports():
    "Several sockets on one port: which of them receives, and which when one is closed."
    global port
    for at in (OWN, "0.0.0.0"):
        for options in ((socket.SO_REUSEPORT,), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT, socket.SO_REUSEADDR)):
            port += 1
            say("on", at, options)
            def member(options=options):
                u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                for option in options:
                    u.setsockopt(socket.SOL_SOCKET, option, 1)
                u.bind((at, port))
                u.setblocking(False)
                return u
            group = [member() for _ in range(4)]
            attempt("with no option", lambda: member(()))
            other = socket.SO_REUSEPORT + socket.SO_REUSEADDR - options[0]
            if len(options) == 1:
                attempt("with the other option", lambda: member((other,)))
            peer("c = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(64)]")
            while len(group) > 1:
                peer(f"[one.sendto(b'%d' % at, (OWN, {port})) for _ in range(2) for at, one in enumerate(c)]")
                got = [[] for _ in group]
                poll = select.poll()
                for one in group:
                    poll.register(one, select.POLLIN)
                numbers = [one.fileno() for one in group]
                while sum(map(len, got)) < 128 and (ready := poll.poll(60_000)):
                    for fd, _ in ready:
                        got[numbers.index(fd)].append(group[numbers.index(fd)].recv(10))
                say("received", sum(map(len, got)), "by", [len(one) > 0 for one in got], "one flow by one", sum(len(set(one)) for one in got))
                group.pop().close()
            # The answer comes from the shared port.
            peer(f"c[0].settimeout(120); c[0].sendto(b'last', (OWN, {port}))")
            group[0].setblocking(True)
            data, source = group[0].recvfrom(10)
            say(data, group[0].sendto(b"answer", source), peer("a = c[0].recvfrom(10); r = [a[0].decode(), a[1][1]]"))

def batches_of_datagrams():
    keep = []
    peer("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120)")
    far = peer("r = u.getsockname()[1]")
    # Sending binds an unbound socket.
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    name = ctypes.create_string_buffer(struct.pack("=H", socket.AF_INET) + struct.pack("!H", far) + socket.inet_aton(PEER) + bytes(8), 16)
    out = batch([ctypes.create_string_buffer(text(n, n), n) for n in (1, 100, 1000)], keep, name)
    raw("sendmmsg", u.fileno(), out, 3, 0)
    say([header.length for header in out])
    say(peer("r = [hashlib.sha256(u.recv(2000)).hexdigest() for _ in range(3)]"))
    port = u.getsockname()[1]
    peer(f"[u.sendto(bytes([65 + n]) * n, (OWN, {port})) for n in range(5)]")
    time.sleep(0.1)
    room = [ctypes.create_string_buffer(3) for n in range(8)]
    into = batch(room, keep)
    raw("recvmmsg", u.fileno(), into, 8, socket.MSG_DONTWAIT, None)
    say([(header.length, header.header.flags & socket.MSG_TRUNC != 0) for header in into[:5]], [buffer.raw for buffer in room[:5]])
    peer(f"u.sendto(b'x', (OWN, {port}))")
    raw("recvmmsg", u.fileno(), into, 8, 0x10000, None)
    class timespec(ctypes.Structure):
        _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
    peer(f"u.sendto(b'x', (OWN, {port}))")
    raw("recvmmsg", u.fileno(), into, 8, 0, ctypes.byref(timespec(0, 1)))

def readiness():
    u = bound("0.0.0.0")
    port = u.getsockname()[1]
    peer("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120)")
    local = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    local.bind(("127.0.0.1", 0))
    epoll = select.epoll()
    epoll.register(u, select.EPOLLIN)
    say(epoll.poll(0))
    for send in (lambda: peer(f"u.sendto(b'far', (OWN, {port}))"), lambda: local.sendto(b"near", ("127.0.0.1", port))):
        threading.Timer(0.05, send).start()
        say([events for _, events in epoll.poll(10)], u.recv(10))
        say(epoll.poll(0))
    epoll.modify(u, select.EPOLLOUT)
    say({events for _, events in epoll.poll(10)})

def limits():
    "Waits with a time limit: of the call itself, and by `settimeout`, which polls."
    u = bound("0.0.0.0")
    u.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20_000))
    attempt("in time", u.recv, 10)
    u.settimeout(0.02)
    attempt("in time", u.recv, 10)
    peer("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120)")
    threading.Timer(0.05, lambda: peer(f"u.sendto(b'late', (OWN, {u.getsockname()[1]}))")).start()
    u.settimeout(120)
    attempt("late", u.recv, 10)

def polled(one):
    poll = select.poll()
    poll.register(one, select.POLLIN)
    return poll.poll(60_000)


def long_datagrams():
    "Datagrams that are longer than a packet: sent in fragments, and received through the kernel, which reassembles."
    peer("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((PEER, 0)); u.settimeout(120)")
    for at in ("0.0.0.0", OWN):
        one = bound(at)
        one.settimeout(120)
        for length in (1473, 20_000):
            peer(f"u.sendto(bytes({length}), (OWN, {one.getsockname()[1]}))")
            say("received at", at, len(one.recv(70_000)))
        peer(f"u.sendto(bytes(3000), (OWN, {one.getsockname()[1]}))")
        say("polled", [event for _, event in polled(one)], len(one.recv(70_000)))
        with select.epoll() as epoll:
            epoll.register(one, select.EPOLLIN)
            peer(f"u.sendto(bytes(3000), (OWN, {one.getsockname()[1]}))")
            say("waited for", [event for _, event in epoll.poll(60)], len(one.recv(70_000)))
            say("no more", epoll.poll(0))
        one.connect((PEER, peer("r = u.getsockname()[1]")))
        for length in (5, 3000, 6):
            peer(f"u.sendto(bytes({length}), (OWN, {one.getsockname()[1]}))")
            say("from the peer", len(one.recv(70_000)))
        one.setblocking(False)
        attempt("none", one.recv, 9)
    u = bound("0.0.0.0")
    u.settimeout(120)
    to = (PEER, peer("r = u.getsockname()[1]"))
    for length in (1472, 1473, 20_000, 65_507):
        say(length, u.sendto(text(length, 1), to), peer("b = u.recv(70000); r = [len(b), hashlib.sha256(b).hexdigest()]"))
    attempt("too long", u.sendto, bytes(65_508), to)
    peer("u.setsockopt(socket.IPPROTO_IP, 13, 1)")  # IP_RECVTOS
    u.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x4a)
    u.sendto(b"x", to)
    say("class", peer("r = [list(data) for _, _, data in u.recvmsg(9, 100)[1]]"))
    u.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
    attempt("not in fragments", u.sendto, bytes(1473), to)

exec(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "rawcalls.py")).read())

for name in sys.argv[4:] or ("edges", "messages", "resets", "batches_of_a_stream", "files", "stdio", "integrity", "datagrams", "nobody_there", "both_sides", "packet_information", "version_six", "same_port", "batches_of_datagrams", "limits", "long_datagrams", "readiness"):
    say("---", name)
    try:
        globals()[name]()
    except Exception as error:
        say("failed:", traceback.format_exc())
