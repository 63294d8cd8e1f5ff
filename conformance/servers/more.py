"""Databases, queues, proxies and other servers, each with a client of its own."""

import os
import shutil
import subprocess
import sys

from .clients import http
from .program import Program, certificate, sh, site, write


def owned(directory, name, user):
    path = os.path.join(directory, name)
    os.makedirs(path, exist_ok=True)
    shutil.chown(path, user)
    os.chmod(directory, 0o777)
    return path


def mariadb(directory, values):
    owned(directory, "data", "mysql")
    subprocess.run(["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={directory}/data", "--auth-root-authentication-method=normal",
                    "--skip-test-db"], check=True, capture_output=True)
    write(directory, "init.sql", "CREATE USER 't'@'%' IDENTIFIED BY 's';\nGRANT ALL ON *.* TO 't'@'%';\nCREATE DATABASE d;\n")


MARIADB = """
m="mariadb --no-defaults -h {server} -P {port} -u t -ps d"
$m -e "create table a (i int primary key, t longtext)"
for i in 1 2 3 4 5; do echo "insert into a values ($i, repeat('x', 300000));" | $m; done
[ "$($m -N -e 'select sum(length(t)) from a')" = 1500000 ]
[ "$($m -N -e 'select t from a' | wc -c)" = 1500005 ]
mariadb-slap --no-defaults -h {server} -P {port} -u t -ps --concurrency=10 --iterations=2 --auto-generate-sql --number-of-queries=300 > slap.out 2>&1
"""

# Each of 10 subscribers gets each of 100 messages.
MQTT = """
for i in 1 2 3 4 5 6 7 8 9 10; do timeout 60 mosquitto_sub -h {server} -p {port} -q 1 -t t -C 100 > sub.$i & done
sleep 1.5
seq 100 > sent; mosquitto_pub -h {server} -p {port} -q 1 -t t -l < sent
wait
for i in 1 2 3 4 5 6 7 8 9 10; do cmp sent sub.$i; done
"""

BEANSTALK = """
import socket, sys
peers = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) for _ in range(8)]
streams = [one.makefile("rwb") for one in peers]
for turn in range(50):
    for one in streams:
        one.write(b"put 1 0 60 60000\\r\\n" + b"x" * 60000 + b"\\r\\n"); one.flush()
        assert one.readline().startswith(b"INSERTED")
    for one in streams:
        one.write(b"reserve\\r\\n"); one.flush()
        word, number, length = one.readline().split()
        assert word == b"RESERVED" and len(one.read(int(length) + 2)) == 60002
        one.write(b"delete " + number + b"\\r\\n"); one.flush()
        assert one.readline() == b"DELETED\\r\\n"
"""

NATS = """
import socket, sys
def connect():
    one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60).makefile("rwb")
    assert one.readline().startswith(b"INFO")
    one.write(b'CONNECT {{"verbose":false}}\\r\\nPING\\r\\n'); one.flush()
    while one.readline() != b"PONG\\r\\n": pass
    return one
a, b = connect(), connect()
a.write(b"SUB t 1\\r\\nPING\\r\\n"); a.flush()
assert a.readline() == b"PONG\\r\\n"
for turn in range(100):
    b.write(b"PUB t 5000\\r\\n" + b"x" * 5000 + b"\\r\\n"); b.flush()
    assert a.readline() == b"MSG t 1 5000\\r\\n" and len(a.read(5002)) == 5002
"""


def slapd(directory, values):
    owned(directory, "db", "root")
    write(directory, "slapd.conf", f"""
include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {directory}/pid
database mdb
suffix dc=test
rootdn cn=root,dc=test
rootpw secret
directory {directory}/db
""")
    entries = "".join(f"\ndn: ou=u{i},dc=test\nobjectClass: organizationalUnit\nou: u{i}\ndescription: {'y' * 500}\n" for i in range(300))
    write(directory, "all.ldif", "dn: dc=test\nobjectClass: dcObject\nobjectClass: organization\no: test\ndc: test\n" + entries)


