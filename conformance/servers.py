"""The servers of programs.py. A client's command checks the answers itself and ends with 0 if they are right."""

import os
import shutil
import subprocess
import sys

BODY = "x" * 200_000


class Program:
    """A server: the command that starts it, the port that shows that it is ready, and the client's commands."""

    def __init__(self, name, needs, port, command, clients, prepare=None, user=None):
        self.name, self.needs, self.port = name, needs, port
        self.command, self.clients = command, clients
        self.prepare, self.user = prepare, user

    def missing(self):
        return [need for need in self.needs if not (shutil.which(need) or os.path.exists(need))]


def write(directory, name, text, mode=0o644):
    path = os.path.join(directory, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def sh(script):
    return ["sh", "-ec", script]


def http(path="/", count=200, concurrency=16):
    """Single requests, then keep-alive load in which no request may fail."""
    return [
        sh("for i in 1 2 3 4 5 6 7 8; do curl -sSf --max-time 60 http://{server}:{port}" + path + " | grep -q hello; done"),
        sh(f"ab -q -k -s 60 -n {count} -c {concurrency} http://{{server}}:{{port}}{path} > ab.out; "
           "grep -q 'Failed requests: *0' ab.out; ! grep -q Non-2xx ab.out"),
        # Connections that stay open while others come.
        [sys.executable, "-c", KEEP_ALIVE, "{server}", "{port}", path],
    ]


KEEP_ALIVE = """
import http.client, sys
server, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
alive = [http.client.HTTPConnection(server, port, timeout=60) for _ in range(8)]
for turn in range(3):
    for one in alive:
        one.request("GET", path)
        answer = one.getresponse()
        assert b"hello" in answer.read() and answer.status == 200
"""

ECHO_TCP = """
import socket, sys, os
server, port = sys.argv[1], int(sys.argv[2])
for turn in range(int(sys.argv[3])):
    with socket.create_connection((server, port), 60) as stream:
        for size in (1, 100, 20000, 100000):
            sent = os.urandom(size)
            stream.sendall(sent)
            got = b""
            while len(got) < size:
                more = stream.recv(65536)
                assert more, "closed"
                got += more
            assert got == sent
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
"""

ECHO_UDP = """
import socket, sys, os
server, port = sys.argv[1], int(sys.argv[2])
for turn in range(int(sys.argv[3])):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(60)
        peer.connect((server, port))
        for size in (1, 100, 1400):
            sent = os.urandom(size)
            peer.send(sent)
            assert peer.recv(65536) == sent
"""

echo_tcp = [sys.executable, "-c", ECHO_TCP, "{server}", "{port}", "20"]
echo_udp = [sys.executable, "-c", ECHO_UDP, "{server}", "{port}", "20"]


# --- what the servers need

def postgres(directory, values):
    bin = "/usr/lib/postgresql/" + sorted(os.listdir("/usr/lib/postgresql"))[-1] + "/bin"
    data = os.path.join(directory, "data")
    os.mkdir(data)
    shutil.chown(data, "postgres", "postgres")
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    subprocess.run([*as_postgres, f"{bin}/initdb", "-A", "trust", "-D", data], check=True, capture_output=True)
    with open(f"{data}/pg_hba.conf", "a", encoding="utf-8") as file:
        file.write("host all all 0.0.0.0/0 trust\n")
    return {"bin": bin, "data": data}


PGBENCH = """
pg() {{ {bin}/psql -h {server} -p {port} -U postgres -At -c "$1" postgres; }}
for i in 1 2 3 4 5 6 7 8 9 10; do pg 'select 1' > /dev/null 2>&1 && break; sleep 1; done
{bin}/pgbench -h {server} -p {port} -U postgres -q -i -s 2 postgres > /dev/null 2>&1
{bin}/pgbench -h {server} -p {port} -U postgres -n -c 20 -j 2 -T 5 postgres > pg.out 2>&1 || {{ cat pg.out; exit 1; }}
grep -q 'number of failed transactions: 0' pg.out
a=$(pg 'select sum(abalance) from pgbench_accounts'); b=$(pg 'select sum(bbalance) from pgbench_branches')
t=$(pg 'select sum(tbalance) from pgbench_tellers'); h=$(pg 'select sum(delta) from pgbench_history')
echo "$a $b $t $h"; [ "$a" = "$b" ] && [ "$a" = "$t" ] && [ "$a" = "$h" ]
"""


def site(directory, values):
    os.makedirs(os.path.join(directory, "site"), exist_ok=True)
    write(os.path.join(directory, "site"), "index.html", "hello " + BODY)


def certificate(directory):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-keyout", "key.pem",
                    "-out", "cert.pem"], cwd=directory, check=True, capture_output=True)


