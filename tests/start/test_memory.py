"""What is the same is not worked out again, and nothing else is taken for the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sfad.core.state.access import Peer
from sfad.daemon.loop import starting
from sfad.daemon.loop.runtime import Runtime
from sfad.protocol import messages as m
from sfad.protocol.types import After, Claim, Isolation, Limit, LimitKind
from sfad.start.checks import LARGE
from sfad.start.prepared import Prepared
from tests.conftest import Start
from tests.harness import wait_until
from tests.loop.shell import ANN, shell, spawned
from tests.processes.fake import FakeLauncher

BOB = Peer(1, "bob", owner=False)
ORDER = m.Spawn(id=2, argv=[b"true"], cwd=b"/", env=[b"PATH=/nowhere", b"HOME=/nowhere"])


async def prepared(
    runtime: Runtime, order: m.Spawn = ORDER, peer: Peer = ANN, **more: Any
) -> Prepared:
    return await runtime.starting.prepare(runtime.starting.around(order, peer, None, **more))


async def test_an_equal_request_gets_what_was_decided(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        first = await prepared(runtime, replace(ORDER, key="a"))
        assert await prepared(runtime, replace(ORDER, id=7, key="b"), client=12) is first
        assert first.command.argv == [b"true"]
        assert first.asked.identity.name == "true"


@pytest.mark.parametrize(
    "other",
    [
        {"argv": [b"true", b""]},
        {"cwd": b"/tmp"},
        {"env": [b"PATH=/nowhere", b"HOME=/elsewhere"]},
        {"env": [*ORDER.env, b"KEY=2"]},
        {"umask": 0o077},
        {"name": "another"},
        {"limits": [Limit(kind=LimitKind.TIME, threshold=1.0)]},
        {"labels": {"a": "b"}},
        {"after": [After(run="a1", ok=True)]},
        {"claim": Claim(depth=1, names=["x"])},
        {"gateway": False},
        {"stdin": "pipe"},
        {"meter": "none"},
    ],
)
async def test_a_request_that_differs_is_decided_about(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        first = await prepared(runtime)
        another = await prepared(runtime, replace(ORDER, **other))
        assert another is not first
        assert (another.asked, another.command, another.output, another.parts) != (
            first.asked, first.command, first.output, first.parts,
        )  # fmt: skip
        assert (await prepared(runtime)).command == first.command


async def test_each_of_many_environments_is_its_own(tmp_path: Path) -> None:
    """They differ in the middle alone, and more of them come than are kept; then again."""

    def environment(number: int) -> list[bytes]:
        return [b"PATH=/nowhere", b"X=%d" % number, b"HOME=/nowhere"]

    async with shell(tmp_path, FakeLauncher) as runtime:
        for number in [*range(starting.MOST_KNOWN + 8)] * 2:
            order = replace(ORDER, env=environment(number))
            first = await prepared(runtime, order)
            again = await prepared(runtime, replace(ORDER, env=environment(number)))
            assert first.command.env[:3] == environment(number)
            assert again is first


@pytest.mark.parametrize(
    "order",
    [
        replace(ORDER, isolation=Isolation()),
        replace(ORDER, on_end="true"),
        replace(ORDER, argv=[b"claude", b"--settings", b"none"]),
        replace(ORDER, env=[*ORDER.env, b"LARGE=" + b"x" * LARGE]),
        replace(ORDER, name="x" * LARGE),  # the core refuses it
    ],
    ids=["a feature", "a hook", "settings in the command", "large", "a large name"],
)
async def test_what_more_is_looked_at_for_is_not_kept(tmp_path: Path, order: m.Spawn) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        try:
            first = await prepared(runtime, order)
        except Exception as why:  # noqa: BLE001 - as where no sandbox can be made
            pytest.skip(str(why))
        assert await prepared(runtime, order) is not first


async def test_a_run_that_ends_with_its_client_is_that_client_s(tmp_path: Path) -> None:
    tied = replace(ORDER, tied=True)
    async with shell(tmp_path, FakeLauncher) as runtime:
        first = await prepared(runtime, tied, connection=1)
        second = await prepared(runtime, tied, connection=2)
        assert second.command is first.command
        assert (first.asked.tied_to, second.asked.tied_to) == (1, 2)


async def test_what_starts_in_a_run_is_decided_about_each_time(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        above = await spawned(runtime)
        first = await prepared(runtime)
        inside = replace(ANN, run=above)
        below = await prepared(runtime, peer=inside)
        assert below is not first
        assert await prepared(runtime, peer=inside) is not below
        assert await prepared(runtime) is first


async def test_the_config_is_followed(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        first = await prepared(runtime)
        assert first.parts.gateway
        (tmp_path / "sfad.toml").write_text("[gateway]\nenabled = false")
        runtime.reload()
        assert not (await prepared(runtime)).parts.gateway


async def test_a_part_that_was_loaded_takes_part(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        first = await prepared(runtime)
        await prepared(runtime, replace(ORDER, on_end="true"))
        assert await prepared(runtime) is not first


async def test_as_many_are_kept_as_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "MOST_KNOWN", 2)
    orders = [replace(ORDER, argv=[b"true", b"%d" % n]) for n in range(3)]
    async with shell(tmp_path, FakeLauncher) as runtime:
        first, second, third = [await prepared(runtime, each) for each in orders]
        assert await prepared(runtime, orders[1]) is second
        assert await prepared(runtime, orders[2]) is third
        assert await prepared(runtime, orders[0]) is not first


# ---- With real processes and files


def told_by(client: Any, daemon: Any, request: m.Spawn) -> str:
    """Return what a run prints."""
    run = client.call(request, m.RunReply).run.id
    client.call(m.Wait(id=0, run=run), m.RunReply)
    return str(daemon.sfactl("logs", run).stdout)


def test_what_a_user_changes_on_the_disk_is_found(start: Start, tmp_path: Path) -> None:
    """A file with settings where there was none, one that changes, one that may not be read any
    more, and a directory that is replaced."""
    daemon, home, place = start(), tmp_path / "home", tmp_path / "home/place"
    place.mkdir(parents=True)
    with daemon.client() as client:

        def prints(words: str) -> str:
            request = m.Spawn(
                id=0, argv=[b"sh", b"-c", words.encode()], cwd=os.fsencode(place),
                env=[b"PATH=" + os.fsencode(os.environ["PATH"]), b"HOME=" + os.fsencode(home)],
            )  # fmt: skip
            return told_by(client, daemon, request)

        def becomes(what: Callable[[str], bool]) -> None:
            wait_until(lambda: what(prints("echo $OPENAI_BASE_URL; echo $ANTHROPIC_BASE_URL")), "")

        becomes(lambda said: said.count("http://127.0.0.1") == 2)
        (place / ".env").write_text("OPENAI_BASE_URL=http://own.example")
        becomes(lambda said: said.count("http://127.0.0.1") == 1)
        (place / ".env").write_text("ANTHROPIC_BASE_URL=http://own.example")
        becomes(lambda said: said.startswith("http://127.0.0.1"))
        (place / ".env").unlink()
        becomes(lambda said: said.count("http://127.0.0.1") == 2)
        assert prints("ls; umask") == "0022\n"
        place.rename(tmp_path / "elsewhere")
        place.mkdir()
        (place / "new").touch()
        assert prints("ls; umask") == "new\n0022\n"
        place.joinpath("new").unlink()
        place.rmdir()
        run = client.call(
            m.Spawn(id=0, argv=[b"sh", b"-c", b"ls; umask"], cwd=os.fsencode(place), env=[]),
            m.RunReply,
        ).run
        assert run.status == "failed"
