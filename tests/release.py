"""`make release`: build the source distribution and the wheel twice, from clean clones of HEAD, and
find the same bytes; write what the product depends on, with versions and licences
(`dist/sbom.json`)."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement

from sfad import __version__
from tests.web.libraries import libraries

ROOT = Path(__file__).parents[1]
EXTRAS = ("", "fleet", "otel", "top", "web")
"""What users may install; "" is the product alone."""


def main() -> int:
    """0 if both builds are the same."""
    changes = _git("status", "--porcelain")
    if changes:
        print(f"release: commit these first; HEAD is what is built:\n{changes}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        first, second = (_built(Path(directory) / name) for name in ("first", "second"))
        different = [name for name in first if first[name] != second.get(name)]
        if different or first.keys() != second.keys():
            print(f"release: two builds differ: {different or [*first, *second]}", file=sys.stderr)
            return 1
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for name, data in first.items():
            (dist / name).write_bytes(data)
            print(f"{hashlib.sha256(data).hexdigest()}  dist/{name}")
    (dist / "sbom.json").write_text(json.dumps(bill_of_materials(), indent=1) + "\n")
    print("dist/sbom.json: what it depends on")
    return 0


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _built(directory: Path) -> dict[str, bytes]:
    """Build from a clone in this directory. Return the files by name."""
    subprocess.run(["git", "clone", "--quiet", ROOT, directory], check=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", "dist", "."], cwd=directory,
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    return {file.name: file.read_bytes() for file in sorted((directory / "dist").iterdir())}


# ---- What it depends on


def bill_of_materials() -> dict[str, Any]:
    """Return it in the form of CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/), without what
    differs between two machines, such as a time."""
    needed = needed_by("sfad")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "sfad", "version": __version__}},
        "components": [
            {
                "type": "library",
                "name": name,
                "version": found.version,
                "purl": f"pkg:pypi/{name}@{found.version}",
                "licenses": [{"license": {"name": licence(found)}}],
            }
            for name, found in sorted(needed.items())
        ]
        + [
            {
                "type": "library",
                "name": each.package,
                "version": each.version,
                "purl": f"pkg:npm/{quote(each.package)}@{each.version}",
                "licenses": [{"license": {"name": each.licence}}],
            }
            for each in libraries()
        ],
    }


def needed_by(name: str) -> dict[str, Distribution]:
    """Return what a distribution needs here with the extras that users may install, and what that
    needs. What is not installed is left out, such as an extra's."""
    found: dict[str, Distribution] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(name, EXTRAS)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        current, extras = waiting.pop()
        try:
            known = distribution(current)
        except PackageNotFoundError:
            continue
        if current != name:
            found[current] = known
        for extra in extras:
            if (current, extra) not in seen:
                seen.add((current, extra))
                waiting += _requirements(known, extra)
    return found


def _requirements(known: Distribution, extra: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    environment = {"extra": extra}  # the rest is this machine's
    for text in known.requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate(environment):
            yield re.sub(r"[-_.]+", "-", wanted.name).lower(), ("", *sorted(wanted.extras))


def licence(found: Distribution) -> str:
    """Return the licence that the metadata name: an expression, else what the classifiers say, else
    the first line of a text."""
    told: dict[str, list[str]] = {
        key: found.metadata.get_all(key) or []
        for key in ("License-Expression", "Classifier", "License")
    }
    classifiers = [
        line.rpartition(" :: ")[2] for line in told["Classifier"] if line.startswith("License ::")
    ]
    lines = [text.strip().partition("\n")[0] for text in told["License"]]
    return " AND ".join(told["License-Expression"] or classifiers or lines) or "unknown"


if __name__ == "__main__":
    sys.exit(main())