def nginx(directory, values):
    site(directory, values)
    certificate(directory)
    write(directory, "nginx.conf", f"""
user root; worker_processes 2; daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log; events {{ }}
http {{ access_log off; server {{ listen {values['port']}; listen 8443 ssl http2; root {directory}/site;
ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem; }} }}
""")


def apache(directory, mpm):
    os.makedirs(f"{directory}/site", exist_ok=True)
    write(f"{directory}/site", "index.html", "hello " + BODY)
    modules = "/usr/lib/apache2/modules"
    write(directory, "apache.conf", f"""
ServerRoot {directory}
ServerName test
Listen 8080
PidFile {directory}/pid
ErrorLog {directory}/error.log
Mutex file:{directory}
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule dir_module {modules}/mod_dir.so
DocumentRoot {directory}/site
StartServers 4
KeepAlive On
KeepAliveTimeout 30
<Directory {directory}/site>
Require all granted
</Directory>
""")


def zone(directory):
    write(directory, "example.zone", "$TTL 60\n@ IN SOA ns.example. root.example. (1 60 60 60 60)\n@ IN NS ns\nns IN A 192.0.2.1\n"
          "www IN A 192.0.2.2\n" + "".join(f'big IN TXT "{i:03}{"y" * 200}"\n' for i in range(10)))
    write(directory, "queries", "www.example A\n" * 100 + "ns.example A\n")


DNS = [
    sh("for i in 1 2 3 4 5; do dig +time=20 +tries=1 @{server} -p {port} www.example A +short | grep -q 192.0.2.2; done"),
    sh("dig +tcp +time=20 +tries=1 @{server} -p {port} big.example TXT +short | grep -c yyy | grep -q 10"),
    sh("dig +bufsize=4096 +notcp +ignore +time=20 +tries=1 @{server} -p {port} big.example TXT +short | grep -c yyy | grep -q 10"),
    sh("dnsperf -s {server} -p {port} -d queries -l 2 -c 8 -T 2 -Q 2000 > perf.out 2>&1; grep -q 'Queries lost: *0 ' perf.out"),
]


def named(directory, values):
    zone(directory)
    write(directory, "named.conf", f"""
options {{ directory "{directory}"; listen-on port {values['port']} {{ any; }}; listen-on-v6 {{ none; }}; recursion no; pid-file none;
session-keyfile "{directory}/session.key"; dnssec-validation no; max-udp-size 4096; edns-udp-size 4096; allow-query {{ any; }}; }};
controls {{ }};
zone "example" {{ type primary; file "{directory}/example.zone"; }};
""")


def unbound(directory, values):
    zone(directory)
    records = ['"www.example. A 192.0.2.2"', '"ns.example. A 192.0.2.1"'] + [f"'big.example. TXT \"{i:03}{'y' * 200}\"'" for i in range(10)]
    write(directory, "unbound.conf", f"""
server:
  interface: 0.0.0.0
  port: {values['port']}
  num-threads: 2
  so-reuseport: yes
  do-daemonize: no
  chroot: ""
  username: ""
  directory: "{directory}"
  pidfile: ""
  use-syslog: no
  max-udp-size: 4096
  edns-buffer-size: 4096
  access-control: 0.0.0.0/0 allow
  local-zone: "example." static
""" + "".join(f"  local-data: {record}\n" for record in records))


