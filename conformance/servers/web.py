"""Servers of HTTP."""

import os

from .clients import http
from .program import BODY, Program, certificate, sh, site, write


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


PROGRAMS = [
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
]