LDAP = """
ldapadd -x -H ldap://{server}:{port} -D cn=root,dc=test -w secret -f all.ldif > add.out
for i in 1 2 3 4 5; do [ "$(ldapsearch -x -LLL -H ldap://{server}:{port} -b dc=test '(ou=u*)' ou | grep -c ^dn)" = 300 ]; done
"""


def backend(script):
    """Returns a client that serves a page itself, which the proxy asks for."""
    return sh("mkdir -p page; cp site/index.html page/; (cd page; exec python3 -m http.server --bind {client} 9000 > /dev/null 2>&1) & b=$!; "
              "trap 'kill $b' EXIT; for i in $(seq 50); do curl -s -o /dev/null http://{client}:9000/ && break; sleep 0.1; done; " + script)


THROUGH = "for i in 1 2 3 4 5 6 7 8; do curl -sSf --max-time 60 {0} | wc -c | grep -q 200006; done; "
PROXY = backend(THROUGH.format("-x http://{server}:{port} http://{client}:9000/index.html"))
REVERSE = backend(THROUGH.format("http://{server}:{port}/index.html") +
                  "ab -q -s 60 -n 60 -c 6 http://{server}:{port}/index.html | grep -q 'Failed requests: *0'")
REVERSE_TLS = backend(THROUGH.format("-k https://{server}:{port}/index.html") +
                      "ab -q -s 60 -n 60 -c 6 https://{server}:{port}/index.html | grep -q 'Failed requests: *0'")


def tinyproxy(directory, values):
    site(directory, values)
    write(directory, "tinyproxy.conf", f"Port {values['port']}\nListen 0.0.0.0\nTimeout 60\nMaxClients 50\nAllow 0.0.0.0/0\nLogFile \"{directory}/log\"\n")


def privoxy(directory, values):
    site(directory, values)
    write(directory, "privoxy.conf", f"listen-address 0.0.0.0:{values['port']}\nlogdir {directory}\n")


def stunnel(directory, values):
    site(directory, values)
    certificate(directory)
    write(directory, "stunnel.conf", f"foreground = yes\npid =\n[web]\naccept = 0.0.0.0:{values['port']}\nconnect = {values['client']}:9000\n"
          f"cert = {directory}/cert.pem\nkey = {directory}/key.pem\n")


def hitch(directory, values):
    site(directory, values)
    certificate(directory)
    with open(f"{directory}/both.pem", "w", encoding="utf-8") as file:
        for name in ("key.pem", "cert.pem"):
            file.write(open(f"{directory}/{name}", encoding="utf-8").read())
    write(directory, "hitch.conf", f'frontend = "[*]:{values["port"]}"\nbackend = "[{values["client"]}]:9000"\npem-file = "{directory}/both.pem"\n'
          'workers = 2\ndaemon = off\nuser = "root"\n')


def haproxy_tcp(directory, values):
    site(directory, values)
    write(directory, "haproxy.cfg", f"""
global
    nbthread 2
defaults
    mode tcp
    timeout client 60s
    timeout server 60s
    timeout connect 60s
listen f
    bind 0.0.0.0:{values['port']}
    server one {values['client']}:9000
""")


def nginx_proxy(directory, values):
    site(directory, values)
    write(directory, "nginx.conf", f"""
user root; worker_processes 2; daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log; events {{ }}
http {{ access_log off; client_body_temp_path {directory}/b; proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u;
scgi_temp_path {directory}/s;
server {{ listen {values['port']}; location / {{ proxy_pass http://{values['client']}:9000; }} }} }}
""")


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


def rsyslog(directory, values):
    write(directory, "rsyslog.conf", f"""
module(load="imudp") module(load="imtcp")
input(type="imudp" port="{values['port']}") input(type="imtcp" port="{values['port']}")
*.* action(type="omfile" file="{directory}/out")
""")


SYSLOG = """
import socket, sys, time
one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
two = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(500):
    one.sendall(b"<13>Nov 22 10:00:00 host prog: tcp %d\\n" % number)
    two.sendto(b"<13>Nov 22 10:00:00 host prog: udp %d" % number, (sys.argv[1], int(sys.argv[2])))
    time.sleep(0.001)
one.close()
for turn in range(100):
    time.sleep(0.1)
    text = open(sys.argv[3]).read()
    if text.count("tcp") == 500 and text.count("udp") == 500:
        sys.exit(0)
sys.exit(f"tcp {{text.count('tcp')}} udp {{text.count('udp')}}")
"""


