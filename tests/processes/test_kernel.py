"""Reads of /proc that psutil must not be asked for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from sfad.processes import kernel, observed
from sfad.processes.contain.membership import with_steady_ancestors
from tests.harness import wait_until

GROW = """
import ctypes, struct, sys, time
PR_SET_MM, PR_SET_MM_MAP, PROT_READ = 35, 14, 1
FLAGS = 0x4022  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
size = 64 << 20
begin = libc.mmap(None, 2 * size, PROT_READ, FLAGS, -1, 0)
fields = [0, 0, 0, *open("/proc/self/stat").read().rpartition(")")[2].split()]
code, data = map(int, fields[26:28]), map(int, fields[45:48])
stack, end = int(fields[28]), begin + size
words = [*code, *data, libc.sbrk(0), stack, begin, end, end, begin + 2 * size - 1, 0]
block = struct.pack("=12QII", *words, 0, 0xFFFFFFFF)
print(libc.prctl(PR_SET_MM, PR_SET_MM_MAP, block, len(block), 0), flush=True)
time.sleep(1000)
"""
"""Makes its command line 64 MiB long, and its environment too. Any user may do that, with
CONFIG_CHECKPOINT_RESTORE."""


def test_a_process_cannot_choose_how_much_is_read_of_it() -> None:
    """psutil reads all of it: 500 MB took it 68 s and 4.5 GiB."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", GROW], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"0\n":
                pytest.skip("this kernel does not let a process do that")
            environment = kernel.environ(process.pid)
            assert environment is not None
            assert len(environment) < 16 << 20
            assert len(kernel.read(f"/proc/{process.pid}/cmdline") or b"") == 4096
            assert kernel.command(process.pid) == [""]
            assert (observed.why_alive(process.pid) or "").startswith("sleeping (S)")
        finally:
            process.kill()


def test_what_a_process_does_meanwhile_does_not_change_who_it_is() -> None:
    with subprocess.Popen(["/bin/sleep", "1000"]) as process:

        def look(chain: list[kernel.Stat]) -> list[int]:
            process.send_signal(signal.SIGSTOP if chain[0].state != "T" else signal.SIGCONT)
            wait_until(
                lambda: (now := kernel.stat(process.pid)) and now.state != chain[0].state,
                "another state",
            )
            return [each.pid for each in chain]

        try:
            assert with_steady_ancestors(process.pid, look) == [process.pid, os.getpid()]
        finally:
            process.kill()


def test_a_socket_tells_which_process_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as connection:
            inode = os.fstat(connection.fileno()).st_ino
            assert kernel.holders({inode}) == {inode: os.getpid()}
        assert kernel.holders({inode}) == {}
