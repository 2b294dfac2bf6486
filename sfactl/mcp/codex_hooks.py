"""Asks Codex whether it trusts a hook that it is given, before a run depends on it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

import msgspec

SECONDS = 30.0
"""Codex 0.169 takes half a second to answer."""


class _Hook(msgspec.Struct, rename="camel"):
    command: str = ""
    trust_status: str = ""


class _Place(msgspec.Struct):
    hooks: list[_Hook] = []


class _Places(msgspec.Struct):
    data: list[_Place] = []


class _Answer(msgspec.Struct):
    id: int | str | None = None
    result: _Places | None = None


def trusts(
    codex: Sequence[str], options: Sequence[str], command: str, env: Mapping[str, str], cwd: str
) -> bool:
    """Return whether Codex, started so, says that it trusts the hook which executes `command`."""
    client = {"name": "sfactl", "version": "1"}
    asks = (
        {"id": 1, "method": "initialize", "params": {"clientInfo": client}},
        {"method": "initialized"},
        {"id": 2, "method": "hooks/list", "params": {"cwds": [cwd]}},
    )
    try:
        server = subprocess.Popen(
            [*codex, *options, "app-server"], cwd=cwd, env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return False
    bound = threading.Timer(SECONDS, server.kill)
    bound.start()
    try:
        assert server.stdin is not None
        assert server.stdout is not None
        os.write(server.stdin.fileno(), b"".join(msgspec.json.encode(ask) + b"\n" for ask in asks))
        for line in server.stdout:  # it ends with the server
            answer = msgspec.json.decode(line, type=_Answer)
            if answer.id == 2 and answer.result is not None:
                return any(
                    hook.command == command and hook.trust_status == "trusted"
                    for place in answer.result.data
                    for hook in place.hooks
                )
    except (OSError, ValueError):
        pass
    finally:
        bound.cancel()
        server.kill()
        server.communicate()
    return False
