"""What an isolated run sees: programs and what is named, without the sockets in it, and nothing
that a run could add."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.features.isolation import view
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo
from tests.conftest import Start
from tests.harness import Daemon, ended, running, spawn, started
from tests.users import FIRST, needs_root, open_directory

from .test_escaping import odd_sockets

pytestmark = pytest.mark.needs("bwrap")

HIDDEN = "a secret of the home"


USUAL = [
    ".ssh",
    ".gnupg",
    ".pki",
    ".password-store",
    ".local/share/keyrings",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".kube",
    ".docker",
    ".config/containers",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".vault-token",
    ".terraform.d",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".m2/settings.xml",
    ".gem/credentials",
    ".pgpass",
    ".my.cnf",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/Signal",
    ".config/Slack",
    ".config/systemd",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".config/sfad",
    ".local/state/sfad",
    ".local/share/containers",
    ".vscode-server",
    ".cursor-server",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".config/opencode",
    ".local/share/opencode",
    ".local/state/opencode",
    ".cache/opencode",
    ".aider",
]
"""Places of secrets, which are hidden in a home that is shown."""


class Desk:
    """A home with a secret and programs, a working directory in it, and a daemon."""

    def __init__(self, daemon: Daemon, client: Client, top: Path) -> None:
        self.daemon, self.client, self.top = daemon, client, top
        self.home, self.work = top / "home", top / "home" / "work"
        self.work.mkdir(parents=True)
        self.path: list[Path] = []
        self.write("vault/lib/key", HIDDEN)
        self.program("vault/bin/keys")

    def write(self, name: str, text: str) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(
        self, name: str, text: str = "cat $(dirname $(readlink -f $0))/../lib/* 2>&1"
    ) -> Path:
        path = self.write(name, f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def run(
        self, argv: Sequence[object], cwd: Path | None = None, readable: Sequence[Path] = ()
    ) -> RunInfo:
        """Return how an isolated run has ended."""
        env = {
            "HOME": self.home,
            "PATH": ":".join(map(str, [*self.path, "/usr/bin", "/bin"])),
            "PYTHONPATH": ":".join(sys.path),
        }
        env |= {"SFAD_SOCKET": self.daemon.socket, "SSL_CERT_FILE": self.home / "certificates.pem"}
        return ended(
            self.client,
            started(
                self.client,
                list(map(str, argv)),
                cwd=os.fsencode(cwd or self.work),
                env=[os.fsencode(f"{name}={value}") for name, value in env.items()],
                isolation=Isolation(readable=[os.fsencode(path) for path in readable]),
            ).id,
        )

    def said(self, run: RunInfo) -> str:
        """Return what a run has printed."""
        return self.daemon.output(run.id) + self.daemon.errors(run.id)


@pytest.fixture
def desk(common: Daemon, tmp_path: Path) -> Iterator[Desk]:
    with common.client() as client:
        yield Desk(common, client, tmp_path)


def test_a_home_is_empty_but_for_programs(desk: Desk) -> None:
    """They are found by PATH, by the links to the command, and by the names that installers use."""
    desk.write(".npmrc", HIDDEN)
    desk.write(".gitconfig", "[user]\n\tname = somebody\n")
    desk.write(".config/git/config", '[url "https://somebody:word@code.example/"]\n')
    desk.write("certificates.pem", "trusted")
    desk.program(".local/share/uv/tools/ruler/bin/ruler")
    desk.write(".local/share/uv/tools/ruler/lib/part", "part of ruler\n")
    desk.program("kept/node/bin/node")
    desk.write("kept/node/lib/part", "part of node\n")
    desk.program("kept/node/lib/node_modules/tool/main", "echo tool")
    (desk.home / "shelf" / "bin").mkdir(parents=True)
    (desk.home / "shelf" / "bin" / "tool").symlink_to("../../kept/node/lib/node_modules/tool/main")
    (desk.home / ".local" / "bin").mkdir()
    (desk.home / ".local" / "bin" / "ruler").symlink_to("../share/uv/tools/ruler/bin/ruler")
    (desk.home / "current").symlink_to("kept/node")
    desk.program("bin/mine", "echo mine")
    desk.write("lib/part", HIDDEN)
    desk.program("plain/bin/plain", "echo plain")
    desk.write("plain/notes", HIDDEN)
    desk.program("work/env/bin/python")
    desk.write("work/env/lib/part", "")
    desk.path = [
        desk.home,
        desk.home / ".local",
        desk.home / ".local" / "bin",
        desk.home / "current" / "bin",
        desk.home / "shelf" / "bin",
    ]
    desk.path += [desk.home / "bin", desk.home / "plain" / "bin", desk.work / "env" / "bin"]
    script = (
        "node; ruler; mine; plain; cat ~/.gitconfig $SSL_CERT_FILE; ls -A ~ ~/.config; "
        "touch ~/made env/bin/new; grep -r secret ~"
    )
    said = desk.said(desk.run(["sh", "-c", script]))
    assert "part of node" in said
    assert "part of ruler" in said
    assert "name = somebody\ntrusted" in said
    assert HIDDEN not in said
    assert ".npmrc" not in said
    assert "vault" not in said
    assert "mine\nplain\n" in said
    assert (desk.work / "env" / "bin" / "new").exists()
    assert not (desk.home / "made").exists()
    assert desk.said(desk.run(["tool"])) == "tool\n"


def test_what_is_named_is_seen(desk: Desk) -> None:
    """In the home too, but for usual places of secrets in it."""
    for name in USUAL:
        desk.write(name, "hidden here")
    script = "cat ~/vault/lib/key; echo; touch ~/vault/lib/new; grep -rls 'hidden here' ~"
    said = desk.said(desk.run(["sh", "-c", script], readable=[desk.home])).splitlines()
    assert said[0] == HIDDEN
    assert len(said) == 2
    assert "Read-only" in said[1]
    (desk.top / "link").symlink_to(desk.home / "vault")
    named = (desk.top / "link", f"leads to {desk.home}/vault by the link")
    for path, why in (
        named,
        (desk.top / "gone", "does not exist"),
        (desk.daemon.state_dir, "belongs to the daemon"),
    ):
        run = desk.run(["true"], readable=[path])
        assert run.exit_code == 126
        assert why in desk.said(run)


def test_a_home_as_working_directory_shows_nothing(desk: Desk) -> None:
    run = desk.run(["sh", "-c", "ls -A; touch new"], cwd=desk.home)
    assert (run.exit_code, "vault" in desk.said(run)) == (1, False)
    assert "is the home directory, of which the command sees nothing" in desk.said(run)
    assert "Read-only" in desk.said(run)
    run = desk.run(["ls", "/root", "/home", "/var", "/srv", desk.home], cwd=Path("/"))
    assert HIDDEN not in desk.said(run)
    assert "vault" not in desk.said(run)


@pytest.mark.parametrize("program", ["link/keys", "tool"])
def test_no_link_of_the_run_shows_more(desk: Desk, program: str) -> None:
    """The command, or a directory in PATH, is a link in the working directory, which the agent
    changes."""
    (desk.work / "link").symlink_to(desk.home / "vault" / "bin")
    (desk.work / "tool").symlink_to(desk.home / "vault" / "bin" / "keys")
    desk.path = [desk.work / "link"]
    run = desk.run([desk.work / program])
    assert run.exit_code == 126
    assert HIDDEN not in desk.said(run)
    assert "would not see" in desk.said(run)
    assert HIDDEN not in desk.said(desk.run(["sh", "-c", "keys; cat ~/vault/lib/key"]))


def test_a_child_shows_itself_no_more(desk: Desk) -> None:
    """By its PATH, its command or its working directory."""
    vault = desk.home / "vault"
    child = f"""
