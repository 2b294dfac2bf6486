"""A kernel and a static shell from packages of Debian, which are downloaded and unpacked, and not
installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.surroundings import fetched, person

HOME = fetched()[1]
"""In the virtual environment, so that `make clean` removes it, and no other run has to download
it."""
_COMPLETE = HOME / "complete"


def unpacked() -> Path:
    """Return the directory with the files of both packages."""
    if not _COMPLETE.exists():
        HOME.mkdir(exist_ok=True)
        kernel = next(
            line.split()[1]
            for line in _said("apt-cache", "depends", "linux-image-amd64")
            if "Depends:" in line
        )
        _said("apt-get", "download", "--quiet", kernel, "busybox-static")
        for package in HOME.glob("*.deb"):
            _said("dpkg", "--extract", package, "files")
            package.unlink()
        _COMPLETE.touch()
    return HOME / "files"


def _said(*words: str | Path) -> list[str]:
    done = subprocess.run(
        words,
        cwd=HOME,
        env=person,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout.splitlines()
