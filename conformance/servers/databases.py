"""Databases and directories, each with a client of its own."""

import os
import shutil
import subprocess
import sys

from .program import Program, sh, write


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


PROGRAMS = [
    Program("mariadb", ["mariadbd", "mariadb-slap"], 3306, ["mariadbd", "--no-defaults", "--user=mysql", "--datadir={dir}/data", "--port={port}", "--socket={dir}/s",
            "--init-file={dir}/init.sql", "--bind-address=0.0.0.0", "--skip-name-resolve", "--pid-file={dir}/pid"], [sh(MARIADB)], prepare=mariadb),
    Program("mariadb-pool", ["mariadbd", "mariadb-slap"], 3306, ["mariadbd", "--no-defaults", "--user=mysql", "--datadir={dir}/data", "--port={port}", "--socket={dir}/s",
            "--init-file={dir}/init.sql", "--skip-name-resolve", "--pid-file={dir}/pid", "--thread-handling=pool-of-threads"], [sh(MARIADB)], prepare=mariadb),
    Program("slapd", ["slapd", "ldapadd"], 3389, ["slapd", "-d", "0", "-h", "ldap://0.0.0.0:{port}/", "-f", "{dir}/slapd.conf"], [sh(LDAP)], prepare=slapd),
    Program("redis-cluster", ["redis-server", "redis-cli"], 7009, ["sh", "{dir}/start"], [sh(REDIS_CLUSTER)], prepare=redis_cluster),
    Program("redis-bgsave", ["redis-server", "redis-benchmark"], 6379, ["redis-server", "--port", "{port}", "--protected-mode", "no", "--dir", "{dir}", "--io-threads", "2"], [sh(REDIS_SAVE)]),
    Program("redis-replica", ["redis-server", "redis-cli"], 6379, ["redis-server", "--port", "{port}", "--protected-mode", "no", "--dir", "{dir}", "--save", ""], [sh(REDIS_REPLICA)]),
    Program("memcached-udp", ["memcached"], 11211, ["memcached", "-u", "nobody", "-p", "{port}", "-U", "{port}", "-t", "2"], [[sys.executable, "-c", MEMCACHED_UDP, "{server}", "{port}"]]),
    Program("tarantool", ["tarantool"], 3301, ["tarantool", "{dir}/app.lua"],
            [sh("for i in 1 2 3; do echo 'return 40+2' | timeout 60 tarantool -e \"c=require('net.box').connect('{server}:{port}'); print(c:eval('return 40+2')); os.exit(0)\" | grep -q 42; done")], prepare=tarantool),
    Program("influxdb", ["influxd"], 8086, ["influxd"],
            [sh("curl -sSf -XPOST http://{server}:{port}/query --data-urlencode 'q=CREATE DATABASE d' > /dev/null; for i in $(seq 50); do curl -sSf -XPOST http://{server}:{port}/write?db=d --data-binary \"m v=$i $i\"; done; "
                "curl -sSfG http://{server}:{port}/query --data-urlencode db=d --data-urlencode 'q=select count(v) from m' | grep -q 50")], env={"HOME": "{dir}", "INFLUXDB_DATA_DIR": "{dir}/d", "INFLUXDB_META_DIR": "{dir}/m", "INFLUXDB_DATA_WAL_DIR": "{dir}/w", "INFLUXDB_BIND_ADDRESS": "127.0.0.1:8088"}),
    Program("etcd", ["etcd", "curl"], 2379, ["etcd", "--data-dir", "{dir}/e", "--listen-client-urls", "http://0.0.0.0:{port}", "--advertise-client-urls", "http://{server}:{port}"],
            [sh("for i in 1 2 3 4 5; do curl -sSf http://{server}:{port}/v3/kv/put -d '{{\"key\":\"Zm9v\",\"value\":\"YmFy\"}}' > /dev/null; curl -sSf http://{server}:{port}/v3/kv/range -d '{{\"key\":\"Zm9v\"}}' | grep -q YmFy; done")]),
]
