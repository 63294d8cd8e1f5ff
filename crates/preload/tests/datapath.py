# A server whose epoll set contains datapath sockets and kernel descriptors. tests/datapath.rs is its client.

import errno, fcntl, os, select, signal, socket, struct, sys, termios, threading, time

signal.alarm(60)
OWN = ("10.0.0.1", 7)

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(OWN)
listener.listen(16)
assert listener.getsockname() == OWN
assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
assert os.fstat(listener.fileno()).st_mode & 0o170000 == 0o140000
listener.setblocking(False)
try:
    listener.accept()
    raise AssertionError("no connection was accepted")
except BlockingIOError:
    pass

# The kernel descriptors: an eventfd that a thread writes to, and a listener on loopback that it connects to.
event = os.eventfd(0, os.EFD_NONBLOCK)
local = socket.create_server(("127.0.0.1", 0))
stop = threading.Event()

def disturb():
    while not stop.wait(0.001):
        os.eventfd_write(event, 1)
        with socket.create_connection(local.getsockname()) as client:
            assert client.recv(1) == b"l"

disturber = threading.Thread(target=disturb)
disturber.start()

epoll = select.epoll()
for source in (event, listener, local):
    epoll.register(source, select.EPOLLIN)

# Loops until both kernel descriptors were served while the client kept the server busy.
connection, ended, seen = None, False, set()
while not ended:
    for number, events in epoll.poll():
        if number == event:
            assert os.eventfd_read(event) > 0
            seen.add("event")
        elif number == local.fileno():
            accepted, _ = local.accept()
            accepted.sendall(b"l")
            accepted.close()
            seen.add("local")
        elif number == listener.fileno():
            connection, peer = listener.accept()
            # The client's next connection may arrive before the end of this one is read.
            epoll.unregister(listener)
            assert peer == connection.getpeername() and peer[0] == "10.0.0.2", peer
            assert connection.getsockname() == OWN
            assert connection.getblocking()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            connection.setblocking(False)
            epoll.register(connection, select.EPOLLIN | select.EPOLLRDHUP)
        else:
            assert number == connection.fileno(), number
            waiting = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))[0]
            data = connection.recv(4096)
            assert len(data) >= waiting
            if data:
                connection.sendmsg([b"+" if len(seen) == 2 else b"-"] * len(data))
            else:
                epoll.unregister(connection)
                connection.close()
                ended = True
                # The next connection may be ready already; it is accepted later.
                break
stop.set()
disturber_ends = time.monotonic() + 120
while disturber.is_alive():
    assert time.monotonic() < disturber_ends
    for number, _ in epoll.poll(0.01):
        if number == local.fileno():
            local.accept()[0].sendall(b"l")
        elif number == event:
            os.eventfd_read(event)

# A forked child closes its descriptors, and its parent's connection stays open; then a duplicate outlives the original.
listener.setblocking(True)
connection, _ = listener.accept()
child = os.fork()
if child == 0:
    connection.close()
    listener.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
parts = [bytearray(2), bytearray(4)]
assert connection.recvmsg_into(parts)[0] == 4 and parts == [b"fo", b"rk\0\0"], parts
number = connection.fileno()
duplicate = os.dup(number)
connection.close()
assert os.open("/dev/null", os.O_RDONLY) == number, "the number is free again"
assert os.read(number, 1) == b"", "and is the file's"
os.write(duplicate, b"duplicate")
os.close(duplicate)

# A signal ends a wait with EINTR.
class Rang(Exception):
    pass

def ring(*_):
    raise Rang

disturber.join()
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.05)
epoll.unregister(event)
try:
    epoll.poll()
    raise AssertionError("nothing happens")
except Rang:
    print("served")
