"""The gateway as people meet it: a run that asks for it, and keys that no run gets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sfad.features.gateway.routing import PLACEHOLDER
from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests import needs
from tests.conftest import Start
from tests.harness import alive, ended, environment, spawn, wait_until
from tests.tiers import first

from .agents import info, limit
from .provider import Provider, providing
from .test_gateway import CALLER, calling, config, gateway, results

# ---- a run that asks for it


def test_a_run_asks_for_a_gateway_that_is_not_enabled(
    start: Start, provider: Provider, containment: str
) -> None:
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
        assert [
            each.enforced_by for each in info(client, run.id).limits if each.kind == "cost"
        ] == ["gateway"]
        pid, _ = gateway(daemon)
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert [
            each.enforced_by for each in info(client, run.id).limits if each.kind == "cost"
        ] == ["gateway"]
        provider.released.set()
        assert ended(client, run.id).status is Status.COMPLETED
        wait_until(lambda: not alive(pid), "the gateway ends after the last run that uses it")
        assert (
            ended(client, calling(client, gateway=True, output=100).id).status is Status.COMPLETED
        )
    assert "started again" not in daemon.log.read_text()


def test_a_root_may_leave_out_a_gateway_that_is_enabled_and_a_child_may_not(
    start: Start, provider: Provider
) -> None:
    daemon = start(config=config(provider))
    with providing() as other, daemon.client() as client:
        run = calling(client, gateway=False, url=other.url, children=1, output=100)
        assert ended(client, run.id).status is Status.COMPLETED
        assert (len(other.bills), len(provider.bills)) == (1, 0)
        bad = [b"PATH=/usr/bin:/bin", b"ANTHROPIC_BASE_URL=localhost:9"]
        refused = spawn(client, ["true"], env=bad)
        assert isinstance(refused, m.Error), refused
        assert "ANTHROPIC_BASE_URL in the environment cannot be an upstream" in refused.message
        assert isinstance(spawn(client, ["true"], env=bad, gateway=False), m.RunReply)
    left = daemon.sfactl("run", "--", sys.executable, "-m", "sfactl", "run", "--no-gateway", "true")
    assert (
        left.returncode,
        "uses the gateway, so what it starts may not leave it" in left.stderr,
    ) == (2, True), left.stderr


def test_a_run_whose_gateway_cannot_be_started_is_refused(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    daemon = start(config=config(provider, enabled=False))
    daemon.stop()
    (tmp_path / "h11.py").write_text("raise ImportError('broken')\n")
    daemon.restart(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    before = daemon.descriptors()
    done = daemon.sfactl("run", "--gateway", "--", "true")
    assert (done.returncode, "the gateway cannot be started: exit code 1" in done.stderr) == (
        75,
        True,
    ), done.stderr
    assert daemon.sfactl("run", "--", "true").returncode == 0
    wait_until(lambda: daemon.descriptors() <= before + 1, "only the gateway's listener stays open")


# ---- keys

REAL = "sk-ant-api03-not-to-be-seen"


@first(1)
@pytest.mark.parametrize("source", ["key_env", "key_file"])
def test_no_run_gets_a_key_that_the_gateway_has(
    start: Start, provider: Provider, tmp_path: Path, source: str
) -> None:
    file, done = tmp_path / "key", tmp_path / "done"
    file.write_text(REAL)
    where = "REAL_KEY" if source == "key_env" else str(file)
    daemon = start(config=config(provider).replace("[quotas]", f'{source} = "{where}"\n[quotas]'))
    daemon.stop()
    daemon.restart(REAL_KEY=REAL)
    env = [f"ANTHROPIC_API_KEY={REAL}", "ANTHROPIC_AUTH_TOKEN=own", "OPENAI_API_KEY=own"]
    env += [f"REAL_KEY={REAL}", f"HEADERS=x-api-key: {REAL}"] if source == "key_env" else []
    plan = {"output": 100, "then": str(done)}
    with daemon.client() as client:
        reply = spawn(
            client,
            [sys.executable, CALLER, json.dumps(plan)],
            attempts=2,
            env=[*environment(), *(item.encode() for item in env)],
        )
        assert isinstance(reply, m.RunReply), reply
        wait_until(lambda: results(daemon, reply.run.id), "it has called")
        kept = set(Path(f"/proc/{info(client, reply.run.id).pid}/environ").read_text().split("\0"))
        assert kept & {f"ANTHROPIC_API_KEY={PLACEHOLDER}", *env} == {
            f"ANTHROPIC_API_KEY={PLACEHOLDER}",
            "OPENAI_API_KEY=own",
        }
        assert (daemon.state_dir / "spool" / f"{reply.run.id}.spawn").exists()
        assert holding(REAL, daemon.directory) == [file] * (file.is_relative_to(daemon.directory))
        done.touch()
        assert ended(client, reply.run.id).status is Status.COMPLETED
    assert [bill.key for bill in provider.bills] == [REAL]
    assert holding(REAL, daemon.directory) == [file] * (file.is_relative_to(daemon.directory))


def test_a_run_with_its_own_upstream_keeps_its_own_key(
    start: Start, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start(config=config(provider).replace("[quotas]", 'key_env = "REAL_KEY"\n[quotas]'))
    with providing() as other, daemon.client() as client:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "own")
        ended(client, calling(client, url=other.url, children=1, output=10).id)
        assert [bill.key for bill in other.bills] == ["own"]


def holding(secret: str, directory: Path) -> list[Path]:
    """Return the files that hold a text."""
    return [
        file
        for file in directory.rglob("*")
        if file.is_file() and secret.encode() in file.read_bytes()
    ]


# ---- doctor


def test_doctor_looks_at_the_gateway(start: Start, provider: Provider, tmp_path: Path) -> None:
    upstreams = "".join(
        f'[gateway.upstreams.{name}]\nurl = "{url}"\napi = "anthropic"\n{key}\n'
        for name, url, key in (
            ("anthropic", provider.url, 'key_env = "PATH"'),
            ("openai", "http://127.0.0.1:1", ""),
            ("gemini", provider.url, f'key_file = "{tmp_path / "absent"}"'),
        )
    )
    daemon = start(config=f"[gateway]\nenabled = true\n{upstreams}")

    def found() -> dict[str, tuple[str, str]]:
        done = daemon.sfactl("doctor", "--json")
        assert os.environ["PATH"] not in done.stdout
        return {
            each["name"]: (each["verdict"], each["detail"] + each["fix"])
            for each in json.loads(done.stdout)["findings"]
        }

    rows = found()
    assert rows["gateway"][0] == "ok"
    assert needs.no_cgroup() or rows["sock_diag"][0] == "ok"
    assert rows["upstream anthropic"] == ("ok", f"{provider.url} answers; the gateway has its key")
    assert rows["upstream openai"][0] == "warn"
    assert "check the network and gateway.upstreams.openai.url" in rows["upstream openai"][1]
    assert rows["upstream gemini"][0] == "bad"
    assert str(tmp_path / "absent") in rows["upstream gemini"][1]
    daemon.config.write_text("")
    assert daemon.sfactl("reload").returncode == 0
    assert found()["gateway"][0] == "ok"
