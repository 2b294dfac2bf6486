"""The daemon is scheduled before its runs, and its threads share a heap."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import Start
from tests.harness import started

NEEDS_ROOT = pytest.mark.needs("root")


@NEEDS_ROOT
def test_the_daemon_is_scheduled_before_its_runs(start: Start, containment: str) -> None:
    daemon = start(mode=containment)
    with daemon.client() as client:
        run = started(client, ["sleep", "100"])
        assert psutil.Process(daemon.pid).nice() == -10
        assert psutil.Process(run.pid).nice() == 0
        for pid, nice in ((daemon.pid, -10), (run.pid, 0)):
            group = Path(f"/proc/{pid}/autogroup")
            assert not group.exists() or group.read_text().endswith(f"nice {nice}\n")
        daemon.reexecute()
        again = started(client, ["sleep", "100"])
        assert psutil.Process(daemon.pid).nice() == -10
        assert psutil.Process(again.pid).nice() == 0


@NEEDS_ROOT
def test_the_priority_is_raised_before_the_imports() -> None:
    """If runs keep all processors busy, the imports take ten seconds at equal priority."""
    program = """
import os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "sfad.cli":
            print(os.getpriority(os.PRIO_PROCESS, 0), "trio" in sys.modules)
            sys.exit()
sys.meta_path.insert(0, Finder())
sys.argv = ["sfad", "serve"]
from sfad.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "-10 False\n"


def chosen(*prefix: str) -> str:
    """The nice value after a start with a priority that the operator chose."""
    program = (
        "import os; from sfad.host.headroom import raise_priority; "
        "raise_priority(); print(os.getpriority(os.PRIO_PROCESS, 0))"
    )
    return subprocess.run(
        [*prefix, sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_priority_that_the_operator_chose_stays() -> None:
    assert chosen("nice", "-n", "5") == str(os.nice(0) + 5)


@NEEDS_ROOT
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_without_permission_the_priority_stays() -> None:
    assert chosen("setpriv", "--inh-caps=-all", "--bounding-set=-all") == str(os.nice(0))


HEAPS = """
import ctypes, sys, threading
if sys.argv[2:]:
    from sfad.host.headroom import keep_one_heap
    keep_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
threads = [threading.Thread(target=libc.malloc, args=[5000]) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def test_threads_share_a_heap(tmp_path: Path) -> None:
    counts = []
    for words in ([], ["one"]):
        subprocess.run(
            [sys.executable, "-c", HEAPS, str(tmp_path / "heaps"), *words], check=True, timeout=60
        )
        counts.append((tmp_path / "heaps").read_text().count("<heap nr="))
    assert counts[0] > counts[1] == 1
