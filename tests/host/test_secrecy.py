"""A process that holds keys shows them to no other process of its user."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from http.client import HTTPConnection

import pytest

from sfad.host.secrecy import hide_memory
from sfad.protocol.requests.daemon import DaemonInfo, DaemonStatus
from tests import unprivileged
from tests.harness import GONE, running, wait_until
from tests.users import FIRST, as_user, needs_root

PR_SET_DUMPABLE = 4
LOOKS = ("environ", "maps", "mem", "fd")


@needs_root
@pytest.mark.parametrize("hidden", [False, True])
def test_another_process_of_the_user_cannot_look(hidden: bool) -> None:
    def found() -> list[str]:
        # a process that has changed its user is hidden until it executes a program; this is as if
        # it had
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        if hidden:
            hide_memory()
        keeper = os.getpid()
        read, write = os.pipe()
        if not os.fork():
            seen = [name for name in LOOKS if opens(f"/proc/{keeper}/{name}")]
            os.write(write, ",".join(seen).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            answer = file.read()
        os.wait()
        return [name for name in answer.split(",") if name]

    # with Yama a child may not open its parent's memory in any case
    assert [name for name in as_user(FIRST, found) if name != "mem"] == (
        [] if hidden else ["environ", "maps", "fd"]
    )


def opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return False
    return True


_SERVED = """
import ctypes, sys, types
shown = lambda **_: print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), "trio" in sys.modules)
sys.modules["sfad.cli"] = types.ModuleType("sfad.cli")
sys.modules["sfad.cli"].app = shown
from sfad.__main__ import main
main()
"""


def test_a_daemon_hides_its_memory_before_its_imports() -> None:
    """PR_GET_DUMPABLE is 0 when the commands are imported; nothing that takes time was before."""
    done = subprocess.run(
        [sys.executable, "-c", _SERVED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 False\n"


@needs_root
@pytest.mark.skipif(bool(unprivileged.impossible()), reason=unprivileged.impossible() or "-")
def test_no_process_of_the_user_looks_into_the_daemon_or_its_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a user without privileges."""
    monkeypatch.setenv("SFAD_SERVICE_USER", str(GONE))
    with unprivileged.place() as nobody:
        serving = nobody.directory / "daemon"
        serving.mkdir()
        os.chown(serving, GONE, GONE)
        with (
            running(serving, nobody=nobody, config="[gateway]\nenabled = true") as daemon,
            daemon.client() as client,
        ):

            def status() -> DaemonStatus:
                return client.call(DaemonInfo(id=client.next_id()), DaemonStatus)

            wait_until(lambda: status().gateway_pid, "there is a gateway")
            gateway = HTTPConnection(str(status().gateway).removeprefix("http://"))
            gateway.request("GET", "/")
            gateway.getresponse().read()  # it hides its memory after its imports, before it serves
            gateway.close()
            for pid in (daemon.pid, status().gateway_pid):
                seen = as_user(
                    GONE,
                    lambda pid=pid: [name for name in LOOKS if opens(f"/proc/{pid}/{name}")],  # type: ignore[misc]
                )
                assert seen == [], pid
