"""What a sandbox is made of: its filter, by a small interpreter of BPF, and what can be written in
it."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.isolation.kernel import compiled
from sfad.features.isolation.programs import places
from sfad.features.isolation.sandbox import impossible, tried
from sfad.features.isolation.visible import (
    SETTINGS,
    ForbiddenError,
    can_be_empty,
    followed,
    within_any,
    writable,
)
from sfad.host import probe

ALLOWED = 0x7FFF0000
MACHINES = {
    "x86_64": (
        0xC000003E,
        {
            "read": 0,
            "fcntl": 72,
            "ioctl": 16,
            "socket": 41,
            "clone": 56,
            "unshare": 272,
            "keyctl": 250,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "read": 63,
            "fcntl": 25,
            "ioctl": 29,
            "socket": 198,
            "clone": 220,
            "unshare": 97,
            "keyctl": 219,
        },
    ),
    "riscv64": (
        0xC00000F3,
        {
            "read": 63,
            "fcntl": 25,
            "ioctl": 29,
            "socket": 198,
            "clone": 220,
            "unshare": 97,
            "keyctl": 219,
        },
    ),
}


def judged(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Return what the filter says of a system call: 0, or the error that it fails with."""
    program = list(struct.iter_unpack("=HBBI", compiled(machine)))
    data = struct.pack(
        "=iIQ6Q", number, arch or MACHINES[machine][0], 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6]
    )
    loaded = at = 0
    while True:
        code, true, false, value = program[at]
        at += 1
        if code == 0x06:
            return 0 if value == ALLOWED else value & 0xFFFF
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += true if holds else false


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter(machine: str) -> None:
    arch, numbers = MACHINES[machine]
    new_user, signal = 0x10000000, 17
    for name, arguments, expected in (
        ("read", (), 0),
        ("keyctl", (), errno.EPERM),
        ("clone", (signal,), 0),
        ("clone", (0x3D0F00,), 0),  # a thread
        ("clone", (new_user | signal,), errno.EPERM),
        ("unshare", (0x200,), 0),
        ("unshare", (new_user,), errno.EPERM),
        ("unshare", (0x80,), errno.EPERM),  # CLONE_NEWTIME
        ("clone", (0x80,), 0),  # of an exit signal
        ("ioctl", (0, 0x5413), 0),
        ("ioctl", (0, 0x541C), errno.EPERM),  # TIOCLINUX
        ("fcntl", (3, 1), 0),
        ("fcntl", (3, 1024), errno.EPERM),  # F_SETLEASE
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0x5412 | 7 << 32), errno.EPERM),  # the kernel looks at the lower half
        ("socket", (1, 1), 0),
        ("socket", (2, 1), 0),
        ("socket", (16, 3, 0), 0),
        ("socket", (16, 3, 15), errno.EAFNOSUPPORT),
        ("socket", (40, 1), errno.EAFNOSUPPORT),
        # arguments that are numbers of other system calls
        ("ioctl", (0, numbers["keyctl"]), 0),
        ("clone", (numbers["keyctl"],), 0),
    ):
        assert judged(machine, numbers[name], *arguments) == expected, (name, arguments)
    assert judged(machine, 435) == errno.ENOSYS  # clone3
    assert judged(machine, 425) == errno.EPERM  # io_uring_setup
    assert judged(machine, 467) == errno.EPERM  # open_tree_attr
    assert judged(machine, 469) == 0  # file_setattr
    assert judged(machine, 470) == judged(machine, 999) == errno.ENOSYS
    assert judged(machine, numbers["read"], arch=arch ^ 1) == errno.ENOSYS
    if machine == "x86_64":
        assert judged(machine, 0x40000000 | numbers["read"]) == errno.ENOSYS


def test_a_machine_without_a_filter() -> None:
    with pytest.raises(ValueError, match="s390x"):
        compiled("s390x")


def test_bubblewrap_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BUBBLEWRAPS", ("/nosuch/bwrap",))
    assert "apt install bubblewrap" in (impossible(0) or "")


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("network", [True, False])
def test_a_sandbox_is_tried(monkeypatch: pytest.MonkeyPatch, network: bool) -> None:
    """As `sfactl doctor` does."""
    assert tried(network=network) is None
    monkeypatch.setattr(probe, "BUBBLEWRAPS", ("/bin/false",))
    assert tried(network=network) == "exit code 1"