def freeradius(directory, values):
    shutil.copytree("/etc/freeradius/3.0", f"{directory}/raddb", symlinks=True)
    subprocess.run(["chmod", "-R", "a+rX", f"{directory}/raddb"], check=True)
    for name in ("sites-enabled/inner-tunnel", "sites-enabled/default", "mods-enabled/eap"):
        try:
            os.unlink(f"{directory}/raddb/{name}")
        except FileNotFoundError:
            pass
    write(f"{directory}/raddb", "clients.conf", "client all {\n ipaddr = 0.0.0.0/0\n secret = testing123\n}\n")
    write(f"{directory}/raddb/sites-enabled", "one", f"""
server one {{
listen {{
 type = auth
 ipaddr = *
 port = {values['port']}
}}
authorize {{
 update control {{
  Cleartext-Password := "secret"
 }}
 pap
}}
authenticate {{
 Auth-Type PAP {{
  pap
 }}
}}
}}
""")


RADIUS = sh("for i in 1 2 3 4 5; do echo 'User-Name=bob,User-Password=secret' | radclient -t 20 -r 1 {server}:{port} auth testing123 | grep -q Access-Accept; done")


def snmpd(directory, values):
    write(directory, "snmpd.conf", f"agentAddress udp:{values['port']},tcp:{values['port']}\nrocommunity public\n")


SNMP = sh("for i in 1 2 3; do snmpwalk -v2c -c public -t 20 -r 0 {server}:{port} 1.3.6.1.2.1.1 | grep -c iso | grep -qv '^0$'; done; "
          "snmpget -v2c -c public -t 20 -r 0 tcp:{server}:{port} 1.3.6.1.2.1.1.5.0 | grep -q STRING")


def pdns(directory, values):
    write(directory, "example.zone", "$TTL 60\n@ IN SOA ns.example. root.example. (1 60 60 60 60)\n@ IN NS ns\nns IN A 192.0.2.1\nwww IN A 192.0.2.2\n")
    write(directory, "bind.conf", f'zone "example" {{ type master; file "{directory}/example.zone"; }};\n')
    write(directory, "pdns.conf", f"launch=bind\nbind-config={directory}/bind.conf\nlocal-port={values['port']}\nlocal-address=0.0.0.0\nsocket-dir={directory}\n"
          "guardian=no\ndaemon=no\nreceiver-threads=2\nsecurity-poll-suffix=\n")
    write(directory, "queries", "www.example A\n" * 100 + "ns.example A\n")


def nsd(directory, values):
    write(directory, "example.zone", "$TTL 60\n@ IN SOA ns.example. root.example. (1 60 60 60 60)\n@ IN NS ns\nns IN A 192.0.2.1\nwww IN A 192.0.2.2\n")
    write(directory, "nsd.conf", f"""
server:
  ip-address: 0.0.0.0
  port: {values['port']}
  server-count: 2
  reuseport: {values.get('reuseport', 'no')}
  username: ""
  rrl-ratelimit: 0
  rrl-whitelist-ratelimit: 0
  pidfile: "{directory}/pid"
  database: ""
  zonesdir: "{directory}"
  zonelistfile: "{directory}/zl"
  xfrdfile: "{directory}/xfrd"
  xfrdir: "{directory}"
remote-control:
  control-enable: no
zone:
  name: example
  zonefile: example.zone
""")
    write(directory, "queries", "www.example A\n" * 100 + "ns.example A\n")


DNS = [
    sh("for i in 1 2 3 4 5; do dig +time=20 +tries=1 @{server} -p {port} www.example A +short | grep -q 192.0.2.2; done"),
    sh("for i in 1 2 3; do dig +tcp +time=20 +tries=1 @{server} -p {port} www.example A +short | grep -q 192.0.2.2; done"),
    sh("dnsperf -s {server} -p {port} -d queries -l 2 -c 8 -T 2 -Q 2000 > perf.out 2>&1; grep -q 'Queries lost: *0 ' perf.out || {{ cat perf.out; exit 1; }}"),
]


