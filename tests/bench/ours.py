"""The daemon that is measured, and many requests to it at once."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from sfactl.connection import Client
from sfad.protocol import messages as m
from tests.harness import Daemon, running

CONFIG = """
[quotas]
spawns_per_hour = 1000000
trees = 10000
trees_per_user = 10000
[limits]
max_time = "2h"
[defaults]
timeout = "1h"
"""
TRUE = ["/bin/true"]
SLEEP = ["/bin/sleep", "1000"]


@contextmanager
def directory() -> Iterator[Path]:
    """Make a directory, in memory if there is room: on a disk, deleting the files of one measurement slows the next one."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as path:
        yield Path(path)


@contextmanager
def daemon(environment: Mapping[str, str] | None = None, config: str = CONFIG) -> Iterator[Daemon]:
    """Start a daemon that has these variables in its environment."""
    with directory() as path, ExitStack() as stack:
        with patch.dict(os.environ, environment or {}):
            one = stack.enter_context(running(path, config=config, executed=True))
        yield one


def submitted(client: Client, count: int, argv: Sequence[str], **options: object) -> list[str]:
    """Start `count` runs of a command, all requested before the first answer is read."""
    words = [word.encode() for word in argv]
    asked = [m.Spawn(id=0, argv=words, cwd=b"/", env=[b"PATH=/bin"], **options) for _ in range(count)]  # type: ignore[arg-type]
    return [reply.run.id for reply in _answers(client, asked)]


def awaited(client: Client, runs: Sequence[str]) -> None:
    """Wait until all these runs have completed, with a request for each."""
    assert all(reply.run.status == "completed" for reply in _answers(client, [m.Wait(id=0, run=run) for run in runs]))


def _answers(client: Client, requests: Sequence[m.Request]) -> list[m.RunReply]:
    sender = threading.Thread(target=lambda: [client.send(request) for request in requests])
    sender.start()
    found: list[m.RunReply] = []
    while len(found) < len(requests):
        for answer in client.arrived():
            assert isinstance(answer.reply, m.RunReply), answer.reply
            found.append(answer.reply)
    sender.join()
    return found


def one_by_one(client: Client, count: int) -> None:
    """Start `count` runs of /bin/true, each when the one before has ended."""
    for _ in range(count):
        awaited(client, submitted(client, 1, TRUE))


def at_once(client: Client, count: int) -> None:
    """Start `count` runs of /bin/true, and wait for all."""
    awaited(client, submitted(client, count, TRUE))


Load = Callable[[Client, int], None]
