"""The command `sfad`: serve, check-config, sweep, version."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import trio
import typer

from . import __version__
from . import config as configuration
from .daemon import Daemon, Place
from .launch import CgroupImpossible
from .launch.sweep import sweep as sweep_instance
from .ledger import LedgerError
from .paths import PathError, config_files, lock_state_dir
from .protocol.paths import daemon_socket
from .protocol.paths import state_dir as resolve_state_dir

EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69
EXIT_SURVIVED = 5

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The daemon that owns trees of agent processes. Without a command it serves.",
)

Socket = Annotated[str | None, typer.Option("--socket", metavar="PATH", help="Where to listen. [env: SFAD_SOCKET]")]
StateDir = Annotated[str | None, typer.Option("--state-dir", metavar="DIR", help="Ledger and output. [env: SFAD_STATE_DIR]")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The only config file to read. [env: SFAD_CONFIG]")
]
ReadyFd = Annotated[int | None, typer.Option("--ready-fd", hidden=True, help="Write a line to this descriptor once serving.")]


@app.callback(invoke_without_command=True)
def default(context: typer.Context, socket: Socket = None, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Serves if no command is given."""
    if context.invoked_subcommand is None:
        serve(socket, state_dir, config)


@app.command()
def serve(socket: Socket = None, state_dir: StateDir = None, config: ConfigFile = None, ready_fd: ReadyFd = None) -> None:
    """Serve until SIGTERM or SIGINT, then stop every tree and exit 0; a second signal skips the grace."""
    place = _place(socket, state_dir, config)
    loaded = _load(place.config_files)
    try:
        trio.run(Daemon(place, loaded, ready_fd=ready_fd).serve, strict_exception_groups=True)
    except* (PathError, LedgerError, CgroupImpossible) as group:
        for error in group.exceptions:
            print(f"sfad: {error}", file=sys.stderr)
        sys.exit(EXIT_UNAVAILABLE)


@app.command("check-config")
def check_config(config: ConfigFile = None) -> None:
    """Read the config, say what is wrong with it, and exit 0 if nothing is."""
    loaded = _load(config_files(os.environ, config))
    for setting in loaded.settings:
        print(f"{setting.key} = {msgspec.json.encode(setting.value).decode()}  ({setting.source})")


@app.command()
def sweep(state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Kill what a dead daemon of this state directory left behind. Refuses while a daemon is alive."""
    place = _place(None, state_dir, config)
    loaded = _load(place.config_files)
    try:
        if place.state_dir.is_dir():
            lock_state_dir(place.state_dir)  # until this process ends: no daemon may start in the middle of it
    except PathError as error:
        _die(f"{error}; a living daemon looks after its own (sfactl stop --all)", EXIT_UNAVAILABLE)
    try:
        report = sweep_instance(place.instance, loaded.config.containment.cgroup_parent)
    except OSError as error:
        _die(f"cannot look for what is left: {error}", EXIT_SURVIVED)
    print(f"{len(report.pids)} processes of {place.state_dir} were alive; {len(report.pids) - len(report.left)} have been killed")
    if report.left:
        _die(f"still alive: {', '.join(map(str, report.left))}", EXIT_SURVIVED)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _place(socket: str | None, state_dir: str | None, config: str | None) -> Place:
    try:
        uid = os.geteuid()
        return Place(
            socket=Path(daemon_socket(os.environ, uid, socket)),
            state_dir=Path(resolve_state_dir(os.environ, uid, state_dir)),
            config_files=config_files(os.environ, config),
        )
    except ValueError as error:
        _die(str(error), EXIT_USAGE)


def _load(files: tuple[list[Path], bool]) -> configuration.Loaded:
    try:
        return configuration.load(files[0], required=files[1])
    except configuration.ConfigError as error:
        _die(str(error), EXIT_USAGE)


def _die(message: str, code: int) -> NoReturn:
    print(f"sfad: {message}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="sfad")


if __name__ == "__main__":
    main()
