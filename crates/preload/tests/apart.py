# Programs on shared-memory NICs of their own; tests/apart.rs is at the other end of each.
#
#   apart.py own PORT REUSE      listens on the NIC's address, as others do at the same time on theirs
#   apart.py wildcard PORT       listens on all addresses
#   apart.py connect PORT        connects, and is refused, and connects again, from ends of its choice

import errno, signal, socket, sys

signal.alarm(60)
OWN, OTHER = "10.0.0.1", "10.0.0.2"
what, port = sys.argv[1], int(sys.argv[2])


def attempt(work):
    try:
        return work()
    except OSError as error:
        return errno.errorcode[error.errno]


def serve(listener):
    print("listens", flush=True)
    while True:
        connection, peer = listener.accept()
        assert peer == connection.getpeername()
        word = connection.recv(9)
        connection.sendall(word + b" " + connection.getsockname()[0].encode())
        connection.close()
        if word == b"end":
            return


def listener(at, family=socket.AF_INET, reuse=True):
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    made.bind((at, port))
    return made


if what == "own":
    first = listener(OWN, reuse=sys.argv[3] == "reuse")
    first.listen()
    assert first.getsockname() == (OWN, port), first.getsockname()
    assert first.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    # In one program it is taken, as always.
    assert attempt(lambda: listener(OWN).listen()) == "EADDRINUSE"
    assert attempt(lambda: first.bind((OWN, port + 1))) == "EINVAL"
    serve(first)
elif what == "wildcard":
    first = listener("::", socket.AF_INET6)
    first.listen()
    serve(first)
else:
    # The other end is made by the first attempt, and attaches.
    first = socket.socket()
    print("begins", flush=True)
    first.connect((OTHER, port))
    assert first.getsockname()[0] == OWN and first.getpeername() == (OTHER, port)
    first.sendall(b"one")
    second = socket.socket()
    assert attempt(lambda: second.connect((OTHER, port + 1))) == "ECONNREFUSED"
    second.bind((OWN, port + 2))
    second.connect((OTHER, port))
    assert second.getsockname() == (OWN, port + 2), second.getsockname()
    second.sendall(b"two")
    third = socket.socket()
    third.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # To loopback it is the kernel's.
    kernel = socket.create_server(("127.0.0.1", 0))
    third.connect(kernel.getsockname())
    assert kernel.accept()[0].getpeername() == third.getsockname()
    for connection in (first, second):
        assert connection.recv(9) == b"ok" and connection.recv(9) == b""
print("served", flush=True)
