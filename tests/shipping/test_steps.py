"""The first step of a run that was sent with files, and the helper that packs its changes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sfad.features.fleet.files import packing as shipping
from sfad.features.fleet.files.steps import pack_words, step_words
from sfad.processes.helper import ANSWER, completed

from .test_archives import BEFORE, content_of, fill, packed, repository, work

pytestmark = pytest.mark.needs("git")

MOST = 1 << 20
NAME = "c" * 32


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "copy" / "own").mkdir(parents=True)
    (tmp_path / "copy" / "archive").write_bytes(
        packed(repository(fill(tmp_path / "here", BEFORE))).getvalue()
    )
    return tmp_path / "copy"


def begin(
    copy: Path, *command: str, within: str = "", most: int = MOST
) -> subprocess.CompletedProcess[str]:
    cwd = os.fsencode(f"{copy}/own/files/{within}".rstrip("/"))
    step = step_words(copy=str(copy), cwd=cwd, git=True, author="", most=most, sealed=False)
    words = completed(
        step, [os.fsencode(f"/bin/{command[0]}")], [os.fsencode(word) for word in command]
    )
    return subprocess.run(words, capture_output=True, text=True, cwd=copy / "own", check=False)


def test_the_command_starts_in_the_copy_and_so_does_a_further_attempt(copy: Path) -> None:
    done = begin(
        copy, "sh", "-c", "pwd; echo 22 > ../changed; git log --format=%an-%s", within="empty"
    )
    assert (done.returncode, done.stdout) == (0, f"{copy}/own/files/empty\nsfad-shipped\n"), done
    assert begin(copy, "cat", "changed").stdout == "22\n"
    assert sorted(path.name for path in (copy / "own").iterdir()) == ["files"]


def test_what_a_killed_step_has_left_is_begun_again(copy: Path) -> None:
    fill(copy / "own" / "new", {"half": b"", ".git/config": b""})
    assert begin(copy, "ls").stdout.split() == ["changed", "gone", "kept", "link"]
    assert not (copy / "own" / "new").exists()


def test_files_that_cannot_be_unpacked_end_the_attempt(copy: Path) -> None:
    done = begin(copy, "true", most=2)
    assert (
        done.returncode,
        "cannot be unpacked: the archive has more than 2 bytes" in done.stderr,
    ) == (126, True), done
    (copy / "archive").write_bytes(b"")
    done = begin(copy, "true")
    assert (done.returncode, "cannot be unpacked: the archive is damaged" in done.stderr) == (
        126,
        True,
    ), done
    assert not (copy / "own" / "files").exists()


def test_changes_are_packed(copy: Path) -> None:
    begin(copy, "true")
    work(copy / "own" / "files")
    old = copy / "own" / ("d" * 32)
    old.write_bytes(b"")
    os.utime(old, (1e9, 1e9))
    found = pack(copy)
    assert found == {"size": (copy / "own" / NAME).stat().st_size}
    assert not old.exists()
    with (copy / "own" / NAME).open("rb") as archive:
        listed = shipping.read_changes(archive)
    assert [each.path for each in listed.changes] == [
        ".gitignore",
        "changed",
        "gone/deep",
        "new/deep",
    ]
    assert "ignored.log" in content_of(copy / "own" / "files")


def test_why_changes_cannot_be_packed(copy: Path) -> None:
    assert pack(copy) == {"error": "the run has not unpacked its files"}
    begin(copy, "true")
    (copy / "own" / "files" / "large").write_bytes(bytes(2000))
    assert "fleet.ship_max of the node is 1000" in str(pack(copy, most=1000)["error"])


def pack(copy: Path, most: int = MOST) -> dict[str, object]:
    words = pack_words(copy=str(copy), name=NAME, git=True, most=most, patch=False)
    done = subprocess.run(
        words, capture_output=True, cwd=copy / "own", env={"PATH": os.environ["PATH"]}, check=True
    )
    found: dict[str, object] = json.loads(done.stdout.rpartition(b"\n" + ANSWER)[2])
    return found
