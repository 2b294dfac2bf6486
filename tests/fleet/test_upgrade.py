"""A fleet is upgraded as docs/fleet.md says, one node after the other and the head last, from the
commit before this to this one, and one node back again: runs go on, and questions are answered."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfad import __version__
from sfad.protocol import messages as m
from sfad.protocol.types import Placing
from tests.harness import started, wait_until
from tests.paper_fleet import Fleet, fleet

ROOT = Path(__file__).parents[2]
EARLIER = "0.0.0"
"""What the commit before this is told to call itself."""
NAMES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the commit before this one; in a clone that has none, this one's."""
    words = ["git", "-C", str(ROOT), "archive"]
    found = subprocess.run([*words, "HEAD~1", "sfad"], capture_output=True, check=False)
    if found.returncode:
        found = subprocess.run([*words, "HEAD", "sfad"], capture_output=True, check=True)
    directory = tmp_path_factory.mktemp("earlier")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=found.stdout, check=True)
    init = directory / "sfad" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{__version__}"', f'"{EARLIER}"'))
    return directory


class Installed:
    """What is installed on each node: a link to the code of a version."""

    def __init__(self, directory: Path, earlier: Path) -> None:
        self._directory, self._earlier = directory, earlier
        for name in NAMES:
            self.install(name, earlier)

    def place(self, name: str) -> Path:
        return self._directory / f"installed-{name}"

    def install(self, name: str, code: Path) -> None:
        new = self._directory / "new"
        new.symlink_to(code)
        os.replace(new, self.place(name))


@contextmanager
def nodes(directory: Path, installed: Installed) -> Iterator[Fleet]:
    def options(name: str) -> dict[str, Any]:
        # -P: not the code in the directory where the tests run
        wrap = ("env", f"PYTHONPATH={installed.place(name)}")
        return {"wrap": wrap, "program": ("-P", "-m", "sfad")}

    with fleet(directory, NAMES, lease=30, options=options) as made:
        yield made


def versions(nodes: Fleet) -> dict[str, str]:
    """Return the version of each node that is ready."""
    told = json.loads(nodes["n1"].sfactl("fleet", "nodes", "--json").stdout)
    return {node["name"]: node["version"] for node in told["nodes"] if not node["missing"]}


@pytest.mark.needs("git")
def test_nodes_are_upgraded_one_after_the_other(tmp_path: Path, earlier: Path) -> None:
    installed = Installed(tmp_path, earlier)
    expected = dict.fromkeys(NAMES, EARLIER)
    begun = tmp_path / "begun"
    command = ["sh", "-c", f"echo $$ >> {begun}; exec sleep 600"]
    count = 0

    def spawn(nodes: Fleet, giver: str, taker: str) -> str:
        """Start a run on one node that executes on another. Return its name in the fleet."""
        nonlocal count
        count += 1
        with nodes[giver].client() as client:
            given: dict[str, Any] = {"placing": Placing(node=taker), "key": os.urandom(8).hex()}
            run = started(client, command, name=f"run{count}", **given)
            wait_until(lambda: len(begun.read_text().split()) == count, "the other has started it")
            status = client.call(m.Info(id=0, run=run.id), m.RunReply).run.status
            assert not status.terminal
        return f"{giver}/{run.id}"

    begun.touch()
    with nodes(tmp_path, installed) as made:
        wait_until(lambda: versions(made) == expected, "all are ready")
        runs = [
            spawn(made, giver, taker) for giver, taker in (("n1", "n2"), ("n2", "n3"), ("n3", "n1"))
        ]
        pids = begun.read_text().split()
        for name, code in (("n2", ROOT), ("n3", ROOT), ("n1", ROOT), ("n2", earlier)):
            installed.install(name, code)
            made[name].reexecute()
            expected[name] = EARLIER if code is earlier else __version__
            wait_until(lambda: versions(made) == expected, f"{name} is ready with its version")
            listed = made["n1"].sfactl("list", "--fleet", "--status", "running", "--json")
            assert listed.returncode == 0, listed
            assert set(runs) <= {run["id"] for run in json.loads(listed.stdout)["runs"]}
            others = [other for other in NAMES if other != name]
            runs += [spawn(made, name, others[0]), spawn(made, others[1], name)]
            stopped = made[others[0]].sfactl("stop", runs.pop())
            assert stopped.returncode == 0, stopped
        assert begun.read_text().split()[:3] == pids
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        assert made["n1"].sfactl("stop", *runs).returncode == 0
