"""What shims do in a daemon: first in the PATH of runs that find some, and nothing in others."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from sfad.agents.setup_reader import NO_SETUPS
from sfad.core.state.access import Peer
from sfad.daemon.loop.runtime import Runtime
from sfad.processes.launcher import LaunchSpec
from sfad.protocol.types import Status
from tests.features.calls import calls
from tests.harness import until
from tests.loop.shell import AGENT, shell, spawned, spec_of
from tests.processes.fake import FakeLauncher

ENV = [b"PATH=/bin", b"BASH_ENV=/home/ann/.env", b"SFA_SHIMS=/of/another/run"]


def status(runtime: Runtime, uid: int) -> dict[str, object]:
    peer = Peer(uid, "ann")
    return runtime.parts.status(peer, runtime.machine.scope(peer))


async def launched(runtime: Runtime) -> str:
    run = await spawned(runtime, replace(AGENT, env=ENV), Peer(os.geteuid(), "ann"))
    await until(lambda: runtime.catalogue.live[run].run.status is Status.RUNNING)
    return run


async def test_a_run_that_finds_no_shim_calls_nothing_of_them(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        with calls("shims") as found:
            run = await launched(runtime)
            live = runtime.catalogue.live[run]
            live.parts.gateway = True
            assert runtime.parts.launch(live, spec_of(ENV), []) == spec_of(ENV)
        assert not found
        (tmp_path / "shims").mkdir()
        (tmp_path / "shims/claude").touch(0o755)
        runtime.reload()
        with calls("shims") as found:
            await launched(runtime)
        assert found


async def test_installed_shims_come_before_automatic_ones(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        live = runtime.catalogue.live[await launched(runtime)]
        live.parts.gateway, live.setups = True, replace(NO_SETUPS, programs=("codex",))
        automatic = os.fsencode(tmp_path / "automatic/codex/shims")
        given = spec_of([b"PATH=/bin", b"X=1"])
        env = [
            b"PATH=" + automatic + b":/bin",
            b"X=1",
            b"BASH_ENV=" + automatic + b"/.bash_env",
            b"SFA_SHIMS=" + automatic,
        ]
        expected = replace(given, env=env, stand_ins=[automatic])
        assert runtime.parts.launch(live, given, []) == expected
        (tmp_path / "shims").mkdir()
        (tmp_path / "shims/claude").touch(0o755)
        shown = {"shim_dir": str(tmp_path / "shims"), "shims": ["claude"]}
        assert status(runtime, os.geteuid()).items() >= shown.items()
        others = status(runtime, os.geteuid() + 1)
        assert others.items() >= (shown | {"shims": []}).items()
        given = spec_of([b"PATH=/bin", b"BASH_ENV=/home/ann/.env"])
        found = runtime.parts.launch(live, given, [])
        env, stand_ins = found.env, found.stand_ins
        assert stand_ins == [os.fsencode(tmp_path / "shims"), automatic]
        assert env[0] == b"PATH=" + b":".join([*stand_ins, b"/bin"])
        assert b"SFA_BASH_ENV=/home/ann/.env" in env


async def test_the_shims_of_another_run_are_not_inherited(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        await launched(runtime)
        assert isinstance(runtime.resources.launcher, FakeLauncher)
        (spec,) = (call[3] for call in runtime.resources.launcher.calls if call[0] == "launch")
        assert isinstance(spec, LaunchSpec)
        assert ENV[1] in spec.env
        assert not [item for item in spec.env if item.startswith(b"SFA_SHIMS=")]