def knot(directory, values):
    zone(directory)
    write(directory, "knot.conf", f"""
server:
    rundir: "{directory}"
    listen: 0.0.0.0@{values['port']}
    udp-max-payload: 4096
    udp-workers: 2
    tcp-workers: 2
database:
    storage: "{directory}"
log:
  - target: stderr
    any: warning
zone:
  - domain: example
    file: "{directory}/example.zone"
    journal-content: none
""")


def dnsmasq(directory, values):
    zone(directory)


def varnish(directory, values):
    write(directory, "default.vcl", 'vcl 4.1; backend none none; sub vcl_recv { return (synth(200, "OK")); } '
          'sub vcl_synth { synthetic("hello"); return (deliver); }')


def haproxy(directory, values):
    site(directory, values)
    write(directory, "haproxy.cfg", f"""
global
    nbthread 2
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 60s
frontend f
    bind 0.0.0.0:{values['port']}
    http-request return status 200 content-type text/plain string "hello"
""")


def node(directory, values):
    write(directory, "server.js", f"""
const http = require('http'), dgram = require('dgram'), net = require('net');
http.createServer((q, s) => s.end('hello ' + process.version + 'x'.repeat(20000))).listen({values['port']}, '0.0.0.0');
const u = dgram.createSocket('udp4'); u.on('message', (m, r) => u.send(m, r.port, r.address)); u.bind(7007);
net.createServer({{allowHalfOpen: true}}, c => c.pipe(c)).listen(7008, '0.0.0.0');
""")


NODE = [*http(), [sys.executable, "-c", ECHO_UDP, "{server}", "7007", "20"], [sys.executable, "-c", ECHO_TCP, "{server}", "7008", "20"],
        sh("ab -q -k -s 60 -n 500 -c 32 http://{server}:{port}/ | grep -q 'Failed requests: *0'")]


def asgi(directory, values):
    write(directory, "app.py", """
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'5')]})
    await send({'type': 'http.response.body', 'body': b'hello'})
""")


def wsgi(directory, values):
    write(directory, "app.py", "def app(environ, start):\n    start('200 OK', [('Content-Length', '5')])\n    return [b'hello']\n")


def python(source):
    def prepare(directory, values):
        write(directory, "server.py", source)
    return prepare


FORKING = """
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64
Server(('0.0.0.0', int(sys.argv[1])), Echo).serve_forever()
"""

SUBPROCESS = """
import socket, subprocess, sys
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))
while True:
    stream, _ = listener.accept()
    subprocess.run(['echo', 'of the child'], stdout=stream.fileno())
    print('of the parent', flush=True)
    stream.sendall(b'end')
    stream.close()
"""

PREFORK = """
import os, socket, sys, threading
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])), backlog=64)
for _ in range(5):
    if os.fork() == 0:
        break
while True:
    stream, _ = listener.accept()
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()
"""

GO = """
package main
%s
import ("fmt"; "net"; "net/http"; "os"; "strings"; "io")
func main() {
	%s
	go func() { l, _ := net.Listen("tcp4", ":7008"); for { c, e := l.Accept(); if e != nil { return }; go func() { io.Copy(c, c); c.(*net.TCPConn).CloseWrite() }() } }()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", strings.Repeat("x", 20000)) })
	http.ListenAndServe("0.0.0.0:" + os.Args[1], nil)
}
"""


def go(cgo):
    def prepare(directory, values):
        parts = ("// int one(void) { return 1; }\nimport \"C\"\n", "_ = C.one()") if cgo else ("", "")
        write(directory, "main.go", GO % parts)
        subprocess.run(["go", "build", "-o", "server", "main.go"], cwd=directory, check=True, capture_output=True,
                       env={**os.environ, "CGO_ENABLED": "1" if cgo else "0", "GO111MODULE": "off", "GOFLAGS": ""})
    return prepare


