"""Servers of files, of mail and of shells."""

import os
import shutil
import subprocess
import sys

from .program import BODY, Program, sh, site, write


def password(directory, name="tester"):
    """Makes a user of this machine for servers that ask for one. Its password is `secret`."""
    home = os.path.join(directory, "home")
    os.makedirs(home, exist_ok=True)
    subprocess.run(["useradd", "-M", "-d", home, name], capture_output=True)
    subprocess.run(["usermod", "-d", home, name], capture_output=True)
    subprocess.run(["chpasswd"], input=f"{name}:secret\n", text=True, check=True)
    shutil.chown(home, name, name)
    return home


FTP = """
import ftplib, io, sys
server, port, user, word, passive = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5] == "passive"
sent = bytes(range(256)) * 2000
for turn in range(3):
    with ftplib.FTP() as ftp:
        ftp.connect(server, port, timeout=60)
        ftp.login(user, word)
        ftp.set_pasv(passive)
        if user != "anonymous":
            ftp.storbinary("STOR file", io.BytesIO(sent))
            got = []
            ftp.retrbinary("RETR file", got.append)
            assert b"".join(got) == sent
            ftp.delete("file")
        else:
            got = []
            ftp.retrbinary("RETR index.html", got.append)
            assert len(b"".join(got)) == 200006
        ftp.nlst()
"""


def ftp(user, word, mode):
    return [sys.executable, "-c", FTP, "{server}", "{port}", user, word, mode]


def vsftpd(directory, values):
    site(directory, values)
    os.chmod(os.path.join(directory, "site"), 0o755)
    os.makedirs("/var/run/vsftpd/empty", exist_ok=True)
    password(directory)
    os.chmod(directory, 0o755)
    write(directory, "vsftpd.conf", f"""
listen=YES
listen_port={values['port']}
background=NO
anonymous_enable=YES
anon_root={directory}/site
local_enable=YES
write_enable=YES
seccomp_sandbox=NO
secure_chroot_dir=/var/run/vsftpd/empty
pam_service_name=other
""")


def proftpd(directory, values):
    password(directory)
    os.chmod(directory, 0o755)
    write(directory, "proftpd.conf", f"""
ServerType standalone
Port {values['port']}
User nobody
Group nogroup
AuthOrder mod_auth_unix.c
RequireValidShell off
UseIPv6 off
PidFile {directory}/pid
ScoreboardFile {directory}/scoreboard
DelayEngine off
WtmpLog off
""")


def sshd(directory, values):
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{directory}/{name}"], check=True)
    shutil.copy(f"{directory}/user.pub", f"{directory}/authorized")
    os.makedirs("/run/sshd", exist_ok=True)
    os.chmod(directory, 0o755)
    write(directory, "sshd.conf", f"""
Port {values['port']}
HostKey {directory}/host
AuthorizedKeysFile {directory}/authorized
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile {directory}/pid
Subsystem sftp internal-sftp
""")


SSH = "ssh -q -i {dir}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -p {port} root@{server}"


def dropbear(directory, values):
    sshd(directory, values)
    subprocess.run(["dropbearkey", "-t", "ed25519", "-f", f"{directory}/dbhost"], check=True, capture_output=True)
    os.makedirs("/root/.ssh", exist_ok=True)


def rsyncd(directory, values):
    site(directory, values)
    write(directory, "rsyncd.conf", f"use chroot = no\nreverse lookup = no\n[site]\npath = {directory}/site\nread only = no\nuid = root\ngid = root\n")
    for number in range(40):
        write(os.path.join(directory, "site"), f"f{number}", BODY[: number * 1000])


def tftp(directory, values):
    site(directory, values)
    os.chmod(directory, 0o755)
    for name in ("site", "site/index.html"):
        os.chmod(os.path.join(directory, name), 0o755)


TFTP = sh("for i in 1 2 3; do curl -sSf --max-time 60 tftp://{server}:{port}/index.html | wc -c | grep -q 200006; done")


def dovecot(directory, values):
    os.chmod(password(directory), 0o777)
    os.chmod(directory, 0o755)
    write(directory, "users", "tester:{{PLAIN}}secret:65534:65534::{0}/home::\n".format(directory))
    write(directory, "dovecot.conf", f"""
base_dir = {directory}/run
state_dir = {directory}/run
log_path = /dev/stderr
protocols = imap
ssl = no
disable_plaintext_auth = no
first_valid_uid = 0
mail_location = maildir:{directory}/home/mail
passdb {{
  driver = passwd-file
  args = {directory}/users
}}
userdb {{
  driver = passwd-file
  args = {directory}/users
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {values['port']}
  }}
}}
service anvil {{
  chroot =
}}
""")


IMAP = """
import imaplib, sys
for turn in range(3):
    with imaplib.IMAP4(sys.argv[1], int(sys.argv[2]), timeout=60) as imap:
        imap.login("tester", "secret")
        body = b"Subject: one\\r\\n\\r\\n" + b"text of the message\\r\\n" * 5000
        assert imap.append("INBOX", None, None, body)[0] == "OK"
        status, count = imap.select("INBOX")
        assert status == "OK" and int(count[0]) == turn + 1
        status, found = imap.fetch(b"1", "(RFC822)")
        assert found[0][1] == body
"""

