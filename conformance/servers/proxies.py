"""Proxies, each with a client of its own."""

from .program import Program, certificate, sh, site, write


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
    Program("tinyproxy", ["tinyproxy"], 8888, ["tinyproxy", "-d", "-c", "{dir}/tinyproxy.conf"], [PROXY], prepare=tinyproxy),
    Program("privoxy", ["privoxy"], 8118, ["privoxy", "--no-daemon", "{dir}/privoxy.conf"], [PROXY], prepare=privoxy),
    Program("stunnel", ["stunnel4"], 8443, ["stunnel4", "{dir}/stunnel.conf"], [REVERSE_TLS], prepare=stunnel),
    Program("hitch", ["hitch"], 8443, ["hitch", "--config={dir}/hitch.conf"], [REVERSE_TLS], prepare=hitch),
    Program("haproxy-tcp", ["haproxy"], 8080, ["haproxy", "-db", "-f", "{dir}/haproxy.cfg"], [REVERSE], prepare=haproxy_tcp),
    Program("nginx-proxy", ["nginx"], 8080, ["nginx", "-c", "{dir}/nginx.conf"], [REVERSE], prepare=nginx_proxy),
    Program("dante", ["danted"], 1080, ["danted", "-f", "{dir}/sockd.conf"], [backend(THROUGH.format("--socks5 {server}:{port} http://{client}:9000/index.html"))], prepare=dante),
]