URING = r"""
#include <liburing.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static struct io_uring ring;
static char buffers[1024][65536];
static void queue(int kind, int fd, int length) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (kind == 0) io_uring_prep_accept(sqe, fd, 0, 0, 0);
    else if (kind == 1) io_uring_prep_recv(sqe, fd, buffers[fd], sizeof buffers[fd], 0);
    else io_uring_prep_send(sqe, fd, buffers[fd], length, MSG_WAITALL);
    io_uring_sqe_set_data64(sqe, (unsigned long) kind << 32 | fd);
}
int main(int count, char **words) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (io_uring_queue_init(256, &ring, 0)) return 3;
    if (bind(listener, (void *) &at, sizeof at) || listen(listener, 64)) return 2;
    queue(0, listener, 0);
    for (;;) {
        struct io_uring_cqe *cqe;
        io_uring_submit_and_wait(&ring, 1);
        while (!io_uring_peek_cqe(&ring, &cqe)) {
            unsigned long data = cqe->user_data; int kind = data >> 32, fd = (int) data, result = cqe->res;
            io_uring_cqe_seen(&ring, cqe);
            if (kind == 0) { if (result >= 0) queue(1, result, 0); queue(0, listener, 0); }
            else if (result <= 0) close(fd);
            else if (kind == 1) queue(2, fd, result);
            else queue(1, fd, 0);
        }
    }
}
"""


def uring(directory, values):
    write(directory, "server.c", URING)
    subprocess.run(["cc", "-O1", "-o", "server", "server.c", "-luring"], cwd=directory, check=True, capture_output=True)


# Set by the environment: a virtual environment with uvicorn, uvloop, gunicorn; node of another version; a Netty jar.
VENV = os.environ.get("ABEY_TEST_VENV", "/nonexistent")
NODE24 = os.environ.get("ABEY_TEST_NODE24", "/nonexistent")

