"""Other web servers, and reloads under load, each with a client of its own."""

import os
import sys

from .clients import http
from .program import Program, certificate, sh, site, write


def lighttpd(directory, values):
    site(directory, values)
    write(directory, "lighttpd.conf", f'server.document-root = "{directory}/site"\nserver.port = {values["port"]}\n'
          f'server.modules = ("mod_cgi")\ncgi.assign = (".sh" => "/bin/sh")\nserver.errorlog = "/dev/stderr"\n')
    write(os.path.join(directory, "site"), "one.sh", "printf 'Content-Type: text/plain\\r\\n\\r\\nhello from a child'\n")


def h2o(directory, values):
    site(directory, values)
    certificate(directory)
    write(directory, "h2o.conf", f"""
listen: {values['port']}
listen:
  port: 8443
  ssl:
    certificate-file: {directory}/cert.pem
    key-file: {directory}/key.pem
num-threads: 2
hosts:
  default:
    paths:
      /:
        file.dir: {directory}/site
""")


def caddy(directory, values):
    site(directory, values)


RELOAD = """
import http.client, os, signal, subprocess, sys, threading, time
server, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
failed, answered, is_over = [], [0], threading.Event()
def load():
    # One request for each connection: a server that reloads may close an idle one at any time.
    while not is_over.is_set():
        try:
            one = http.client.HTTPConnection(server, port, timeout=60)
            one.request("GET", path, headers={{"Connection": "close"}})
            answer = one.getresponse()
            assert answer.status == 200 and b"hello" in answer.read()
            answered[0] += 1
            one.close()
        except Exception as error:
            failed.append(repr(error))
threads = [threading.Thread(target=load) for _ in range(4)]
for one in threads: one.start()
for turn in range(4):
    time.sleep(0.7)
    os.kill(int(open(sys.argv[4]).read()), signal.Signals[sys.argv[5]])
time.sleep(0.7)
is_over.set()
for one in threads: one.join()
print(answered, failed[:5])
sys.exit(bool(failed) or answered[0] < 100)
"""


def reload(pid, sign, path="/index.html"):
    return [sys.executable, "-c", RELOAD, "{server}", "{port}", path, pid, sign]


def nginx(directory, values):
    site(directory, values)
    certificate(directory)
    write(directory, "nginx.conf", f"""
user root; worker_processes 2; daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log; events {{ }}
http {{ access_log off; server {{ listen {values['port']}; listen 8443 ssl http2; root {directory}/site;
ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem; }} }}
""")


def haproxy_master(directory, values):
    write(directory, "haproxy.cfg", f"""
global
    nbthread 2
    pidfile {directory}/pid
    stats socket {directory}/stats mode 600 level admin expose-fd listeners
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 60s
frontend f
    bind 0.0.0.0:{values['port']}
    http-request return status 200 content-type text/plain string "hello"
""")


PROGRAMS = [
    Program("lighttpd", ["lighttpd", "ab"], 8080, ["lighttpd", "-D", "-f", "{dir}/lighttpd.conf"],
            [*http("/index.html"), sh("for i in 1 2 3 4; do curl -sSf --max-time 60 http://{server}:{port}/one.sh | grep -q 'hello from a child'; done")], prepare=lighttpd),
    Program("h2o", ["h2o", "ab"], 8080, ["h2o", "-c", "{dir}/h2o.conf"],
            [*http("/index.html"), sh("for i in 1 2 3; do curl -ksSf --http2 https://{server}:8443/index.html | wc -c | grep -q 200006; done")], prepare=h2o),
    Program("caddy", ["caddy", "ab"], 8080, ["caddy", "file-server", "--listen", ":{port}", "--root", "{dir}/site"], http("/index.html"), prepare=caddy,
            env={"HOME": "{dir}", "XDG_CONFIG_HOME": "{dir}", "XDG_DATA_HOME": "{dir}"}),
    Program("nghttpd", ["nghttpd", "h2load"], 8080, ["nghttpd", "--no-tls", "-d", "{dir}/site", "{port}"],
            [sh("h2load -n 200 -c 8 -m 4 http://{server}:{port}/index.html | grep -q '200 succeeded, 0 failed'")], prepare=site),
    Program("nginx-reload", ["nginx", "openssl"], 8080, ["nginx", "-c", "{dir}/nginx.conf"], [reload("{dir}/nginx.pid", "SIGHUP")], prepare=nginx),
    Program("haproxy-reload", ["haproxy"], 8080, ["haproxy", "-W", "-db", "-p", "{dir}/pid", "-f", "{dir}/haproxy.cfg"], [reload("{dir}/pid", "SIGUSR2", "/")], prepare=haproxy_master),
]
