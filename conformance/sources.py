"""Sources of other projects' tests, in pinned versions, unpacked and built in a directory of their own."""

import hashlib
import json
import pathlib
import shutil
import subprocess
import urllib.request

DEBIAN = "http://deb.debian.org/debian/pool/main"


class FetchError(Exception):
    """A source is not what was asked for."""


class Source:
    """A source that `fetch` brings into its folder, and the commands that build its tests."""

    def __init__(self, name, version, sha256, build, product):
        """`build` is a list of commands, `product` the file that they make; both are relative to the folder."""
        self.name, self.version, self.sha256, self.build, self.product = name, version, sha256, build, product

    def folder(self, sources):
        """Returns the folder of the unpacked source."""
        return pathlib.Path(sources, f"{self.name}-{self.version}")

    def why_not(self, options):
        """Returns why the tests cannot run here, if so. With --fetch it fetches and builds what is missing."""
        folder = self.folder(options.sources)
        if (folder / self.product).exists():
            return None
        if not options.fetch:
            return f"{folder / self.product} is missing: give --fetch to download and build it"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.fetch(folder)
            self.make(folder)
        except (OSError, FetchError, subprocess.CalledProcessError) as error:
            return f"{self.name} {self.version} could not be fetched and built: {error}"
        return None

    def make(self, folder):
        """Builds the tests."""
        for command in self.build:
            run = command.replace("SOURCES", str(folder.parent))
            subprocess.run(["sh", "-c", run], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def check(self, sha256):
        """Compares a checksum with the pinned one."""
        if sha256 != self.sha256:
            raise FetchError(f"its SHA-256 is {sha256}, not {self.sha256}")


class Tarball(Source):
    """The upstream tar file of a Debian source package."""

    def __init__(self, name, version, suffix, sha256, build, product):
        super().__init__(name, version, sha256, build, product)
        prefix = name[:4] if name.startswith("lib") else name[0]
        self.url = f"{DEBIAN}/{prefix}/{name}/{name}_{version}.orig.tar.{suffix}"

    def fetch(self, folder):
        data = urllib.request.urlopen(self.url, timeout=60).read()
        self.check(hashlib.sha256(data).hexdigest())
        folder.mkdir()
        subprocess.run(["tar", "-x", "--strip-components=1", "-f", "-", *self.form()], input=data, cwd=folder, check=True)

    def form(self):
        return ["-J"] if self.url.endswith(".xz") else ["-z"]


class Crate(Source):
    """A package of crates.io with integration tests. The product lists the programs: {test: path}."""

    def __init__(self, name, version, sha256, tests, features=()):
        super().__init__(name, version, sha256, [], "abey-tests.json")
        self.tests, self.features = tests, features

    def fetch(self, folder):
        asking = folder.with_name(folder.name + ".fetch")
        asking.mkdir(exist_ok=True)
        manifest = f'[package]\nname = "fetch"\nedition = "2021"\n[lib]\npath = "lib.rs"\n[dependencies]\n'
        (asking / "Cargo.toml").write_text(f'{manifest}{self.name} = "={self.version}"\n')
        (asking / "lib.rs").write_text("")
        command = ["cargo", "metadata", "--quiet", "--format-version", "1"]
        metadata = json.loads(subprocess.run(command, cwd=asking, check=True, stdout=subprocess.PIPE).stdout)
        found = next(one for one in metadata["packages"] if one["name"] == self.name)
        # cargo has compared the package with the checksum in the lock file, which the registry's index gave.
        lock = (asking / "Cargo.lock").read_text().split("[[package]]")
        entry = next(one for one in lock if f'name = "{self.name}"\n' in one)
        self.check(entry.split('checksum = "')[1].split('"')[0])
        shutil.copytree(pathlib.Path(found["manifest_path"]).parent, folder)

    def make(self, folder):
        command = ["cargo", "test", "--no-run", "--locked", "--quiet", "--message-format", "json"]
        command += ["--target-dir", str(folder / "target"), *(["--features", ",".join(self.features)] * bool(self.features))]
        for test in self.tests:
            command += ["--test", test]
        built = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        messages = [json.loads(line) for line in built.splitlines()]
        programs = {one["target"]["name"]: one["executable"] for one in messages if one.get("executable")}
        (folder / self.product).write_text(json.dumps(programs))