def chrony(directory, values):
    write(directory, "chrony.conf", f"local stratum 1\nallow all\nport {values['port']}\ncmdport 0\nbindcmdaddress /\npidfile {directory}/pid\nuser root\n")


NTP = """
import socket, sys
for turn in range(20):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(20)
        one.sendto(bytes([0x23]) + bytes(47), (sys.argv[1], int(sys.argv[2])))
        data, _ = one.recvfrom(1000)
        assert len(data) >= 48 and data[0] & 7 == 4, data
"""

STUN = """
import os, socket, sys
for turn in range(20):
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as one:
            one.settimeout(20)
            one.connect((sys.argv[1], int(sys.argv[2])))
            name = os.urandom(12)
            one.send(bytes.fromhex("000100002112a442") + name)
            data = one.recv(1000)
            assert data[:2] == bytes.fromhex("0101") and data[8:20] == name
"""

IRC = """
import socket, sys
def join(name):
    one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60).makefile("rwb")
    one.write(f"NICK {{name}}\\r\\nUSER {{name}} 0 * :n\\r\\nJOIN #c\\r\\n".encode()); one.flush()
    while line := one.readline():
        if line.startswith(b"PING"):
            one.write(line.replace(b"PING", b"PONG")); one.flush()
        if b" 366 " in line:
            return one
    raise SystemExit("closed")
a, b = join("aa"), join("bb")
for turn in range(50):
    b.write(b"PRIVMSG #c :text %d\\r\\n" % turn); b.flush()
    while True:
        line = a.readline()
        assert line
        if b"PRIVMSG" in line:
            break
    assert line.endswith(b"text %d\\r\\n" % turn)
"""


def ngircd(directory, values):
    write(directory, "ngircd.conf", f"[Global]\nName = irc.test.example\nInfo = x\nPorts = {values['port']}\nServerUID = root\nServerGID = root\nMotdPhrase = hi\n"
          "[Limits]\nMaxConnectionsIP = 0\nMaxPenaltyTime = 0\n[Options]\nPAM = no\nIdent = no\nDNS = no\n")


def redis_cluster(directory, values):
    write(directory, "start", "".join(
        f"mkdir -p {directory}/{port}; (cd {directory}/{port}; exec redis-server --port {port} --cluster-enabled yes --protected-mode no --save '' "
        f"--cluster-announce-ip {values['server']} --bind 0.0.0.0 >> log 2>&1) & " for port in (7007, 7008, 7009)) + "trap 'kill $(jobs -p)' TERM; wait; wait\n")


REDIS_CLUSTER = """
sleep 1
redis-cli --cluster create {server}:7007 {server}:7008 {server}:7009 --cluster-yes > create.out || {{ cat create.out; exit 1; }}
for i in $(seq 30); do redis-cli -h {server} -p 7007 cluster info | grep -q cluster_state:ok && break; sleep 0.5; done
redis-cli -h {server} -p 7007 cluster info | grep -q cluster_state:ok
for i in $(seq 60); do redis-cli -c -h {server} -p 7007 set k$i v$i | grep -q OK; done
for i in $(seq 60); do [ "$(redis-cli -c -h {server} -p 7008 get k$i)" = v$i ]; done
"""

REDIS_SAVE = """
redis-benchmark -h {server} -p {port} -q -n 4000 -c 20 -t set,get -d 5000 > out & b=$!
for i in 1 2 3 4 5; do redis-cli -h {server} -p {port} bgsave > /dev/null || true; sleep 0.4; done
wait $b; ! grep -qi err out; redis-cli -h {server} -p {port} ping | grep -q PONG
"""

REDIS_REPLICA = """
redis-cli -h {server} -p {port} debug populate 20000 key 100 > /dev/null || for i in $(seq 2000); do echo "set key:$i $i"; done | redis-cli -h {server} -p {port} > /dev/null
(redis-server --port 6380 --protected-mode no --save '' --bind {client} --replicaof {server} {port} > replica.log 2>&1) & r=$!; trap 'kill $r' EXIT
for i in $(seq 100); do redis-cli -h {client} -p 6380 info replication 2> /dev/null | grep -q master_link_status:up && break; sleep 0.2; done
a=$(redis-cli -h {server} -p {port} dbsize); b=$(redis-cli -h {client} -p 6380 dbsize); echo "$a $b"; [ "$a" = "$b" ]
"""

