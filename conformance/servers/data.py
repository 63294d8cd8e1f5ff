"""Caches and databases."""

import os
import shutil
import subprocess

from .program import Program, sh


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


PROGRAMS = [
    Program("memcached", ["memcached"], 11211, ["memcached", "-u", "nobody", "-p", "{port}", "-t", "2"],
            [sh("memccapable -h {server} -p {port} | grep -q 'All tests passed'")]),
    Program("redis", ["redis-server", "redis-benchmark"], 6379,
            ["redis-server", "--port", "{port}", "--protected-mode", "no", "--save", "", "--dir", "{dir}"],
            [sh("redis-benchmark -h {server} -p {port} -q -n 2000 -c 20 > out; ! grep -q ERR out")]),
    Program("postgresql", ["/usr/lib/postgresql", "pgbench"], 5432,
            ["{bin}/postgres", "-D", "{data}", "-p", "{port}", "-c", "listen_addresses=*", "-k", "{dir}"], [sh(PGBENCH)],
            prepare=postgres, user="postgres"),
]
