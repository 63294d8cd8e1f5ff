# A server on the wildcard address, with clients over the NIC and over loopback. tests/sockets.rs starts it.
#
#   wildcard.py epoll PORT       serves both from one epoll set: sends each its local address, and keeps the connection open
#   wildcard.py block PORT       the same in a thread that waits in accept
#   wildcard.py turns PORT       accepts all pending connections on a command, and prints their order

import select, signal, socket, sys

signal.alarm(60)
listener = socket.socket(socket.AF_INET6)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("::", int(sys.argv[2])))
listener.listen(256)
kept = []


def serve(connection, peer):
    connection.sendall(peer[0].removeprefix("::ffff:").encode())
    kept.append(connection)


if sys.argv[1] == "epoll":
    listener.setblocking(False)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    print("listens", flush=True)
    while True:
        for _ in epoll.poll():
            serve(*listener.accept())
elif sys.argv[1] == "block":
    print("listens", flush=True)
    while True:
        serve(*listener.accept())
else:
    listener.setblocking(False)
    try:
        listener.accept()
    except BlockingIOError:
        print("listens", flush=True)
    # Waits for the command.
    sys.stdin.readline()
    order = ""
    while True:
        try:
            connection, peer = listener.accept()
        except BlockingIOError:
            break
        order += "k" if peer[0] == "::1" else "o"
        kept.append(connection)
    print(order, flush=True)
