"""Servers of messages, logs, names and times, each with a client of its own."""

import os
import shutil
import subprocess
import sys

from .clients import http
from .program import Program, sh, site, write


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


def icecast(directory, values):
    os.chmod(directory, 0o777)
    write(directory, "ice.xml", f"""<icecast><limits><sources>5</sources></limits><authentication><source-password>s</source-password>
<admin-user>a</admin-user><admin-password>a</admin-password></authentication><hostname>h</hostname>
<listen-socket><port>{values['port']}</port></listen-socket><paths><basedir>{directory}</basedir><logdir>{directory}</logdir>
<webroot>{directory}/site</webroot><adminroot>{directory}/site</adminroot></paths>
<logging><errorlog>error.log</errorlog></logging><security><chroot>0</chroot><changeowner><user>nobody</user><group>nogroup</group></changeowner></security></icecast>""")
    site(directory, values)


PROGRAMS = [
    Program("mosquitto", ["mosquitto", "mosquitto_sub"], 1883, ["mosquitto", "-c", "{dir}/m.conf"], [sh(MQTT)],
            prepare=lambda directory, values: write(directory, "m.conf", f"listener {values['port']} 0.0.0.0\nallow_anonymous true\nuser root\n") and None),
    Program("beanstalkd", ["beanstalkd"], 11300, ["beanstalkd", "-l", "0.0.0.0", "-p", "{port}"], [[sys.executable, "-c", BEANSTALK, "{server}", "{port}"]]),
    Program("gearmand", ["gearmand", "gearman"], 4730, ["gearmand", "-L", "0.0.0.0", "-p", "{port}", "-l", "stderr"],
            [sh("timeout 60 gearman -h {server} -p {port} -w -f f -- wc -c & w=$!; trap 'kill $w' EXIT; sleep 0.5; "
                "for i in 1 2 3 4 5; do head -c 100000 /dev/zero | timeout 60 gearman -h {server} -p {port} -f f | grep -q 100000; done")]),
    Program("nats", ["nats-server"], 4222, ["nats-server", "-a", "0.0.0.0", "-p", "{port}"], [[sys.executable, "-c", NATS, "{server}", "{port}"]]),
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
    Program("icecast", ["icecast2"], 8000, ["icecast2", "-c", "{dir}/ice.xml"], http("/index.html", 60, 8)[:1], prepare=icecast),
]
