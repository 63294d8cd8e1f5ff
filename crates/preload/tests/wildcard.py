# A wildcard server, whose clients come over the NIC and over loopback; tests/sockets.rs starts it.
#
#   wildcard.py epoll PORT       serves both from one epoll set: says to each whom it is for, and keeps the connection
#   wildcard.py block PORT       the same in a thread that waits in accept
#   wildcard.py turns PORT       accepts what is there when it is told to, and says in which order

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
    # Until it is told.
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
