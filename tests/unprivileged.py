"""Programs of the user nobody, for tests that run as root: an agent without privileges, and a
daemon for it.

The interpreter and the checkout may be where only root can look, so they are mounted where nobody
can.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from sfad.processes.contain.cgroup import cgroupfs

GONE = 65534

MOUNTS = {
    "python": sys.base_prefix,
    "site": sysconfig.get_path("purelib"),
    "code": str(Path(__file__).parents[1]),
}

FIND_LIBPYTHON = """
printf '%s\\n' "$directory/python/lib" 'include /etc/ld.so.conf' >"$directory/ld.so.conf"
PATH=$PATH:/sbin:/usr/sbin \\
  ldconfig -i -X -f "$directory/ld.so.conf" -C "$directory/ld.so.cache" || exit 99
mount --bind "$directory/ld.so.cache" /etc/ld.so.cache || exit 99
"""
"""The loader finds the library of the interpreter that is mounted in `$directory`, and not only
where the environment says so: what starts a command in a sandbox gets nothing of its
environment."""

_ENTER = f"""
directory=$1; cd "$directory"; shift
for pair in "$@"; do
    shift
    [ "$pair" = -- ] && break
    mount --bind "${{pair#*=}}" "${{pair%%=*}}" || exit 99
done
{FIND_LIBPYTHON}
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"
"""


class Place:
    """A directory of nobody's, with an interpreter that nobody can use, and a cgroup delegated to
    nobody where there are any."""

    def __init__(self, directory: Path, mounts: Mapping[str, str]) -> None:
        self.directory = directory
        self._mounts = mounts
        self.python = f"{directory}/python/bin/{Path(sys.executable).resolve().name}"
        self.cgroup = _delegated(directory.name)

    @property
    def env(self) -> dict[str, str]:
        """For that interpreter."""
        return {
            "PYTHONPATH": f"{self.directory}/code:{self.directory}/site",
            "HOME": str(self.directory),
            "SFAD_SERVICE_USER": str(GONE),
        }

    def command(self, *words: str) -> list[str]:
        """Becomes nobody, in that cgroup, and executes the words."""
        join = f'echo $$ > {self.cgroup}/cgroup.procs; exec "$@"' if self.cgroup else 'exec "$@"'
        mounts = [f"{name}={source}" for name, source in self._mounts.items()]
        return ["sh", "-c", join, "sh", "unshare", "--mount", "--propagation", "private", "sh",
                "-c", _ENTER, "sh", str(self.directory), *mounts, "--", *words]  # fmt: skip

    def remove(self) -> None:
        """Gives back the cgroup and the directory."""
        if self.cgroup is not None:
            cgroupfs.remove_tree(self.cgroup)
        shutil.rmtree(self.directory, ignore_errors=True)


def _delegated(name: str) -> str | None:
    """A cgroup that belongs to nobody, as systemd makes it with `Delegate=yes`."""
    own = cgroupfs.locate("0" * 12)
    directory = f"{os.path.dirname(own.directory)}/{name}"
    try:
        os.mkdir(directory)
        for path in (
            directory,
            *(f"{directory}/cgroup.{file}" for file in ("procs", "threads", "subtree_control")),
        ):
            os.chown(path, GONE, GONE)
    except OSError:
        return None
    return directory


@contextmanager
def place(**more: Path) -> Iterator[Place]:
    """Skips the test where that is not possible. `more`: what is to be mounted there, too."""
    why = impossible()
    if why:
        pytest.skip(why)
    directory = Path(tempfile.mkdtemp(prefix="nobody-"))
    mounts = MOUNTS | {name: str(source) for name, source in more.items()}
    for name in mounts:
        (directory / name).mkdir()
    os.chown(directory, GONE, GONE)
    made = Place(directory, mounts)
    try:
        yield made
    finally:
        made.remove()


@cache
def impossible() -> str:
    """Why nobody can run nothing here; empty if it can."""
    if os.geteuid() != 0:
        return "becoming another user takes root"
    for program in ("setpriv", "unshare", "mount"):
        if shutil.which(program) is None:
            return f"no {program} here (Debian: util-linux, mount)"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return tried.stderr.strip()
