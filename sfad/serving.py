"""What the command line of `sfad` needs without a parser of command lines: paths, config, ways out, and serving."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import trio

from . import config as configuration
from . import exits
from .daemon import Daemon, Place
from .durable.handover import taken
from .host.clock import MonotonicClock
from .host.socket_file import PathError
from .launch.base import CgroupImpossible
from .ledger import LedgerError
from .protocol.paths import daemon_socket
from .protocol.paths import state_dir as resolve_state_dir


def serve(socket: str | None = None, state_dir: str | None = None, config: str | None = None, ready_fd: int | None = None) -> None:
    """Serves until told to end."""
    where = place(socket, state_dir, config)
    loaded = load(where.config_files)
    try:
        handed = taken()
    except ValueError as unreadable:
        die(f"what the sfad before this one handed over cannot be used: {unreadable}", exits.UNAVAILABLE)
    if handed is None and ready_fd is not None:
        _check_descriptor(ready_fd)
    try:
        daemon = Daemon(where, loaded, handed=handed, ready_fd=ready_fd)
        trio.run(daemon.serve, strict_exception_groups=True, clock=MonotonicClock())
    except* (PathError, LedgerError, CgroupImpossible) as group:
        for error in group.exceptions:
            print(f"sfad: {error}", file=sys.stderr)
        sys.exit(exits.UNAVAILABLE)
    if daemon.left:
        die(f"processes of {', '.join(daemon.left)} could not be killed", exits.SURVIVED)


def _check_descriptor(ready_fd: int) -> None:
    try:
        os.fstat(ready_fd)
    except (OSError, OverflowError) as error:
        die(f"--ready-fd {ready_fd}: not an open descriptor: {error}", exits.USAGE)


def place(socket: str | None, state_dir: str | None, config: str | None) -> Place:
    """Where this daemon listens, keeps its state and is configured. Ends the process for what cannot be a path."""
    try:
        uid = os.geteuid()
        return Place(
            socket=Path(daemon_socket(os.environ, uid, socket)),
            state_dir=Path(resolve_state_dir(os.environ, uid, state_dir)),
            config_files=configuration.config_files(os.environ, config),
        )
    except ValueError as error:
        die(str(error), exits.USAGE)


def load(files: tuple[list[Path], bool]) -> configuration.Loaded:
    """The config. Ends the process for a wrong one."""
    try:
        return configuration.load(files[0], required=files[1])
    except configuration.ConfigError as error:
        die(str(error), exits.USAGE)


def die(message: str, code: int) -> NoReturn:
    """Says why, and ends the process."""
    print(f"sfad: {message}", file=sys.stderr)
    sys.exit(code)
