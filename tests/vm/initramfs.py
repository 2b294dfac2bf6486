"""The first root of the machine, in the format `newc` of cpio: a shell, the drivers for the real
root, and `init`."""

from __future__ import annotations

from pathlib import Path

MODULES = (
    "drivers/virtio/virtio_ring", "drivers/virtio/virtio", "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev", "drivers/virtio/virtio_pci", "fs/netfs/netfs",
    "fs/fscache/fscache", "net/9p/9pnet", "net/9p/9pnet_virtio", "fs/9p/9p", "fs/overlayfs/overlay",
)  # fmt: skip
"""In the order in which they can be loaded."""

INIT = """#!/bin/busybox sh
busybox mkdir -p /dev /proc /low /memory /root
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
for module in {modules}; do busybox insmod "/$module.ko"; done
busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /low
busybox mount -t tmpfs -o mode=0755 memory /memory
busybox mkdir /memory/up /memory/work
busybox mount -t overlay -o lowerdir=/low,upperdir=/memory/up,workdir=/memory/work overlay /root
busybox umount /proc
exec busybox switch_root /root {start}
"""


def initramfs(files: Path, start: str) -> bytes:
    """Return the archive. `start`: the command that the machine begins with, once it has its
    root."""
    kernel = next((files / "lib/modules").iterdir()) / "kernel"
    names = [module.rpartition("/")[2] for module in MODULES]
    entries = {"bin": None, "bin/busybox": (files / "bin/busybox").read_bytes()}
    entries |= {
        f"{name}.ko": (kernel / f"{module}.ko").read_bytes()
        for name, module in zip(names, MODULES, strict=True)
    }
    entries["init"] = INIT.format(modules=" ".join(names), start=start).encode()
    archive = b"".join(
        _entry(number, name, content) for number, (name, content) in enumerate(entries.items(), 1)
    )
    return archive + _entry(0, "TRAILER!!!", b"")


def _entry(inode: int, name: str, content: bytes | None) -> bytes:
    """Return a file of mode 0755, or a directory, as initramfs buffer format of the kernel's
    documentation has it."""
    mode, data, path = (
        (0o040755 if content is None else 0o100755),
        content or b"",
        name.encode() + b"\0",
    )
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    return _aligned(b"070701" + b"".join(b"%08X" % field for field in fields) + path) + _aligned(
        data
    )


def _aligned(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
