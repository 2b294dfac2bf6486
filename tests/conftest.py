"""Fixtures every test may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import Daemon, running

Start = Callable[..., Daemon]


@pytest.fixture(params=["cgroup", "tags"])
def containment(request: pytest.FixtureRequest) -> str:
    """Both ways to hold a run's processes together."""
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons that must end well: `start(config=..., mode=...)`."""
    with ExitStack() as stack:

        def start_one(**options: str) -> Daemon:
            directory = tmp_path / f"d{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            return stack.enter_context(running(directory, **options))

        yield start_one


@pytest.fixture
def daemon(start: Start) -> Daemon:
    """One daemon with the built-in configuration and generous rates."""
    return start(config="[quotas]\nspawns_per_hour = 100000")