import subprocess, sys
for words in (
    ["--env", "PATH={vault}/bin:/usr/bin:/bin", "--", "keys"],
    ["--", "{vault}/bin/keys"],
    ["--cwd", "{vault}", "--", "ls"],
    ["--env", "PYTHONPATH={vault}", "--", "cat", "{vault}/lib/key"],
    ["--readable", "{vault}", "--", "true"],
):
    words = [sys.executable, "-m", "sfactl", "run", *words]
    done = subprocess.run(words, capture_output=True, text=True)
    print(done.returncode, done.stdout + done.stderr)
"""
    (desk.work / "child.py").write_text(child)
    run = desk.run([sys.executable, "child.py"])
    said = desk.said(run)
    assert run.exit_code == 0, said
    assert HIDDEN not in said
    assert [line.split()[0] for line in said.splitlines() if line[:1].isdigit()] == [
        "126",
        "126",
        "126",
        "1",
        "2",
    ], said
    assert "leave out --readable" in said


def test_what_was_asked_is_checked(common: Daemon) -> None:
    with common.client() as client:
        reply = spawn(client, ["true"], isolation=Isolation(readable=[b"relative"]))
        assert isinstance(reply, m.Error)
        assert "each readable path must be absolute" in reply.message


CONNECT = """
import json, socket, sys
found = {}
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            found[path] = one.connect(path)
        except OSError as error:
            found[path] = str(error)
