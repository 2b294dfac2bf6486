"""A daemon of root's that serves every user, and a provider of models, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Daemon, running, wait_until
from tests.users import open_directory

from .provider import Provider, providing


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


@pytest.fixture(scope="module")
def module_provider() -> Iterator[Provider]:
    with providing() as made:
        yield made


@pytest.fixture
def provider(module_provider: Provider) -> Iterator[Provider]:
    """A provider that has billed nothing. It has one address for all tests of a file, so that they
    can share a daemon."""
    module_provider.forget()
    yield module_provider
    module_provider.released.set()
    wait_until(lambda: module_provider.under_way == 0, "no call is under way")
