"""A served launcher of each containment."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.processes.rig import Rig, rigged


@pytest.fixture
async def rig(containment: str) -> AsyncIterator[Rig]:
    """With the best trampoline of the machine."""
    async with rigged(containment) as made:
        yield made


@pytest.fixture(params=["elf", "python"])
def program(request: pytest.FixtureRequest) -> str:
    """Both trampolines."""
    return str(request.param)


@pytest.fixture
async def either(containment: str, program: str) -> AsyncIterator[Rig]:
    """Every containment with every trampoline."""
    async with rigged(containment, program=program) as made:
        yield made
