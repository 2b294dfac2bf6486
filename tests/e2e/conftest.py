"""A daemon of root's that serves every user, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Daemon, running
from tests.users import open_directory


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that every user can enter."""
    with open_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def everyones(place: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Root's daemon with the `CONFIG` of the file."""
    with running(place, config=request.module.CONFIG, mode="cgroup") as daemon:
        yield daemon
