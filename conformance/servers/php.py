"""PHP and application servers, each with a client of its own."""

import sys

from .clients import http
from .program import Program, sh, write


def php(listen, manager):
    def prepare(directory, values):
        write(directory, "index.php", "<?php echo 'hello '; echo str_repeat('x', 50000);")
        write(directory, "fpm.conf", f"""
[global]
error_log = /dev/stderr
daemonize = no
pid = {directory}/fpm.pid
[www]
user = root
listen = {listen.format(dir=directory)}
pm = {manager}
pm.max_children = 4
pm.start_servers = 2
pm.min_spare_servers = 1
pm.max_spare_servers = 3
""")
        upstream = "unix:" + listen.format(dir=directory) if "{dir}" in listen else f"{values['server']}:9001"
        write(directory, "nginx.conf", f"""
user root; worker_processes 2; daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log; events {{ }}
http {{ access_log off; fastcgi_temp_path {directory}/f;
server {{ listen {values['port']}; location / {{ fastcgi_pass {upstream}; fastcgi_param SCRIPT_FILENAME {directory}/index.php;
fastcgi_param REQUEST_METHOD GET; fastcgi_param QUERY_STRING ""; }} }} }}
""")
    return prepare


# Two servers of one program: PHP beside nginx, as in a container.
PHP_AND_NGINX = sh("php-fpm8.2 -R -y {dir}/fpm.conf & p=$!; nginx -c {dir}/nginx.conf & n=$!; trap 'kill $p $n' TERM; wait $n; wait $p")


# A FastCGI client without nginx: PHP's own listener on the NIC.
FASTCGI = """
import socket, struct, sys
def record(kind, body): return struct.pack("!BBHHBB", 1, kind, 1, len(body), 0, 0) + body
def ask():
    names = {{"SCRIPT_FILENAME": sys.argv[3] + "/index.php", "REQUEST_METHOD": "GET", "QUERY_STRING": ""}}
    pairs = b"".join(bytes([len(k), len(v)]) + k.encode() + v.encode() for k, v in names.items())
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as one:
        one.sendall(record(1, struct.pack("!HB5x", 1, 0)) + record(4, pairs) + record(4, b"") + record(5, b""))
        got = b""
        while more := one.recv(65536):
            got += more
    assert got.count(b"x") >= 50000, got[:200]
for turn in range(30):
    ask()
"""


def uwsgi(directory, values):
    write(directory, "app.py", "def application(environ, start):\n    start('200 OK', [('Content-Length', '5')])\n    return [b'hello']\n")


PROGRAMS = [
    Program("php-fpm", ["php-fpm8.2"], 9001, ["php-fpm8.2", "-R", "-F", "-y", "{dir}/fpm.conf"], [[sys.executable, "-c", FASTCGI, "{server}", "{port}", "{dir}"]],
            prepare=php("0.0.0.0:9001", "dynamic")),
    Program("php-fpm-ondemand", ["php-fpm8.2"], 9001, ["php-fpm8.2", "-R", "-F", "-y", "{dir}/fpm.conf"],
            [[sys.executable, "-c", FASTCGI, "{server}", "{port}", "{dir}"]], prepare=php("0.0.0.0:9001", "ondemand")),
    Program("php-and-nginx", ["php-fpm8.2", "nginx", "ab"], 8080, PHP_AND_NGINX, http(), prepare=php("{dir}/php.sock", "static")),
    Program("php-and-nginx-tcp", ["php-fpm8.2", "nginx", "ab"], 8080, PHP_AND_NGINX, http(), prepare=php("0.0.0.0:9001", "static")),
    Program("php-cli", ["php"], 8080, ["php", "-S", "0.0.0.0:{port}", "-t", "{dir}"], http("/index.php")[:2], prepare=php("0.0.0.0:9001", "static")),
    Program("php-cli-workers", ["php"], 8080, ["php", "-S", "0.0.0.0:{port}", "-t", "{dir}"], http("/index.php")[:2], prepare=php("0.0.0.0:9001", "static"),
            env={"PHP_CLI_SERVER_WORKERS": "3"}),
    Program("uwsgi", ["uwsgi", "ab"], 8080, ["uwsgi", "--plugin", "python3", "--http-socket", "0.0.0.0:{port}", "--wsgi-file", "{dir}/app.py", "--master",
            "--processes", "3", "--die-on-term"], http()[:2], prepare=uwsgi),
    Program("uwsgi-threads", ["uwsgi", "ab"], 8080, ["uwsgi", "--plugin", "http,python3", "--http", "0.0.0.0:{port}", "--wsgi-file", "{dir}/app.py", "--master",
            "--processes", "2", "--threads", "2", "--die-on-term"], http()[:2], prepare=uwsgi),
]