MEMCACHED_UDP = """
import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.settimeout(20); one.connect((sys.argv[1], int(sys.argv[2])))
def ask(number, text):
    one.send(number.to_bytes(2, "big") + bytes([0, 0, 0, 1, 0, 0]) + text)
    data = one.recv(65536)
    assert int.from_bytes(data[:2], "big") == number
    return data[8:]
for number in range(200):
    assert ask(number, b"set k%d 0 0 5\\r\\nhello\\r\\n" % number) == b"STORED\\r\\n"
    assert b"hello" in ask(number, b"get k%d\\r\\n" % number)
"""


def tarantool(directory, values):
    write(directory, "app.lua", f"""
box.cfg{{listen='0.0.0.0:{values['port']}', work_dir='{directory}', log='/dev/stderr'}}
box.schema.user.grant('guest', 'read,write,execute', 'universe', nil, {{if_not_exists=true}})
""")


def icecast(directory, values):
    os.chmod(directory, 0o777)
    write(directory, "ice.xml", f"""<icecast><limits><sources>5</sources></limits><authentication><source-password>s</source-password>
<admin-user>a</admin-user><admin-password>a</admin-password></authentication><hostname>h</hostname>
<listen-socket><port>{values['port']}</port></listen-socket><paths><basedir>{directory}</basedir><logdir>{directory}</logdir>
<webroot>{directory}/site</webroot><adminroot>{directory}/site</adminroot></paths>
<logging><errorlog>error.log</errorlog></logging><security><chroot>0</chroot><changeowner><user>nobody</user><group>nogroup</group></changeowner></security></icecast>""")
    site(directory, values)


def dante(directory, values):
    site(directory, values)
    write(directory, "sockd.conf", f"""
logoutput: stderr
internal: 0.0.0.0 port = {values['port']}
external: near0
socksmethod: none
clientmethod: none
user.privileged: root
user.unprivileged: root
client pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}
socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}
""")


