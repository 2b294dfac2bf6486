"""What a command line costs with the newest typer, beside the one that is installed: whether the
bound in pyproject.toml may go."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROUNDS = 20
ROOT = Path(__file__).parents[2]
LINES: dict[str, Sequence[str]] = {
    "list": ["-m", "sfactl", "list", "--name", "n", "--limit-rows", "3", "--json"],
    "spawn": ["-m", "sfactl", "spawn", "-q", "--", "true"],
    "Python": ["-c", "pass"],
}
"""Lines of a verb with few options and of one with 60; no daemon answers them."""


def main() -> None:
    """Print a line for each version: milliseconds of CPU, the least of some calls."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True, symlinks=True)
        newest = f"{place}/bin/python"
        install = [newest, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # without this project itself, which has the bound
        subprocess.run([*install, "--upgrade", "typer", "msgspec"], check=True)
        print_costs(version("typer"), sys.executable)
        shown = "from importlib.metadata import version; print(version('typer'))"
        print_costs(subprocess.check_output([newest, "-c", shown], text=True).strip(), newest)


def print_costs(typer: str, python: str) -> None:
    costs = {name: min(cost(python, words) for _ in range(ROUNDS)) for name, words in LINES.items()}
    print(
        f"typer {typer}: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in costs.items()),
        flush=True,
    )


def cost(python: str, words: Sequence[str]) -> float:
    """Return milliseconds of CPU of a call."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "SFAD_SOCKET": "/nonexistent/s",
        "SFAD_AUTOSTART": "0",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, *words], env=env, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
