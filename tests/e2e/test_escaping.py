"""What an isolated agent tries against the daemon, other runs, files, kernel and network. Without a
sandbox much succeeds."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs
from sfad.protocol.types import Isolation, RunInfo
from tests import unprivileged
from tests.harness import GONE, Daemon, ended, running, started, wait_until

from . import escaping

pytestmark = pytest.mark.needs("bwrap")

MARKER = "MARKER-of-the-victim"
ONLY_WITHOUT_NETWORK = {
    "connect_to_loopback", "send_a_datagram", "see_interfaces", "see_connections_of_others",
    "connect_to_metadata",
}  # fmt: skip
"""What `--isolate` leaves open, and `--isolate=net` closes."""
AS_ANY_USER = {
    "signal_the_daemon", "signal_another_run", "signal_by_descriptor",
    "signal_by_owner_of_a_socket", "read_memory_by_call", "read_environment", "see_another_run",
    "bind_to_a_cpu", "slow_down", "change_limits", "share_memory_of_a_key", "list_the_state",
    "read_the_ledger", "write_the_spool", "read_output_of_another_run",
    "watch_output_of_another_run", "remove_the_socket", "read_a_secret", "move_secrets_into_view",
    "link_a_secret", "write_the_home", "change_a_mode", "see_others_in_tmp",
    "gain_by_setuid_programs", "connect_to_a_socket_in_tmp", "connect_to_a_socket_in_the_home",
    "connect_to_a_socket_bound_by_a_relative_path", "connect_to_a_renamed_socket",
    "connect_to_a_socket_bound_through_a_descriptor", "connect_to_a_link_to_a_socket",
    "connect_to_a_socket_with_a_newline", "read_any_secret", "lease_a_file_of_the_machine",
    "connect_to_an_abstract_socket", "listen_to_devices", "diagnose_sockets", "connect_to_loopback",
    "send_a_datagram", "see_interfaces", "see_connections_of_others",
}  # fmt: skip
"""What succeeds outside of a sandbox on any machine, with no more rights than the daemon's user
has."""


class Scene:
    """A daemon, a victim and what an agent may want to reach."""

    def __init__(
        self, daemon: Daemon, client: Client, work: Path, targets: dict[str, Any], env: list[bytes]
    ) -> None:
        self.daemon, self.client, self.work, self.env = daemon, client, work, env
        self._targets = targets

    def attacked(self, isolation: Isolation | None) -> dict[str, Any]:
        """Return what each attack has achieved."""
        argv = [self.daemon.python, "escaping.py", json.dumps(self._targets)]
        run = ended(
            self.client,
            started(
                self.client, argv, cwd=os.fsencode(self.work), env=self.env, isolation=isolation
            ).id,
        )
        said = output(self.daemon, run)
        assert run.exit_code == 0, (said.read_text(), said.with_suffix(".err").read_text())
        found: dict[str, Any] = json.loads(said.read_text())
        return found


def output(daemon: Daemon, run: RunInfo) -> Path:
    return daemon.state_dir / "output" / f"{run.id}.out"


@contextmanager
def sockets(directory: Path, home: Path) -> Iterator[dict[str, Any]]:
    """Listen where an agent may look for services of the machine."""
    with ExitStack() as stack:
        abstract = f"sfad-test-{directory}"
        found: dict[str, Any] = {
            "abstract": abstract,
            "listener": str(directory / "l"),
            "home_listener": str(home / "l"),
        }
        for address in ("\0" + abstract, found["listener"], found["home_listener"]):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(address)
            one.listen()
            if not address.startswith("\0"):
                os.chmod(address, 0o666)  # noqa: S103 - of a socket of the test
        found |= odd_sockets(stack, directory / "odd")
        for name, kind in (("port", socket.SOCK_STREAM), ("udp_port", socket.SOCK_DGRAM)):
            other = stack.enter_context(socket.socket(socket.AF_INET, kind))
            other.bind(("127.0.0.1", 0))
            if kind is socket.SOCK_STREAM:
                other.listen()
            found[name] = other.getsockname()[1]
        yield found


def odd_sockets(stack: ExitStack, directory: Path) -> dict[str, Any]:
    """Listen where the kernel's list of sockets does not say. Return the paths."""
    directory.mkdir()
    held = os.open(directory, os.O_PATH)
    stack.callback(os.close, held)
    before = os.getcwd()
    os.chdir(directory)
    try:
        for address in (
            "relative",
            "./before",
            f"/proc/self/fd/{held}/descriptor",
            "original",
            "new\nline",
        ):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(address)
            one.listen()
    finally:
        os.chdir(before)
    os.rename(directory / "before", directory / "renamed")
    os.link(directory / "original", directory / "linked")
    os.unlink(directory / "original")
    for path in directory.iterdir():
        path.chmod(0o666)
    names = {
        "relative": "relative",
        "renamed": "renamed",
        "descriptor": "descriptor",
        "linked": "linked",
        "newline": "new\nline",
    }
    return {f"{kind}_listener": str(directory / name) for kind, name in names.items()}