PROGRAMS = [
    Program("mariadb", ["mariadbd", "mariadb-slap"], 3306, ["mariadbd", "--no-defaults", "--user=mysql", "--datadir={dir}/data", "--port={port}", "--socket={dir}/s",
            "--init-file={dir}/init.sql", "--bind-address=0.0.0.0", "--skip-name-resolve", "--pid-file={dir}/pid"], [sh(MARIADB)], prepare=mariadb),
    Program("mariadb-pool", ["mariadbd", "mariadb-slap"], 3306, ["mariadbd", "--no-defaults", "--user=mysql", "--datadir={dir}/data", "--port={port}", "--socket={dir}/s",
            "--init-file={dir}/init.sql", "--skip-name-resolve", "--pid-file={dir}/pid", "--thread-handling=pool-of-threads"], [sh(MARIADB)], prepare=mariadb),
    Program("mosquitto", ["mosquitto", "mosquitto_sub"], 1883, ["mosquitto", "-c", "{dir}/m.conf"], [sh(MQTT)],
            prepare=lambda directory, values: write(directory, "m.conf", f"listener {values['port']} 0.0.0.0\nallow_anonymous true\nuser root\n") and None),
    Program("beanstalkd", ["beanstalkd"], 11300, ["beanstalkd", "-l", "0.0.0.0", "-p", "{port}"], [[sys.executable, "-c", BEANSTALK, "{server}", "{port}"]]),
    Program("gearmand", ["gearmand", "gearman"], 4730, ["gearmand", "-L", "0.0.0.0", "-p", "{port}", "-l", "stderr"],
            [sh("timeout 60 gearman -h {server} -p {port} -w -f f -- wc -c & w=$!; trap 'kill $w' EXIT; sleep 0.5; "
                "for i in 1 2 3 4 5; do head -c 100000 /dev/zero | timeout 60 gearman -h {server} -p {port} -f f | grep -q 100000; done")]),
    Program("nats", ["nats-server"], 4222, ["nats-server", "-a", "0.0.0.0", "-p", "{port}"], [[sys.executable, "-c", NATS, "{server}", "{port}"]]),
    Program("slapd", ["slapd", "ldapadd"], 3389, ["slapd", "-d", "0", "-h", "ldap://0.0.0.0:{port}/", "-f", "{dir}/slapd.conf"], [sh(LDAP)], prepare=slapd),
    Program("tinyproxy", ["tinyproxy"], 8888, ["tinyproxy", "-d", "-c", "{dir}/tinyproxy.conf"], [PROXY], prepare=tinyproxy),
    Program("privoxy", ["privoxy"], 8118, ["privoxy", "--no-daemon", "{dir}/privoxy.conf"], [PROXY], prepare=privoxy),
    Program("stunnel", ["stunnel4"], 8443, ["stunnel4", "{dir}/stunnel.conf"], [REVERSE_TLS], prepare=stunnel),
    Program("hitch", ["hitch"], 8443, ["hitch", "--config={dir}/hitch.conf"], [REVERSE_TLS], prepare=hitch),
    Program("haproxy-tcp", ["haproxy"], 8080, ["haproxy", "-db", "-f", "{dir}/haproxy.cfg"], [REVERSE], prepare=haproxy_tcp),
    Program("nginx-proxy", ["nginx"], 8080, ["nginx", "-c", "{dir}/nginx.conf"], [REVERSE], prepare=nginx_proxy),
    Program("lighttpd", ["lighttpd", "ab"], 8080, ["lighttpd", "-D", "-f", "{dir}/lighttpd.conf"],
            [*http("/index.html"), sh("for i in 1 2 3 4; do curl -sSf --max-time 60 http://{server}:{port}/one.sh | grep -q 'hello from a child'; done")], prepare=lighttpd),
    Program("h2o", ["h2o", "ab"], 8080, ["h2o", "-c", "{dir}/h2o.conf"],
            [*http("/index.html"), sh("for i in 1 2 3; do curl -ksSf --http2 https://{server}:8443/index.html | wc -c | grep -q 200006; done")], prepare=h2o),
    Program("caddy", ["caddy", "ab"], 8080, ["caddy", "file-server", "--listen", ":{port}", "--root", "{dir}/site"], http("/index.html"), prepare=caddy,
            env={"HOME": "{dir}", "XDG_CONFIG_HOME": "{dir}", "XDG_DATA_HOME": "{dir}"}),
    Program("nghttpd", ["nghttpd", "h2load"], 8080, ["nghttpd", "--no-tls", "-d", "{dir}/site", "{port}"],
            [sh("h2load -n 200 -c 8 -m 4 http://{server}:{port}/index.html | grep -q '200 succeeded, 0 failed'")], prepare=site),
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
    Program("nginx-reload", ["nginx", "openssl"], 8080, ["nginx", "-c", "{dir}/nginx.conf"], [reload("{dir}/nginx.pid", "SIGHUP")], prepare=nginx),
    Program("haproxy-reload", ["haproxy"], 8080, ["haproxy", "-W", "-db", "-p", "{dir}/pid", "-f", "{dir}/haproxy.cfg"], [reload("{dir}/pid", "SIGUSR2", "/")], prepare=haproxy_master),
    Program("rsyslog", ["rsyslogd"], 5140, ["rsyslogd", "-n", "-f", "{dir}/rsyslog.conf", "-i", "{dir}/pid"], [[sys.executable, "-c", SYSLOG, "{server}", "{port}", "{dir}/out"]], prepare=rsyslog),
    Program("freeradius", ["freeradius", "radclient"], 1812, ["freeradius", "-f", "-l", "stdout", "-d", "{dir}/raddb"], [RADIUS], prepare=freeradius, is_udp=True),
    Program("snmpd", ["snmpd", "snmpwalk"], 1161, ["snmpd", "-f", "-Lo", "-C", "-c", "{dir}/snmpd.conf"], [SNMP], prepare=snmpd, is_udp=True),
    Program("pdns", ["pdns_server", "dig"], 5300, ["pdns_server", "--config-dir={dir}"], DNS, prepare=pdns),
    Program("nsd", ["nsd", "dig"], 5300, ["nsd", "-d", "-c", "{dir}/nsd.conf"], DNS, prepare=nsd),
    Program("nsd-reuseport", ["nsd", "dig"], 5300, ["nsd", "-d", "-c", "{dir}/nsd.conf"], DNS, prepare=lambda directory, values: nsd(directory, {**values, "reuseport": "yes"})),
    Program("chrony", ["chronyd"], 1230, ["chronyd", "-x", "-d", "-f", "{dir}/chrony.conf"], [[sys.executable, "-c", NTP, "{server}", "{port}"]], prepare=chrony, is_udp=True),
    Program("coturn", ["turnserver"], 3478, ["turnserver", "-n", "-p", "{port}", "-L", "0.0.0.0", "--no-cli", "--log-file", "stdout", "--no-tls", "--no-dtls"],
            [[sys.executable, "-c", STUN, "{server}", "{port}"]]),
    Program("ngircd", ["ngircd"], 6667, ["ngircd", "-n", "-f", "{dir}/ngircd.conf"], [[sys.executable, "-c", IRC, "{server}", "{port}"]], prepare=ngircd),
    Program("redis-cluster", ["redis-server", "redis-cli"], 7009, ["sh", "{dir}/start"], [sh(REDIS_CLUSTER)], prepare=redis_cluster),
    Program("redis-bgsave", ["redis-server", "redis-benchmark"], 6379, ["redis-server", "--port", "{port}", "--protected-mode", "no", "--dir", "{dir}", "--io-threads", "2"], [sh(REDIS_SAVE)]),
    Program("redis-replica", ["redis-server", "redis-cli"], 6379, ["redis-server", "--port", "{port}", "--protected-mode", "no", "--dir", "{dir}", "--save", ""], [sh(REDIS_REPLICA)]),
    Program("memcached-udp", ["memcached"], 11211, ["memcached", "-u", "nobody", "-p", "{port}", "-U", "{port}", "-t", "2"], [[sys.executable, "-c", MEMCACHED_UDP, "{server}", "{port}"]]),
    Program("tarantool", ["tarantool"], 3301, ["tarantool", "{dir}/app.lua"],
            [sh("for i in 1 2 3; do echo 'return 40+2' | timeout 60 tarantool -e \"c=require('net.box').connect('{server}:{port}'); print(c:eval('return 40+2')); os.exit(0)\" | grep -q 42; done")], prepare=tarantool),
    Program("icecast", ["icecast2"], 8000, ["icecast2", "-c", "{dir}/ice.xml"], http("/index.html", 60, 8)[:1], prepare=icecast),
    Program("dante", ["danted"], 1080, ["danted", "-f", "{dir}/sockd.conf"], [backend(THROUGH.format("--socks5 {server}:{port} http://{client}:9000/index.html"))], prepare=dante),
    Program("influxdb", ["influxd"], 8086, ["influxd"],
            [sh("curl -sSf -XPOST http://{server}:{port}/query --data-urlencode 'q=CREATE DATABASE d' > /dev/null; for i in $(seq 50); do curl -sSf -XPOST http://{server}:{port}/write?db=d --data-binary \"m v=$i $i\"; done; "
                "curl -sSfG http://{server}:{port}/query --data-urlencode db=d --data-urlencode 'q=select count(v) from m' | grep -q 50")], env={"HOME": "{dir}", "INFLUXDB_DATA_DIR": "{dir}/d", "INFLUXDB_META_DIR": "{dir}/m", "INFLUXDB_DATA_WAL_DIR": "{dir}/w", "INFLUXDB_BIND_ADDRESS": "127.0.0.1:8088"}),
    Program("etcd", ["etcd", "curl"], 2379, ["etcd", "--data-dir", "{dir}/e", "--listen-client-urls", "http://0.0.0.0:{port}", "--advertise-client-urls", "http://{server}:{port}"],
            [sh("for i in 1 2 3 4 5; do curl -sSf http://{server}:{port}/v3/kv/put -d '{{\"key\":\"Zm9v\",\"value\":\"YmFy\"}}' > /dev/null; curl -sSf http://{server}:{port}/v3/kv/range -d '{{\"key\":\"Zm9v\"}}' | grep -q YmFy; done")]),
]
