"""What the daemon says to systemd, by the protocol of sd_notify(3). Nothing happens where systemd did not start it."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Sends `state` (`READY=1`, `STOPPING=1`) to the service manager. Raises `OSError` if it is named and cannot be told."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall(state.encode())
