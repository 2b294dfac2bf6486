"""`make libraries`: fetch from npm what sfactl/web/static/libraries.toml names, check it, and write
it beside that file."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import sfactl.web

STATIC = Path(sfactl.web.__file__).parent / "static"
LIST = STATIC / "libraries.toml"


class Library(NamedTuple):
    package: str
    version: str
    licence: str
    integrity: str
    """Of its archive, as npm tells it."""
    files: dict[str, list[str]]
    """By their names here: the name in the package, and the SHA-256 in hexadecimal."""


def libraries() -> list[Library]:
    listed = tomllib.loads(LIST.read_text())
    return [Library(package=name, **found) for name, found in listed.items()]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetched(library: Library, directory: Path) -> tuple[str, dict[str, bytes]]:
    """Return the archive's integrity, and the files by their names here."""
    wanted = f"{library.package}@{library.version}"
    done = subprocess.run(
        ["npm", "pack", "--json", "--ignore-scripts", "--pack-destination", directory, wanted],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (packed,) = json.loads(done.stdout)
    archive = next(directory.glob("*.tgz"))
    data = archive.read_bytes()
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"
    assert integrity == packed["integrity"], f"{wanted}: npm says {packed['integrity']}"
    with tarfile.open(archive) as opened:
        found = {}
        for name, (place, _) in library.files.items():
            file = opened.extractfile(f"package/{place}")
            assert file is not None, f"{wanted} has no {place}"
            found[name] = file.read()
    return integrity, found


def main() -> int:
    """1 if something is not what the list says; then the list has to be changed, or was right."""
    wrong = []
    for library in libraries():
        with tempfile.TemporaryDirectory() as directory:
            integrity, found = fetched(library, Path(directory))
        if library.integrity != integrity:
            wrong.append(f"{library.package}@{library.version}: integrity = {integrity!r}")
        for name, data in found.items():
            (STATIC / name).write_bytes(data)
            if library.files[name][1] != digest(data):
                wrong.append(f"{name}: {digest(data)}")
    for line in wrong:
        print(f"{LIST.name} says otherwise: {line}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
