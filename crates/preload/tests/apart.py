# Programs that each have a shared-memory NIC of their own. tests/apart.rs attaches to the other end.
#
#   apart.py own PORT REUSE      listens on the NIC's address, while another program listens on the same address of its own NIC
#   apart.py wildcard PORT       listens on the wildcard address
#   apart.py connect PORT        connects from addresses and ports of its choice, also after a refused attempt

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
    # Within one program the address is taken, as usual.
    assert attempt(lambda: listener(OWN).listen()) == "EADDRINUSE"
    assert attempt(lambda: first.bind((OWN, port + 1))) == "EINVAL"
    serve(first)
elif what == "wildcard":
    first = listener("::", socket.AF_INET6)
    first.listen()
    serve(first)
else:
    # The first attempt makes the NIC, to which the test then attaches.
    first = socket.socket()
    print("begins", flush=True)
    # The other end refuses until the test has a listener there.
    while attempt(lambda: first.connect((OTHER, port))) == "ECONNREFUSED":
        first.close()
        first = socket.socket()
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
    # The kernel connects to loopback.
    kernel = socket.create_server(("127.0.0.1", 0))
    third.connect(kernel.getsockname())
    assert kernel.accept()[0].getpeername() == third.getsockname()
    for connection in (first, second):
        assert connection.recv(9) == b"ok" and connection.recv(9) == b""
print("served", flush=True)
