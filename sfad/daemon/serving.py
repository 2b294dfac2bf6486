"""Serving: paths, config, exit codes."""

import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import NoReturn

import trio

from .. import config as configuration
from .. import exits
from ..durable.handover import taken
from ..host import systemd
from ..host.clock import MonotonicClock
from ..host.headroom import keep_one_heap
from ..host.linux.descriptors import too_few
from ..host.probe import no_inodes
from ..host.secrecy import hide_memory
from ..host.socket_file import PathError
from ..processes.launcher import CgroupImpossible
from ..protocol.inherited import survive_stray_signals, unblock_signals
from ..protocol.paths import daemon_socket
from ..protocol.paths import state_dir as resolve_state_dir
from ..storage.ledger import LedgerError
from . import daemon, reloading
from .startup import DaemonHome


def serve(
    socket: str | None = None,
    state_dir: str | None = None,
    config: str | None = None,
    ready_fd: int | None = None,
) -> None:
    survive_stray_signals()
    unblock_signals(but=daemon.HELD_BACK)
    # until they are handled: one that ends this process in the middle of its start leaves a cgroup
    signal.pthread_sigmask(signal.SIG_BLOCK, daemon.SIGNALS)
    hide_memory()
    keep_one_heap()
    if (why := too_few()) is not None:
        _tell_systemd(f"not started: {why}")
        die(why, exits.UNAVAILABLE)
    where = home(socket, state_dir, config)
    try:
        loaded = reloading.load_kept(where)
    except configuration.ConfigError as wrong:
        _tell_systemd(f"not started: {wrong}")
        die(str(wrong), exits.USAGE)
    try:
        handed = taken()
    except ValueError as unreadable:
        die(
            f"what the sfad before this one handed over cannot be used: {unreadable}",
            exits.UNAVAILABLE,
        )
    if handed is None and ready_fd is not None:
        _check_descriptor(ready_fd)
    try:
        run = partial(daemon.serve, where, loaded, handed=handed, ready_fd=ready_fd)
        left = trio.run(run, strict_exception_groups=True, clock=MonotonicClock())
    except* (PathError, LedgerError, CgroupImpossible) as group:
        for error in group.exceptions:
            print(f"sfad: {error}{no_inodes(where.state_dir)}", file=sys.stderr)
        sys.exit(exits.UNAVAILABLE)
    if left:
        die(f"processes of {', '.join(left)} could not be killed", exits.SURVIVED)


def _tell_systemd(text: str) -> None:
    """Have `systemctl status` show why there is no daemon."""
    with suppress(OSError):
        systemd.notify(systemd.status(text))


def _check_descriptor(ready_fd: int) -> None:
    try:
        # what the daemon starts before it is ready must not keep the descriptor open
        os.set_inheritable(ready_fd, False)
    except (OSError, OverflowError) as error:
        die(f"--ready-fd {ready_fd}: not an open descriptor: {error}", exits.USAGE)


def home(socket: str | None, state_dir: str | None, config: str | None) -> DaemonHome:
    """Return where this daemon lives. Exits if a path cannot be one."""
    try:
        uid = os.geteuid()
        state = resolve_state_dir(os.environ, uid, state_dir)
        home = DaemonHome(
            socket=daemon_socket(os.environ, uid, socket),
            state_dir=state,
            config_files=configuration.config_files(os.environ, state, config),
        )
        _check_utf8(home)
    except ValueError as error:
        die(str(error), exits.USAGE)
    return home


def _check_utf8(home: DaemonHome) -> None:
    """Raise `ValueError` for a path that is not UTF-8. The daemon tells its clients its paths, and
    messages are UTF-8."""
    configs = [path for path in home.config_files[0] if os.path.exists(path)]
    for what, path, other in (
        ("socket", home.socket, "--socket or SFAD_SOCKET"),
        ("state directory", home.state_dir, "--state-dir or SFAD_STATE_DIR"),
        *(("config file", path, "--config or SFAD_CONFIG") for path in configs),
    ):
        try:
            os.fsencode(path).decode()
        except UnicodeDecodeError:
            shown = os.fsencode(path).decode(errors="backslashreplace")
            raise ValueError(
                f"the path of the {what}, {shown}, is not UTF-8; to choose another: {other}"
            ) from None


def load(home: DaemonHome) -> configuration.Loaded:
    """Return the config of the daemon's files. Exits if that daemon would refuse it."""
    try:
        return reloading.load_usable(home)
    except configuration.ConfigError as error:
        die(str(error), exits.USAGE)


def die(message: str, code: int) -> NoReturn:
    print(f"sfad: {message}", file=sys.stderr)
    sys.exit(code)