SMTP = """
import smtplib, sys
for turn in range(3):
    with smtplib.SMTP(sys.argv[1], int(sys.argv[2]), timeout=60) as smtp:
        smtp.ehlo("client.example")
        smtp.sendmail("a@client.example", ["root@localhost"], "Subject: one\\r\\n\\r\\n" + "text of the message\\r\\n" * 5000)
"""


def postfix(directory, values):
    for name in ("queue", "data"):
        os.makedirs(f"{directory}/{name}")
    shutil.chown(f"{directory}/data", "postfix")
    os.chmod(directory, 0o755)
    write(directory, "main.cf", f"""
compatibility_level = 3.6
queue_directory = {directory}/queue
data_directory = {directory}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
myhostname = test.example
mydestination = localhost, test.example
mynetworks = 0.0.0.0/0
inet_interfaces = all
inet_protocols = ipv4
smtpd_peername_lookup = no
local_transport = discard:
maillog_file = /dev/stdout
""")
    write(directory, "master.cf", f"""
{values['port']} inet n - n - - smtpd
postlog unix-dgram n - n - 1 postlogd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
discard unix - - n - - discard
local unix - n n - - local
error unix - - n - - error
retry unix - - n - - error
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
""")


def samba(directory, values):
    site(directory, values)
    for name in ("lock", "state", "cache", "pid", "private", "nc"):
        os.makedirs(f"{directory}/{name}")
    os.chmod(directory, 0o755)
    write(directory, "smb.conf", f"""
[global]
smb ports = {values['port']}
lock directory = {directory}/lock
state directory = {directory}/state
cache directory = {directory}/cache
pid directory = {directory}/pid
private dir = {directory}/private
ncalrpc dir = {directory}/nc
log file = {directory}/log
map to guest = bad user
guest account = root
disable spoolss = yes
load printers = no
[site]
path = {directory}/site
guest ok = yes
read only = no
force user = root
""")


PROGRAMS = [
    Program("vsftpd", ["vsftpd"], 2121, ["vsftpd", "{dir}/vsftpd.conf"],
            [ftp("anonymous", "x", "passive"), ftp("tester", "secret", "passive"), ftp("tester", "secret", "active")], prepare=vsftpd),
    Program("proftpd", ["proftpd"], 2121, ["proftpd", "-n", "-c", "{dir}/proftpd.conf"],
            [ftp("tester", "secret", "passive"), ftp("tester", "secret", "active")], prepare=proftpd),
    Program("sshd", ["sshd", "ssh"], 2222, ["/usr/sbin/sshd", "-D", "-e", "-f", "{dir}/sshd.conf"],
            [sh(f"for i in 1 2 3; do [ \"$({SSH} echo hello)\" = hello ]; done"),
             sh(f"head -c 3000000 /dev/urandom > big; {SSH} cat < big | cmp - big"),
             sh(f"{SSH} 'head -c 1000000 /dev/zero' | wc -c | grep -q 1000000")], prepare=sshd),
    Program("rsync", ["rsync"], 8730, ["rsync", "--daemon", "--no-detach", "--port={port}", "--config={dir}/rsyncd.conf", "--log-file=/dev/stderr"],
            [sh("rsync -a --timeout=60 rsync://{server}:{port}/site/ got/; diff -r got site"),
             sh("head -c 2000000 /dev/urandom > got/new; rsync -a --timeout=60 got/ rsync://{server}:{port}/site/; diff -r got site")], prepare=rsyncd),
    Program("tftpd-hpa", ["in.tftpd", "curl"], 6969, ["/usr/sbin/in.tftpd", "-L", "-a", "0.0.0.0:{port}", "-u", "root", "-s", "{dir}/site"], [TFTP],
            prepare=tftp, is_udp=True),
    Program("atftpd", ["atftpd", "curl"], 6969, ["atftpd", "--daemon", "--no-fork", "--port", "{port}", "--user", "root.root", "--logfile", "/dev/stderr",
            "{dir}/site"], [TFTP], prepare=tftp, is_udp=True),
    Program("dovecot", ["dovecot"], 1143, ["dovecot", "-F", "-c", "{dir}/dovecot.conf"], [[sys.executable, "-c", IMAP, "{server}", "{port}"]],
            prepare=dovecot),
    Program("postfix", ["postfix"], 2525, ["postfix", "-c", "{dir}", "start-fg"], [[sys.executable, "-c", SMTP, "{server}", "{port}"]], prepare=postfix),
    Program("samba", ["smbd", "smbclient"], 4450, ["smbd", "-F", "--no-process-group", "-s", "{dir}/smb.conf", "--debug-stdout"],
            [sh("for i in 1 2 3; do smbclient -p {port} -N -U guest% //{server}/site -c 'get index.html got'; cmp got site/index.html; rm got; done")],
            prepare=samba),
]
