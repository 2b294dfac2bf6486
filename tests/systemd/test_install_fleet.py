"""`sfad install --fleet` with a real systemd and a real Ray."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.harness import PATIENCE, wait_until

from .booted import Booted, booted, impossible

pytest.importorskip("ray", reason="the extra `fleet` is not installed")
pytestmark = pytest.mark.skipif(
    impossible() is not None, reason=f"cannot boot a systemd: {impossible()}"
)

SFAD, SFACTL = (Path(sys.prefix, "bin", name) for name in ("sfad", "sfactl"))
HEAD = ("install", "--system", "--fleet", "head", "--node", "n1")


def lacks(system: Booted) -> object:
    said = system.run(SFACTL, "fleet", "nodes", "--json", code=None)
    found = json.loads(said.splitlines()[0]) if said.startswith("{") else {"nodes": []}
    return {node["name"]: node["missing"] for node in found["nodes"] if node["version"]}


def test_ray_is_a_service_that_comes_back() -> None:
    with booted("unified") as system:
        system.run("sh", "-c", "rm -rf /etc/systemd/system/sfad* /etc/sfad/sfad.toml")
        line = f"{SFAD} install --system --fleet n1:6379 2>&1"
        refused = system.run("sh", "-c", line, code=None)
        assert "/etc/sfad/fleet-token does not exist: copy it from the head" in refused
        said = system.run(SFAD, *HEAD)
        assert "wrote: /etc/systemd/system/sfad-ray.service" in said
        assert "on each other machine: copy /etc/sfad/fleet-token" in said
        mode = system.run("stat", "--format=%a", "/etc/sfad/fleet-token").strip()
        assert mode == "600"
        assert 'node = "n1"' in system.run("cat", "/etc/sfad/sfad.toml")
        wait_until(lambda: lacks(system) == {"n1": None}, "it is ready", seconds=4 * PATIENCE)
        run = system.run(SFACTL, "spawn", "--timeout", "1h", "--", "sleep", "3000").strip()
        # all of Ray, as when a raylet ends itself because the head was away
        system.run("systemctl", "kill", "--signal=KILL", "sfad-ray.service")
        wait_until(lambda: lacks(system) != {"n1": None}, "it is not ready")
        wait_until(lambda: lacks(system) == {"n1": None}, "it is back", seconds=4 * PATIENCE)
        assert json.loads(system.run(SFACTL, "info", run, "--json"))["status"] == "running"
        assert "unchanged: /etc/systemd/system/sfad-ray.service" in system.run(SFAD, *HEAD)
        assert "kept:" not in system.run(SFAD, *HEAD, "--remove")
        assert "sfad-ray" not in system.run("ls", "/etc/systemd/system")
        assert json.loads(system.run(SFACTL, "info", run, "--json"))["status"] == "running"
        system.run(SFACTL, "stop", run)