PROGRAMS = [
    Program("memcached", ["memcached"], 11211, ["memcached", "-u", "nobody", "-p", "{port}", "-t", "2"],
            [sh("memccapable -h {server} -p {port} | grep -q 'All tests passed'")]),
    Program("redis", ["redis-server", "redis-benchmark"], 6379,
            ["redis-server", "--port", "{port}", "--protected-mode", "no", "--save", "", "--dir", "{dir}"],
            [sh("redis-benchmark -h {server} -p {port} -q -n 2000 -c 20 > out; ! grep -q ERR out")]),
    Program("nginx", ["nginx", "openssl", "ab"], 8080, ["nginx", "-c", "{dir}/nginx.conf"],
            [*http("/index.html"), sh("curl -ksSf --http2 https://{server}:8443/index.html | wc -c | grep -q 200006"),
             sh("ab -q -k -s 60 -n 100 -c 8 https://{server}:8443/index.html | grep -q 'Failed requests: *0'")], prepare=nginx),
    Program("apache-prefork", ["apache2", "ab"], 8080, ["apache2", "-DFOREGROUND", "-f", "{dir}/apache.conf"],
            http("/index.html"), prepare=lambda directory, values: apache(directory, "prefork")),
    Program("apache-event", ["apache2", "ab"], 8080, ["apache2", "-DFOREGROUND", "-f", "{dir}/apache.conf"],
            http("/index.html"), prepare=lambda directory, values: apache(directory, "event")),
    Program("haproxy", ["haproxy", "ab"], 8080, ["haproxy", "-db", "-f", "{dir}/haproxy.cfg"], http(), prepare=haproxy),
    Program("varnish", ["varnishd", "ab"], 8080,
            ["varnishd", "-F", "-a", "0.0.0.0:{port}", "-f", "{dir}/default.vcl", "-n", "{dir}/v", "-j", "none"], http(), prepare=varnish),
    Program("postgresql", ["/usr/lib/postgresql", "pgbench"], 5432,
            ["{bin}/postgres", "-D", "{data}", "-p", "{port}", "-c", "listen_addresses=*", "-k", "{dir}"], [sh(PGBENCH)],
            prepare=postgres, user="postgres"),
    Program("bind9", ["named", "dig", "dnsperf"], 5300, ["named", "-g", "-n", "2", "-c", "{dir}/named.conf"], DNS, prepare=named),
    Program("unbound", ["unbound", "dig", "dnsperf"], 5300, ["unbound", "-d", "-c", "{dir}/unbound.conf"], DNS, prepare=unbound),
    Program("knot", ["knotd", "dig", "dnsperf"], 5300, ["knotd", "-c", "{dir}/knot.conf"], DNS, prepare=knot),
    Program("dnsmasq", ["dnsmasq", "dig"], 5300,
            ["dnsmasq", "-k", "-p", "{port}", "-C", "/dev/null", "-u", "root", "--no-resolv", "--no-hosts", "--address=/www.example/192.0.2.2",
             "--address=/ns.example/192.0.2.1", "--pid-file={dir}/pid"], [DNS[0], DNS[3]], prepare=dnsmasq),
    Program("node", ["node", "ab"], 8080, ["node", "{dir}/server.js"], NODE, prepare=node),
    Program("node24", [NODE24, "ab"], 8080, [NODE24, "{dir}/server.js"], NODE, prepare=node),
    Program("uvicorn-uvloop", [f"{VENV}/bin/uvicorn", "ab"], 8080,
            [f"{VENV}/bin/uvicorn", "--loop", "uvloop", "--host", "0.0.0.0", "--port", "{port}", "app:app"], http(), prepare=asgi),
    Program("uvicorn-workers", [f"{VENV}/bin/uvicorn", "ab"], 8080,
            [f"{VENV}/bin/uvicorn", "--loop", "asyncio", "--workers", "3", "--host", "0.0.0.0", "--port", "{port}", "app:app"], http(),
            prepare=asgi),
    Program("gunicorn", [f"{VENV}/bin/gunicorn", "ab"], 8080,
            [f"{VENV}/bin/gunicorn", "-b", "0.0.0.0:{port}", "-w", "4", "app:app"], http()[:2], prepare=wsgi),
    Program("socat-fork", ["socat"], 7007, ["socat", "TCP-LISTEN:{port},fork,reuseaddr", "EXEC:cat"], [echo_tcp]),
    Program("python-forking", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"], [echo_tcp], prepare=python(FORKING)),
    Program("python-prefork", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"], [echo_tcp], prepare=python(PREFORK)),
    Program("python-subprocess", ["python3"], 7007, ["python3", "{dir}/server.py", "{port}"],
            [sh("for i in 1 2 3; do nc -w 20 {server} {port} < /dev/null > out; printf 'of the child\\nend' | cmp - out; done")],
            prepare=python(SUBPROCESS)),
    Program("go-static", ["go", "ab"], 8080, ["{dir}/server", "{port}"],
            [*http(), [sys.executable, "-c", ECHO_TCP, "{server}", "7008", "20"]], prepare=go(False)),
    Program("go-cgo", ["go", "ab", "cc"], 8080, ["{dir}/server", "{port}"],
            [*http(), [sys.executable, "-c", ECHO_TCP, "{server}", "7008", "20"]], prepare=go(True)),
    Program("io_uring", ["cc", "/usr/include/liburing.h"], 7007, ["{dir}/server", "{port}"], [echo_tcp], prepare=uring),
    Program("iperf3", ["iperf3"], 5201, ["iperf3", "-s", "-p", "{port}"],
            [sh("iperf3 -c {server} -p {port} -t 1 -P 3"), sh("iperf3 -c {server} -p {port} -t 1 -R"),
             sh("iperf3 -c {server} -p {port} -t 1 -u -b 5M -l 1200")]),
]
