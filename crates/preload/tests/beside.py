# A thread makes descriptors while another one makes the first call that needs a datapath. tests/apart.rs runs this.
#
# Prints the kinds of descriptors that were made while the low numbers were taken, and those that then could not be closed.

import ctypes, os, select, socket, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
KINDS = {
    "socket": lambda: [socket.socket().detach()],
    "unix": lambda: [socket.socket(socket.AF_UNIX).detach()],
    "pair": lambda: [one.detach() for one in socket.socketpair()],
    "epoll": lambda: [libc.epoll_create1(os.O_CLOEXEC)],
    "eventfd": lambda: [os.eventfd(0)] if hasattr(os, "eventfd") else [],
    "timerfd": lambda: [libc.timerfd_create(1, os.O_CLOEXEC)],
    "by number": lambda: [libc.syscall(ctypes.c_long(290 if os.uname().machine == "x86_64" else 19), ctypes.c_long(0), ctypes.c_long(os.O_CLOEXEC))],
    "file": lambda: [os.open("/proc/self/status", os.O_RDONLY)],
    "pipe": lambda: list(os.pipe()),
    "copy": lambda: [os.dup(0)],
    "memfd": lambda: [os.memfd_create("mine")],
}
listener = socket.create_server((sys.argv[1], 7000))
done = threading.Event()

def use():
    select.select([listener], [], [], 0)
    done.set()

# All are kept: a number that is closed meanwhile may become the runtime's.
made, kept = [], []
thread = threading.Thread(target=use)
thread.start()
while not done.is_set() and not made and len(kept) < 300:
    now = [(kind, fd) for kind, make in KINDS.items() for fd in make()]
    kept += now
    if now[0][1] >= 400:
        made = now
    time.sleep(0.001)
thread.join()
print("made", len(made))
for kind, fd in kept:
    try:
        os.close(fd)
    except OSError as error:
        print(kind, error)
# The runtime's descriptors are still protected.
os.closerange(400, 2000)
again = socket.create_server((sys.argv[1], 7001))
print("and serves", select.select([again], [], [], 0))
