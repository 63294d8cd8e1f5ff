# A small echo server on an epoll instance, for tests. Arguments: address, epoll parameters ("usecs,budget,prefer" or
# "none"), timeout of its waits in seconds. Listens on port 7000, prints "ready", and ends by itself after 60 s.
import fcntl, select, signal, socket, struct, sys

EPIOCSPARAMS = 0x40088A01

address, params, timeout = sys.argv[1], sys.argv[2], float(sys.argv[3])
signal.alarm(60)
listener = socket.create_server((address, 7000), backlog=64)
epoll = select.epoll()
if params != "none":
    usecs, budget, prefer = map(int, params.split(","))
    fcntl.ioctl(epoll.fileno(), EPIOCSPARAMS, struct.pack("IHBB", usecs, budget, prefer, 0))
epoll.register(listener, select.EPOLLIN)
print("ready", flush=True)
connections = {}
while True:
    for descriptor, _ in epoll.poll(timeout):
        if descriptor == listener.fileno():
            connection, _ = listener.accept()
            connections[connection.fileno()] = connection
            epoll.register(connection, select.EPOLLIN)
            continue
        try:
            data = connections[descriptor].recv(4096)
            connections[descriptor].send(data)
        except OSError:
            data = b""
        if not data:
            connections.pop(descriptor).close()
