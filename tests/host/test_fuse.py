"""Whose FUSE mount a file is on, by what /proc says; the server is not asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sfad.host.linux import descriptors
from tests.harness import unanswered, with_fuse
from tests.users import FIRST


@with_fuse
@pytest.mark.parametrize("user", [0, FIRST])
def test_a_mount_is_its_makers(tmp_path: Path, user: int) -> None:
    with unanswered(tmp_path / "fuse", user):
        file = os.open(tmp_path / "fuse", os.O_PATH)
        try:
            assert descriptors.of_another_user(file) == (user != 0)
        finally:
            os.close(file)


def test_what_is_not_fuse(tmp_path: Path) -> None:
    """Also what is on no mount that a process can see: pipes and anonymous files."""
    opened = [
        *os.pipe(),
        os.memfd_create("test"),
        os.open("/dev/null", os.O_RDONLY),
        os.open(tmp_path, os.O_RDONLY),
    ]
    try:
        assert not any(map(descriptors.of_another_user, opened))
    finally:
        for descriptor in opened:
            os.close(descriptor)
