"""A machine in qemu, without hardware support: its processor is emulated, and ten to twenty times
slower than this one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .initramfs import initramfs
from .packages import unpacked

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0
"""Seconds until the machine must have powered off. It needs some hundred."""
NEEDED = ("qemu-system-x86_64", "apt-get", "dpkg")


def impossible() -> str | None:
    """Return why no machine can be booted here; `None` if one can."""
    if os.uname().machine != "x86_64":
        return "the machine is for x86_64"
    missing = [program for program in NEEDED if not shutil.which(program)]
    return f"no {missing[0]} here (Debian: qemu-system-x86)" if missing else None


def booted(*command: str, work: Path) -> str:
    """Boot a machine, run a command there as root, and return what it printed. `work`: a directory
    for files."""
    files = unpacked()
    modules = next((files / "lib/modules").iterdir())
    start = shlex.join(
        ["/bin/sh", str(ROOT / "tests/vm/start.sh"), str(ROOT), str(modules), shlex.join(command)]
    )
    archive = work / "initramfs"
    archive.write_bytes(initramfs(files, start))
    kernel = next((files / "boot").glob("vmlinuz-*"))
    words = [
        "qemu-system-x86_64",
        "-machine",
        "q35",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "3G",
    ]
    words += [
        "-kernel",
        str(kernel),
        "-initrd",
        str(archive),
        "-display",
        "none",
        "-serial",
        "stdio",
        "-monitor",
        "none",
    ]
    words += [
        "-no-reboot",
        "-nic",
        "none",
        "-virtfs",
        "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ]
    words += [
        "-append",
        (
            "console=ttyS0 panic=-1 quiet loglevel=1 mitigations=off nokaslr "
            "tsc=reliable systemd.show_status=0 net.ifnames=0"
        ),
    ]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout.decode(errors="replace").replace("\r\n", "\n")


if __name__ == "__main__":
    # tries something by hand: python -m tests.vm.boot COMMAND...
    print(booted(*sys.argv[1:], work=Path(sys.prefix, "vm")))
