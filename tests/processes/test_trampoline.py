"""The contract of each trampoline: the image for x86_64, what this compiler makes of its source,
and the one in Python."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

import pytest

from sfad.processes.credentials import LIMIT_KINDS, Credentials
from sfad.processes.trampoline import executable, image
from sfad.processes.trampoline.executable import ATTACH, ENTER, EXEC, INTERPRET, REPORT, SHELL
from tests.processes.trampoline_image import compiled, source

KINDS = ["image", pytest.param("compiled", marks=pytest.mark.needs("cc")), "python"]


@dataclass(frozen=True)
class Outcome:
    """How one execution ended."""

    printed: str
    stage: int
    errno: int
    code: int
    door: str


class Bench:
    """Executes a trampoline as `ProcessCreator` does, but without limits and signals."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.directory = directory
        self._path, self._argv = self._command(kind)

    def _command(self, kind: str) -> tuple[bytes, list[bytes]]:
        if kind == "python":
            made = executable.python()
            return made.path, [*made.prefix, SHELL]
        if platform.machine() != "x86_64":
            pytest.skip("the image is for x86_64")
        program = self.directory / "trampoline"
        program.write_bytes(compiled().image if kind == "compiled" else image.IMAGE)
        program.chmod(0o755)
        return os.fsencode(program), [SHELL]

    def tool(self, name: str, text: str, mode: int = 0o755) -> None:
        """Write a file in the directory."""
        (self.directory / name).write_text(text)
        (self.directory / name).chmod(mode)

    def run(
        self, files: list[str], *argv: str, cwd: str = "", gate: bytes = b"\n", closed: bool = False
    ) -> Outcome:
        """Execute a command with the environment A=b. With `closed` the door cannot be written
        to."""
        self.tool("door", "", 0o600)
        printed, report, gates = os.pipe(), os.pipe(), os.pipe()
        os.write(gates[1], gate)
        door = os.open(self.directory / "door", os.O_RDONLY if closed else os.O_WRONLY)
        near = (printed[1], printed[1], door, report[1], gates[0])
        # above the numbers that they will get
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in near]
        targets = (1, 2, executable.FD_DOOR, executable.FD_REPORT, executable.FD_GATE)
        actions = [
            (os.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(high, targets, strict=True)
        ]
        words = [
            b"027",
            os.fsencode(cwd or self.directory),
            *map(os.fsencode, files),
            b"",
            *map(os.fsencode, argv),
        ]
        pid = os.posix_spawn(self._path, [*self._argv, *words], {"A": "b"}, file_actions=actions)
        for fd in {*high, *near, gates[1]}:
            os.close(fd)
        with os.fdopen(printed[0], "rb") as file, os.fdopen(report[0], "rb") as failure:
            text, content = file.read().decode(), failure.read()
        ended = os.waitid(os.P_PID, pid, os.WEXITED)
        code = ended.si_status if ended and ended.si_code == os.CLD_EXITED else -1
        stage, number = REPORT.unpack(content) if content else (0, 0)
        return Outcome(text, stage, -number, code, (self.directory / "door").read_text())


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(request.param, tmp_path)


def test_it_becomes_the_command(bench: Bench) -> None:
    show = 'umask; pwd; echo "$0" $A "$@"'
    found = bench.run(["/nowhere/sh", "/bin/sh"], "name", "-c", show, "zero", "", "two words")
    assert found == Outcome(f"0027\n{bench.directory}\nzero b  two words\n", 0, 0, 0, "0")


def test_it_gives_a_script_to_the_shell(bench: Bench) -> None:
    bench.tool("script", 'echo "$0" "$@"')
    assert bench.run(["none", "./script", "later"], "script", "x", "y z") == Outcome(
        "./script x y z\n", 0, 0, 0, "0"
    )
    assert bench.run(["script"], "script") == Outcome("script\n", 0, 0, 0, "0")


def test_it_searches(bench: Bench) -> None:
    bench.tool("denied", "", 0o644)
    bench.tool("orphan", "#!/no/such/interpreter\n")
    bench.tool("tool", "#!/bin/sh\necho tool\n")
    (bench.directory / "loop").symlink_to("loop")
    searched = [
        "none",
        "denied/below",
        "denied",
        "orphan",
        "loop",
        "x" * 300,
        "y/" * 3000,
        "./tool",
    ]
    assert bench.run(searched, "tool") == Outcome("tool\n", 0, 0, 0, "0")
    for files, stage, number in (
        ([], EXEC, errno.ENOENT),
        (["none", "denied/below"], EXEC, errno.ENOENT),
        (["denied", "none"], EXEC, errno.EACCES),
        (["none", "orphan", "nothing"], INTERPRET, errno.ENOENT),
        (["x" * 300, "none"], EXEC, errno.ENAMETOOLONG),
    ):
        assert bench.run(files, "tool") == Outcome("", stage, number, 127, "0")


def test_failures_before_the_command(bench: Bench) -> None:
    assert bench.run(["/bin/sh"], "sh", cwd="/no/such/directory") == Outcome(
        "", ENTER, errno.ENOENT, 127, "0"
    )
    assert bench.run(["/bin/sh"], "sh", closed=True) == Outcome("", ATTACH, errno.EBADF, 127, "")


SHOW = "id -u; id -g; id -G; ulimit -n; ulimit -Hn; ulimit -c; umask; cat /proc/self/status"
KEPT = ("Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")


@pytest.mark.needs("root")
@pytest.mark.parametrize("no_new_privs", [False, True])
def test_it_becomes_a_user_when_its_gate_says_so(bench: Bench, no_new_privs: bool) -> None:
    bench.directory.chmod(0o755)
    limits = [resource.getrlimit(kind) for kind in range(LIMIT_KINDS)]
    limits[resource.RLIMIT_NOFILE], limits[resource.RLIMIT_CORE] = (100, 200), (0, 0)
    pairs = tuple((soft % (1 << 64), hard % (1 << 64)) for soft, hard in limits)
    user = Credentials(61001, 61002, tuple(range(62000, 62300)), pairs, no_new_privs=no_new_privs)
    found = bench.run(
        ["/bin/sh"], "sh", "-c", SHOW, cwd="/", gate=executable.AS_USER + user.record()
    )
    assert (found.stage, found.code) == (0, 0), found
    lines = found.printed.splitlines()
    groups = " ".join(map(str, (61002, *range(62000, 62300))))
    assert lines[:7] == ["61001", "61002", groups, "100", "200", "0", "0027"]
    status = dict(line.split(":\t", 1) for line in lines[7:] if line.startswith(KEPT))
    assert status == {
        "Uid": "\t".join(["61001"] * 4), "Gid": "\t".join(["61002"] * 4), "CapInh": "0" * 16,
        "CapPrm": "0" * 16, "CapEff": "0" * 16, "CapAmb": "0" * 16,
        "NoNewPrivs": str(int(no_new_privs)),
    }  # fmt: skip


@pytest.mark.needs("root")
def test_the_user_enters_the_directory(bench: Bench) -> None:
    secret = bench.directory / "secret"
    secret.mkdir(mode=0o700)
    limits = tuple(
        (soft % (1 << 64), hard % (1 << 64))
        for soft, hard in map(resource.getrlimit, range(LIMIT_KINDS))
    )
    gate = executable.AS_USER + Credentials(61001, 61001, (), limits).record()
    assert bench.run(["/bin/sh"], "sh", cwd=str(secret), gate=gate) == Outcome(
        "", ENTER, errno.EACCES, 127, "0"
    )


def test_a_shut_gate(bench: Bench) -> None:
    assert bench.run(["/bin/sh"], "sh", "-c", "echo executed", gate=b"") == Outcome(
        "", 0, 0, 127, "0"
    )


def test_the_image_is_of_this_source() -> None:
    assert source() == image.SOURCE, "trampoline.c has changed: make trampoline"


@pytest.mark.needs("cc")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the image is for x86_64")
def test_the_same_compiler_makes_the_same_image() -> None:
    """The contract holds for what others make; see `KINDS`."""
    made = compiled()
    if made.compiler == image.COMPILER:
        assert made == (image.COMPILER, image.SOURCE, image.CLONE_AT, image.IMAGE)
