"""Source packages of the distribution, in pinned versions, unpacked and built in a directory of their own.

The list of sources is private to this program: the machine's own is not changed.
"""

import pathlib
import shutil
import subprocess

LIST = "deb-src http://deb.debian.org/debian bookworm main\n"


class Source:
    """A source package, and how its tests are built."""

    def __init__(self, package, version, build, product):
        """`build` is a list of commands, `product` the file that they make; both are relative to the unpacked source."""
        self.package, self.version, self.build, self.product = package, version, build, product

    def folder(self, sources):
        """Returns the folder of the unpacked source."""
        return pathlib.Path(sources, f"{self.package}-{self.version}")

    def why_not(self, options):
        """Returns why the tests cannot run here, if so. With --fetch it fetches and builds what is missing."""
        folder = self.folder(options.sources)
        if (folder / self.product).exists():
            return None
        if not options.fetch:
            return f"{folder / self.product} is missing: give --fetch to download and build it"
        try:
            self.fetch(options.sources)
            for command in self.build:
                subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"{self.package} {self.version} could not be fetched and built: {error}"
        return None

    def fetch(self, sources):
        """Downloads and unpacks the source, without the patches of the distribution's package."""
        sources = pathlib.Path(sources)
        lists = sources / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        (sources / "sources.list").write_text(LIST)
        apt = ["apt-get", "-q", "-o", f"Dir::Etc::SourceList={sources}/sources.list"]
        apt += ["-o", "Dir::Etc::SourceParts=/dev/null", "-o", f"Dir::State::Lists={lists}"]
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(
            [*apt, "source", "--download-only", f"{self.package}={self.version}"],
            cwd=sources,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        description = next(sources.glob(f"{self.package}_{self.version}.dsc"))
        shutil.rmtree(self.folder(sources), ignore_errors=True)
        unpack = ["dpkg-source", "--no-check", "-x", description.name, self.folder(sources).name]
        subprocess.run(unpack, cwd=sources, check=True, stdout=subprocess.DEVNULL)
