"""The gateway as people meet it: a run that asks for it, and keys that no run gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import alive, ended, wait_until

from .agents import info, limit
from .provider import Provider, providing
from .test_gateway import calling, config, gateway, results


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider."""
    with providing() as made:
        yield made


# ---- a run that asks for it


def test_a_run_asks_for_a_gateway_that_is_not_enabled(start: Start, provider: Provider, containment: str) -> None:
    daemon = start(config=config(provider, enabled=False), mode=containment)
    with daemon.client() as client:
        run = calling(client)
        ended(client, run.id)
        assert results(daemon, run.id) == []  # it was told of no model
        assert not (daemon.state_dir / "gateway.json").exists()
        parent = calling(client, limit("cost", 5), gateway=True, children=2, output=100)
        assert ended(client, parent.id).total_cost_usd == pytest.approx(provider.usd)
        assert len(provider.bills) == 2
        run = calling(client, limit("cost", 5), gateway=True, output=100, stall=True)
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
        assert [each.enforced_by for each in info(client, run.id).limits if each.kind == "cost"] == ["gateway"]
        pid, _ = gateway(daemon)
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert [each.enforced_by for each in info(client, run.id).limits if each.kind == "cost"] == ["gateway"]
        provider.released.set()
        assert ended(client, run.id).status is Status.COMPLETED
        wait_until(lambda: not alive(pid), "the gateway ends after the last run that uses it")
        assert ended(client, calling(client, gateway=True, output=100).id).status is Status.COMPLETED
    assert "started again" not in daemon.log.read_text()


def test_a_run_and_its_children_leave_out_a_gateway_that_is_enabled(start: Start, provider: Provider) -> None:
    daemon = start(config=config(provider))
    with providing() as other, daemon.client() as client:
        run = calling(client, gateway=False, url=other.url, children=1, output=100)
        assert ended(client, run.id).status is Status.COMPLETED
        assert (len(other.bills), len(provider.bills)) == (1, 0)


def test_a_run_whose_gateway_cannot_be_started_is_refused(start: Start, provider: Provider, tmp_path: Path) -> None:
    daemon = start(config=config(provider, enabled=False))
    daemon.stop()
    (tmp_path / "h11.py").write_text("raise ImportError('broken')\n")
    daemon.process = daemon._start({"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"})
    before = daemon.descriptors()
    done = daemon.sfactl("run", "--gateway", "--", "true")
    assert (done.returncode, "the gateway cannot be started: exit code 1" in done.stderr) == (75, True), done.stderr
    assert daemon.sfactl("run", "--", "true").returncode == 0
    wait_until(lambda: daemon.descriptors() <= before + 1, "only the gateway's listener stays open")
