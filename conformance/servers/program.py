"""What a server is for programs.py, and what preparations have in common."""

import os
import shutil
import subprocess

BODY = "x" * 200_000


class Program:
    """A server: the command that starts it, the port that shows that it is ready, and the client's commands."""

    def __init__(self, name, needs, port, command, clients, prepare=None, user=None, env=None, is_udp=False):
        self.name, self.needs, self.port = name, needs, port
        self.command, self.clients = command, clients
        self.prepare, self.user, self.env, self.is_udp = prepare, user, env or {}, is_udp

    def missing(self):
        return [need for need in self.needs if not (shutil.which(need) or os.path.exists(need))]


def write(directory, name, text, mode=0o644):
    path = os.path.join(directory, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def sh(script):
    return ["sh", "-ec", script]


def site(directory, values):
    os.makedirs(os.path.join(directory, "site"), exist_ok=True)
    write(os.path.join(directory, "site"), "index.html", "hello " + BODY)


def certificate(directory):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-keyout", "key.pem",
                    "-out", "cert.pem"], cwd=directory, check=True, capture_output=True)