def test_what_is_writable(tmp_path: Path) -> None:
    home, work, more = (tmp_path / name for name in ("home", "home/work", "more"))
    for path in (home / ".ssh", work / "sub", more):
        path.mkdir(parents=True)
    protected = [str(home), str(home / ".ssh")]

    def of(asked: list[Path], directory: Path) -> list[str]:
        return writable(
            [str(path) for path in asked], [], str(directory), protected, [str(tmp_path / "state")]
        )

    assert of([], work) == [str(work)]
    assert of([], home) == of([], tmp_path) == of([], tmp_path / "state" / "x") == []
    assert sorted(of([more, work / "sub"], work)) == sorted([str(work), str(more)])
    (tmp_path / "link").symlink_to(more)
    for asked in (
        tmp_path,
        tmp_path / "state",
        tmp_path / "nosuch",
        tmp_path / "link",
        tmp_path / "link" / "sub",
    ):
        with pytest.raises(ForbiddenError, match=str(asked)):
            of([asked], work)
    with pytest.raises(ForbiddenError, match=f"name {more} itself"):
        of([], tmp_path / "link")


def test_the_root_is_never_writable() -> None:
    assert writable([], [], "/", [], []) == []


def test_homes_that_cannot_be_empty() -> None:
    """Those in /etc/passwd of users that services have: programs or the whole machine would be
    gone."""
    gone = ["/bin", "/usr/sbin", "/dev", "/proc", "/", "/usr", "/var", "/tmp"]
    assert [
        home
        for home in (*gone, "/root", "/home/me", "/opt/service", "/nonexistent")
        if not can_be_empty(home)
    ] == gone


def test_settings_that_only_some_kernels_have_are_read_only() -> None:
    """Those that this machine has are attacked (`escaping`)."""
    for path in (
        "/proc/sysrq-trigger",
        "/proc/acpi/wakeup",
        "/proc/scsi/scsi",
        "/proc/fs/nfsd",
        "/proc/irq/1",
        "/proc/bus/pci",
    ):
        assert within_any(path, SETTINGS), path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            (
                "[user]\n\tname = A B\n\temail = a@b.example\n[http]\n\tproxy = "
                "http://proxy.example:8080\n\tother = a@b"
            ),
            True,
        ),
        ('[url "ssh://git@code.example/"]\n\tinsteadOf = https://code.example/\n', True),
        ('[url "https://me:word@code.example/"]\n\tinsteadOf = https://code.example/\n', False),
        ("[http]\n\textraHeader = Authorization: Basic abc\n", False),
        ("[hub]\n\tTOKEN = abc\n", False),
    ],
)
def test_settings_of_git_are_shown_without_credentials(
    tmp_path: Path, text: str, shown: bool
) -> None:
    (tmp_path / ".gitconfig").write_text(text)
    assert list(places([str(tmp_path)], {}, "true", [])) == (
        [str(tmp_path / ".gitconfig")] if shown else []
    )


def test_links_to_an_agents_own_files(tmp_path: Path) -> None:
    """A user's own may lead anywhere, but no link on the way may be one that the run can make."""
    work, secret = tmp_path / "work", tmp_path / "secret"
    for path in (work / "kept", secret):
        path.mkdir(parents=True)
    (tmp_path / ".claude").symlink_to("work/kept")
    own = [str(tmp_path / ".claude")]
    assert writable([], own, str(work), [], []) == [str(work)]
    (work / "kept").rmdir()
    (work / "kept").symlink_to(secret)
    with pytest.raises(ForbiddenError, match=f"leads to {secret} by {work}/kept"):
        writable([], own, str(work), [], [])


def test_missing_files_of_an_agent_are_made(tmp_path: Path) -> None:
    own = [str(tmp_path / name) for name in (".config/opencode", ".claude.json")]
    assert sorted(writable([], own, str(tmp_path / "work"), [], [])) == sorted(
        [*own, str(tmp_path / "work")]
    )
    assert (tmp_path / ".config" / "opencode").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".claude.json").read_text() == "{}\n"


@given(st.lists(st.sampled_from(["a", "b", "link", "up", "..", ".", "", "gone"]), max_size=6))
def test_paths_are_followed_as_the_kernel_does(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        top = os.path.realpath(directory)
        for path in ("a/b", "b"):
            os.makedirs(f"{top}/{path}")
        for path, target in (
            ("link", f"{top}/a"),
            ("a/link", "../b"),
            ("b/up", ".."),
            ("a/b/up", "../../link"),
        ):
            os.symlink(target, f"{top}/{path}")
        path = "/".join([top, *names])
        real, links = followed(path)
        assert real == os.path.realpath(path)
        assert links or real == os.path.normpath(path)
