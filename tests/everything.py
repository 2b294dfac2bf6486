"""`make test-all` and `make everything`: what `make test` leaves out, part by part, with the time
of each.

Installs what the parts need, as root with apt-get. A part that this machine cannot run is named
with its reason.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .tiers import COMPLETE, PACKAGES, packages

ROOT = Path(__file__).parents[1]
SUITE = (sys.executable, "-m", "tests.suite")


@dataclass(frozen=True)
class Part:
    """A command, and what it needs."""

    name: str
    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    needs: Sequence[str] = ()
    """Programs."""
    machine: str = ""
    """The only kind of processor that it is for."""

    def impossible(self) -> str | None:
        """Return why this machine cannot run it; `None` if it can."""
        if self.machine and platform.machine() != self.machine:
            return f"it is for {self.machine}"
        missing = [program for program in self.needs if not shutil.which(program)]
        if missing:
            return f"not installed: {', '.join(missing)}"
        return _why_old_node() if "npm" in self.needs else None

    def run(self) -> bool:
        """Return whether it succeeded."""
        print(f"\n==== {self.name}: {' '.join(self.command)}", flush=True)
        return subprocess.run(self.command, cwd=ROOT, env=os.environ | self.env).returncode == 0


def _why_old_node() -> str | None:
    said = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    return (
        None
        if int(said.removeprefix("v").split(".")[0]) >= 20
        else f"it needs Node.js 20 or newer; this is {said}"
    )


REST = (
    Part("the rest of the suite", [*SUITE, "--tier", "rest"]),
    Part(
        "real agents",
        [*SUITE, "tests/real_agents"],
        {"SFAD_TEST_AGENTS": "1"},
        needs=("node", "npm"),
    ),
    Part(
        "virtual machine",
        [*SUITE, "tests/vm"],
        {"SFAD_TEST_VM": "1"},
        ("qemu-system-x86_64", "apt-get"),
        "x86_64",
    ),
    Part("wheel, as people install it", [sys.executable, "-m", "tests.installing"]),
)

LONGER = (
    Part(
        "each agent on each road, and in a terminal",
        [*SUITE, "tests/real_agents/test_matrix.py", "tests/real_agents/test_terminals.py"],
        {"SFAD_TEST_AGENTS": "all"},
        needs=("node", "npm"),
    ),
    Part("each framework", [*SUITE, "tests/frameworks"], {"SFAD_TEST_FRAMEWORKS": "all"}),
    Part("fresh machines", ["bash", "tests/fresh.sh"]),
    Part("kill the daemon at each effect", [sys.executable, "-m", "tests.crash"]),
    Part(
        "break each part of a fleet of three",
        [sys.executable, "-m", "tests.fleet.breaking"],
        needs=("ip",),
    ),
    Part(
        "the fast tier ten times beside a load of 8",
        [sys.executable, "-m", "tests.beside_load", "--times", "10", "--load", "8"],
    ),
)


def install() -> None:
    """Install the packages that the tests need, where that is possible."""
    wanted = packages(PACKAGES)
    if os.geteuid() or not shutil.which("apt-get"):
        print(
            f"not root, or no apt-get here: tests that need root or one of '{wanted}' are skipped",
            file=sys.stderr,
        )
        return
    # an installed Node.js has its own npm, with which Debian's packages conflict
    wanted += "" if shutil.which("node") else " nodejs npm"
    print(f"==== installing {wanted}", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=env, check=True)
    words = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *wanted.split()]
    subprocess.run(words, env=env, stdout=subprocess.DEVNULL, check=True)
    os.environ[COMPLETE] = "1"


def main() -> int:
    """0 if each part that can run here succeeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.everything", description=__doc__)
    parser.add_argument("--longer", action="store_true", help="also what takes hours")
    install()
    rows = []
    for part in (*REST, *LONGER) if parser.parse_args().longer else REST:
        began = time.monotonic()
        why = part.impossible()
        outcome = f"not run: {why}" if why else "passed" if part.run() else "FAILED"
        rows.append((part.name, time.monotonic() - began, outcome))
    print(
        "\n==== parts",
        *(f"{seconds:7.0f} s  {name}: {outcome}" for name, seconds, outcome in rows),
        sep="\n",
    )
    return int(any(outcome == "FAILED" for _, _, outcome in rows))


if __name__ == "__main__":
    sys.exit(main())
