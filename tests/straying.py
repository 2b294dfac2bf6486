"""Tests that read or write outside of their directories: each has to be red
(tests/test_surroundings.py)."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import Daemon, ended, started
from tests.outside import TRAP


def test_opens_a_file_for_writing() -> None:
    with suppress(OSError):
        Path("/nonexistent/opened").write_text("")


def test_makes_a_directory() -> None:
    with suppress(OSError):
        Path("/nonexistent/made").mkdir()


def test_reads_a_file_of_the_person() -> None:
    (Path(os.environ[TRAP]) / ".claude.json").read_bytes()


def test_has_a_file_in_its_home(daemon: Daemon) -> None:
    with daemon.client() as client:
        assert ended(client, started(client, ["touch", Path.home() / "in_home"]).id).exit_code == 0


def test_has_a_program_that_reads_a_file_of_the_person() -> None:
    subprocess.run(["cat", f"{os.environ[TRAP]}/.gitconfig"], stdout=subprocess.DEVNULL, check=True)


def test_leaves_a_temporary_file() -> None:
    subprocess.run(["mktemp", "--tmpdir", "left_in_tmp.XXX"], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no file system in memory")
def test_leaves_a_file_in_memory() -> None:
    subprocess.run(
        ["mktemp", "--tmpdir=/dev/shm", "sfad-left-XXX"], stdout=subprocess.DEVNULL, check=True
    )