SECRETS = (
    ".aws/credentials", ".azure/token", ".bashrc", ".cargo/credentials.toml",
    ".config/anthropic/key", ".config/doctl/config.yaml", ".config/gh/hosts.yml",
    ".config/heroku/auth", ".config/hcloud/cli.toml", ".config/nvim/secrets.lua",
    ".config/pip/pip.conf", ".config/rclone/rclone.conf", ".config/stripe/config.toml", ".condarc",
    ".databrickscfg", ".docker/config.json", ".env", ".fly/config.yml", ".gitconfig", ".gnupg/key",
    ".kaggle/kaggle.json", ".kube/config", ".local/share/keyrings/login", ".local/share/mail",
    ".netrc", ".npmrc", ".oci/config", ".openai/key", ".pgpass", ".pypirc", ".snowsql/config",
    ".ssh/id", ".terraformrc", ".vault-token", ".wrangler/key", ".zshenv", "Documents/passwords",
    "notes", "project/.env",
)  # fmt: skip
"""In a home: those that programs keep there, and a person's own."""


@contextmanager
def shared_memory() -> Iterator[int]:
    """Yield the key of a System V segment."""
    libc = ctypes.CDLL(None)
    key = 0x5FAD0000 | (os.getpid() & 0xFFFF)
    segment = libc.shmget(key, 4096, 0o1666)
    assert segment >= 0
    try:
        yield key
    finally:
        libc.shmctl(segment, 0, None)


@pytest.fixture(
    scope="module", params=["root", pytest.param("nobody", marks=pytest.mark.needs("root"))]
)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The daemon of each user; `root` is the user who runs the tests."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        temporary = stack.enter_context(tempfile.NamedTemporaryFile())
        nobody = stack.enter_context(unprivileged.place()) if request.param == "nobody" else None
        place = directory if nobody is None else nobody.directory
        home, work, serving = place / "home", place / "work", place / "daemon"
        for each in (home, work, serving):
            each.mkdir(mode=0o755)
        for name in SECRETS:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("[credential]\n\thelper = token\n")
        shutil.copy(escaping.__file__, work)
        if nobody is not None:
            for path in (home, *home.rglob("*"), work, serving, work / "escaping.py"):
                os.chown(path, GONE, GONE)
            stack.enter_context(pytest.MonkeyPatch.context()).setenv("SFAD_SERVICE_USER", str(GONE))
        daemon = stack.enter_context(running(serving, nobody=nobody))
        client = stack.enter_context(daemon.client())
        env = {**os.environ, **(nobody.env if nobody is not None else {}), "HOME": str(home)}
        variables = [os.fsencode(f"{key}={value}") for key, value in env.items()]
        mark = f"MARK={MARKER}".encode()
        script = f"echo {MARKER}; exec sleep 1000"
        victim = started(
            client, ["sh", "-c", script], cwd=os.fsencode(work), env=[*variables, mark]
        )
        assert victim.pid is not None
        pid = victim.pid
        wait_until(
            lambda: MARKER in output(daemon, victim).read_text(), "the victim has said what it is"
        )
        targets = {
            "daemon": daemon.pid, "victim": pid, "marker": MARKER, "state": str(daemon.state_dir),
            "output": str(output(daemon, victim)), "socket": str(daemon.socket), "home": str(home),
            "secret": str(home / ".ssh" / "id"), "secrets": [str(home / name) for name in SECRETS],
            "own_file": str(home / "notes"), "temporary": temporary.name,
            "network": os.readlink("/proc/self/ns/net"),
            "cgroup": cgroupfs.locate("0" * 12).directory.rsplit("/", 1)[0]
            + (kernel.cgroup(pid) or ""),
            "shared": stack.enter_context(shared_memory()),
            "mounts": os.stat("/proc/self/ns/mnt").st_ino,
            **stack.enter_context(sockets(place, home)),
        }  # fmt: skip
        yield Scene(daemon, client, work, targets, variables)


def test_without_a_sandbox_the_attacks_succeed(scene: Scene) -> None:
    found = scene.attacked(None)
    assert {name: found[name] for name in AS_ANY_USER if found[name] is not True} == {}


def left_open() -> set[str]:
    """Return what `--isolate` leaves open: abstract sockets, too, where the kernel's Landlock is
    older than ABI 6 (Linux 6.12)."""
    abi = ctypes.CDLL(None).syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return ONLY_WITHOUT_NETWORK | ({"connect_to_an_abstract_socket"} if abi < 6 else set())


def test_in_a_sandbox_they_fail(scene: Scene) -> None:
    found = scene.attacked(Isolation())
    assert {name for name, result in found.items() if result is True} - left_open() == set(), found
    assert len(found) >= 60


def test_without_a_network_all_fail(scene: Scene) -> None:
    found = scene.attacked(Isolation(network=False))
    assert {name for name, result in found.items() if result is True} == set(), found