print(json.dumps(found))
"""


def test_sockets_in_what_is_readable_are_covered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those too that were bound by a relative path, renamed, linked, or have a newline in their
    names."""
    (desk.work / "connect.py").write_text(CONNECT)
    shared = desk.top / "shared"
    shared.mkdir()
    with ExitStack() as stack:
        paths = list(odd_sockets(stack, shared / "odd").values())
        run = desk.run([sys.executable, "connect.py", *paths], readable=[shared])
    assert json.loads(desk.said(run)) == dict.fromkeys(paths, "[Errno 111] Connection refused")
    monkeypatch.setattr(view, "MOST_FILES", 3)
    assert view.below(str(shared)) == (set(), False)


@needs_root
def test_a_socket_where_root_cannot_mount_breaks_no_run(start: Start) -> None:
    """A user's home is closed to root within a sandbox: nothing can be covered there, and nothing
    reached."""
    with open_directory() as place, socket.socket(socket.AF_UNIX) as one:
        home, work = place / "home", place / "work"
        home.mkdir()
        work.mkdir()
        one.bind(str(home / "sfad.sock"))
        one.listen()
        home.chmod(0o700)
        os.chown(home, FIRST, FIRST)
        (work / "connect.py").write_text(CONNECT)
        with start().client() as client:
            isolation = Isolation(readable=[os.fsencode(place)])
            argv = [sys.executable, "connect.py", str(home / "sfad.sock")]
            assert (
                ended(
                    client, started(client, argv, cwd=os.fsencode(work), isolation=isolation).id
                ).exit_code
                == 0
            )
            run = ended(
                client,
                started(
                    client,
                    ["cat", str(home / "sfad.sock")],
                    cwd=os.fsencode(work),
                    isolation=isolation,
                ).id,
            )
            assert run.exit_code == 1


# ---- keyrings

FORBIDDING = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 250}.get(os.uname().machine, 219)
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = struct.pack("HP", len(steps), ctypes.addressof(code))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, program) == 0
assert libc.syscall(number, 1, None) == -1 and ctypes.get_errno() == 1
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Forbids keyctl(2), as systemd-nspawn and containers do."""

JOINING = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
join, add = {"x86_64": (250, 248)}.get(os.uname().machine, (219, 217))
assert libc.syscall(join, 1, None) > 0
key = libc.syscall(add, b"user", b"sfad-test-key", b"secret", 6, -3)
assert key > 0 and libc.syscall(join, 5, key, 0x3F000000) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Has a session keyring with a key that only its possessor may see."""


def test_where_keyrings_are_forbidden(tmp_path: Path) -> None:
    """A run starts, and doctor has tried it."""
    work = tmp_path / "work"
    work.mkdir()
    words = [sys.executable, "-c", FORBIDDING]
    with running(tmp_path, wrap=words) as daemon, daemon.client() as client:
        run = ended(
            client, started(client, ["true"], cwd=os.fsencode(work), isolation=Isolation()).id
        )
        assert run.exit_code == 0, daemon.errors(run.id)
        asked = [*words, sys.executable, "-m", "sfactl", "doctor", "--json"]
        done = subprocess.run(asked, capture_output=True, text=True, env=daemon.env)
    (found,) = (each for each in json.loads(done.stdout)["findings"] if each["name"] == "isolation")
    assert found["verdict"] == "ok", found


def test_doctor_tells_of_a_sandbox_that_fails(common: Daemon) -> None:
    """Here mount(2) is forbidden."""
    forbidding = FORBIDDING.replace(
        '{"x86_64": 250}.get(os.uname().machine, 219)',
        '{"x86_64": 165}.get(os.uname().machine, 40)',
    )
    forbidding = forbidding.replace(
        "assert libc.syscall(number, 1, None) == -1 and ctypes.get_errno() == 1\n", ""
    )
    asked = [sys.executable, "-c", forbidding, sys.executable, "-m", "sfactl", "doctor", "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, env=common.env)
    (found,) = (each for each in json.loads(done.stdout)["findings"] if each["name"] == "isolation")
    assert found["verdict"] == "warn", found
    assert "Operation not permitted" in found["detail"]


def test_the_keyring_of_a_login_stays_outside(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with (
        running(tmp_path, wrap=[sys.executable, "-c", JOINING]) as daemon,
        daemon.client() as client,
    ):
        keys = []
        for isolation in (None, Isolation()):
            run = ended(
                client,
                started(
                    client, ["cat", "/proc/keys"], cwd=os.fsencode(work), isolation=isolation
                ).id,
            )
            keys.append(daemon.output(run.id))
    assert "sfad-test-key" in keys[0]
    assert "sfad-test-key" not in keys[1]
