"""Servers of the domain name system."""

from .program import Program, sh, write


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


PROGRAMS = [
    Program("bind9", ["named", "dig", "dnsperf"], 5300, ["named", "-g", "-n", "2", "-c", "{dir}/named.conf"], DNS, prepare=named),
    Program("unbound", ["unbound", "dig", "dnsperf"], 5300, ["unbound", "-d", "-c", "{dir}/unbound.conf"], DNS, prepare=unbound),
    Program("knot", ["knotd", "dig", "dnsperf"], 5300, ["knotd", "-c", "{dir}/knot.conf"], DNS, prepare=knot),
    Program("dnsmasq", ["dnsmasq", "dig"], 5300,
            ["dnsmasq", "-k", "-p", "{port}", "-C", "/dev/null", "-u", "root", "--no-resolv", "--no-hosts", "--address=/www.example/192.0.2.2",
             "--address=/ns.example/192.0.2.1", "--pid-file={dir}/pid"], [DNS[0], DNS[3]], prepare=dnsmasq),
]
