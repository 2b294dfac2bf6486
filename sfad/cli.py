"""The command `sfad`: serve, check-config, sweep, backup, install, version."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer

from . import __version__, exits
from . import config as configuration
from .daemon import reloading, serving
from .daemon.serving import die, home, load
from .daemon.startup import DaemonHome
from .durable.spool import Spool
from .features.listed import FEATURES
from .host import systemd
from .host.clock import Timers
from .host.socket_file import PathError
from .host.state_dir import claim_instance, lock_state_dir
from .host.tasks import LoopRounds
from .installing.console import ConsoleInstaller
from .installing.service import Installer, InstallError
from .processes.contain.cgroup.controllers import release_unit
from .processes.sweep import sweep as sweep_instance
from .protocol.paths import LEDGER as LEDGER_FILE
from .storage.ledger import LedgerError, back_up
from .storage.ledger.opening import check_known
from .storage.store import StoreError, check_version

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Supervise trees of AI agents. Without a command: serve.",
)

Socket = Annotated[
    str | None,
    typer.Option("--socket", metavar="PATH", help="Socket to listen on. [env: SFAD_SOCKET]"),
]
StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR", help="State directory. [env: SFAD_STATE_DIR]"),
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Config file to read instead of the system's and the user's. [env: SFAD_CONFIG]",
    ),
]
BackupFile = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="Copy to make.")
]
StopPost = Annotated[
    bool,
    typer.Option(
        "--stop-post",
        help="For ExecStopPost= of a systemd unit: if systemd starts another daemon "
        "($SERVICE_RESULT), kill nothing, and only make the unit's cgroup usable for it.",
    ),
]
ReadyFd = Annotated[
    int | None,
    typer.Option("--ready-fd", hidden=True, help="Write a line to this descriptor once serving."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sfad {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version."),
]


@app.callback(invoke_without_command=True)
def default(
    context: typer.Context,
    socket: Socket = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    version: Version = False,
) -> None:
    """Serve if no command is given."""
    del version  # its callback has printed it
    if context.invoked_subcommand is None:
        serving.serve(socket, state_dir, config)
    else:  # options before the command hold for it, unless they are repeated after it
        given = {"socket": socket, "state_dir": state_dir, "config": config}
        context.default_map = {
            context.invoked_subcommand: {
                name: value for name, value in given.items() if value is not None
            }
        }


@app.command()
def serve(
    socket: Socket = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    ready_fd: ReadyFd = None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Then stop all trees and exit 0 (5: a process survived). A second signal skips the grace."""
    serving.serve(socket, state_dir, config, ready_fd)


@app.command("check-config")
def check_config(state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Check the config, and print its settings.

    Exit 0; 2 with a message if a daemon that is started here would refuse it."""
    where = home(None, state_dir, config)
    try:
        loaded = reloading.read(where.config_files)
        _check_containment(loaded.config, where)
    except configuration.ConfigError as error:
        die(str(error), exits.USAGE)
    for setting in loaded.settings:
        print(f"{setting.key} = {msgspec.json.encode(setting.value).decode()}  ({setting.source})")
    wrong = [
        why
        for name, feature in FEATURES.items()
        if feature.check
        for why in import_module(f"sfad.features.{name}.{feature.check}").check(loaded.config)
    ]
    if wrong:
        die("; ".join(wrong), exits.USAGE)


def _check_containment(config: configuration.Configuration, where: DaemonHome) -> None:
    """Raise `ConfigError` if no daemon could contain runs as the config says. Print a note if only
    this shell cannot."""
    try:
        reloading.check_containment(config, where)
    except configuration.ConfigError as error:
        if os.geteuid() == 0 or config.containment.cgroup_parent is not None:
            raise
        print(
            f"sfad: {error}; a service of systemd has a cgroup of its own, where this may work",
            file=sys.stderr,
        )


@app.command("check-start", hidden=True)
def check_start(state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Exit 0 if this sfad could replace the one that serves this state directory."""
    where = home(None, state_dir, config)
    load(where)
    try:
        check_known(where.state_dir)
        check_version(where.state_dir / "spool" / "runs")
    except (LedgerError, StoreError) as error:
        die(str(error), exits.UNAVAILABLE)


@app.command()
def sweep(
    state_dir: StateDir = None, config: ConfigFile = None, stop_post: StopPost = False
) -> None:
    """Kill processes that a dead daemon left behind.

    The daemon is that of this state directory. Refuses while one is alive, and while only its
    config keeps one from starting."""
    where = home(None, state_dir, config)
    try:
        # held until this process ends: no daemon may start meanwhile. A live daemon's directory may
        # have been removed
        (lock_state_dir if where.state_dir.is_dir() else claim_instance)(
            where.state_dir, where.instance
        )
    except PathError as error:
        die(f"{error}; to end the runs of a live daemon: sfactl stop --all", exits.UNAVAILABLE)
    if stop_post and systemd.another_follows():
        release_unit()
        return
    try:
        report = sweep_instance(where.instance, _cgroup_parent(where, wait=not stop_post))
    except OSError as error:
        die(f"cannot look for processes: {error}", exits.SURVIVED)
    if not report.pids:
        _die_if_elsewhere(where)
    print(
        f"{len(report.pids)} processes of {where.state_dir} were alive; "
        f"{len(report.pids) - len(report.left)} were killed"
    )
    if report.left:
        die(f"still alive: {', '.join(map(str, report.left))}", exits.SURVIVED)


@app.command()
def backup(file: BackupFile, state_dir: StateDir = None) -> None:
    """Copy the ledger to FILE, with or without a daemon.

    FILE must not exist."""
    where = home(None, state_dir, None)
    if not (where.state_dir / LEDGER_FILE).exists():
        die(f"there is no ledger in {where.state_dir}", exits.UNAVAILABLE)
    try:
        copy = back_up(where.state_dir, file.absolute(), replace=False)
    except FileExistsError:
        die(f"{file} exists; choose another name", exits.USAGE)
    except (OSError, sqlite3.Error, LedgerError) as error:
        die(f"the ledger could not be copied to {file}: {error}", exits.IO)
    print(f"{copy.path}: {copy.size_bytes} bytes")


@app.command()
def install(
    user: Annotated[bool, typer.Option("--user", help="Install a service of this user.")] = False,
    system: Annotated[
        bool, typer.Option("--system", help="Install a service of the system; needs root.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Stop the daemon and its runs, and remove the service.")
    ] = False,
    linger: Annotated[
        bool,
        typer.Option(
            "--linger",
            help="Also keep the user's services after logout (with --remove: no longer).",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --remove: do not ask, although runs are live.")
    ] = False,
    web: Annotated[
        bool,
        typer.Option(
            "--web",
            help="Install the console, sfactl web, as a service of this user, and not the daemon.",
        ),
    ] = False,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet",
            metavar="head|HOST:PORT",
            help="Install Ray as a service, too, as the head of a fleet or as a node of the head's "
            "cluster, and name it in the daemon's config. With --remove, remove only Ray.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="With --fleet: the node's name (default: the host's).", metavar="NAME"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--check", "--dry-run", help="Print the steps and the units; change nothing."),
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTION...]",
            show_default=False,
            help="With --web: options of sfactl web, such as -- --listen 192.0.2.7:8477.",
        ),
    ] = None,
) -> None:
    """Install the daemon as a service of systemd.

    Write its units, enable and start them."""
    if options and not web:
        die(f"{options[0]}: only --web takes options of sfactl web", exits.USAGE)
    if web:
        if system:
            die("--web makes a service of this user: leave out --system", exits.USAGE)
        console = ConsoleInstaller(options or [], dry_run=dry_run)
        with _told():
            console.remove(linger=linger) if remove else console.install(linger=linger)
        return
    if user == system and not (remove and not user):
        die("give either --user or --system", exits.USAGE)
    if node is not None and fleet is None:
        die("--node needs --fleet: it is this machine's name in the fleet", exits.USAGE)
    if fleet is not None:
        module = next((f"{name}.{each.install}" for name, each in FEATURES.items() if each.install))
        make = import_module(f"sfad.features.{module}").installer
        installed = make(fleet, node, user=user, dry_run=dry_run)
        with _told():
            installed.remove(linger=linger) if remove else installed.install(linger=linger)
        return
    if linger and not user:
        die("--linger needs --user: a service of the system needs no lingering", exits.USAGE)
    if yes and not remove:
        die("--yes needs --remove: only that ends runs", exits.USAGE)
    with _told():
        if not remove:
            Installer(user=user, dry_run=dry_run).install(linger=linger)
            return
        both = [Installer(user=each, dry_run=dry_run) for each in (True, False)]
        wanted = (
            [Installer(user=user, dry_run=dry_run)]
            if user or system
            else [each for each in both if each.installed()]
        )
        if os.geteuid() != 0:
            del wanted[1:]  # beside the system's service, a user means their own
        for installer in wanted:
            installer.confirm_removal(yes=yes)
        for installer in wanted:
            installer.remove(linger=linger)
        if not wanted:
            print("no service is installed")


@contextmanager
def _told() -> Iterator[None]:
    """Exit with the words of what an installation raises."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of the steps has gone: typer ends quietly
    except (InstallError, OSError) as error:
        die(str(error), error.code if isinstance(error, InstallError) else exits.UNAVAILABLE)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _die_if_elsewhere(where: DaemonHome) -> None:
    """End with an error if the runs are known by another path, so that finding nothing means
    nothing."""
    if not where.state_dir.is_dir():
        die(
            (
                f"{where.state_dir} is not a directory, "
                "and no process of a daemon of that state directory was found"
            ),
            exits.UNAVAILABLE,
        )
    with suppress(StoreError, OSError), TemporaryDirectory() as copies:
        # a copy: opening a damaged file sets it aside, and the next daemon would not know of the
        # damage
        shutil.copy(where.state_dir / "spool" / "runs", copies)
        with closing(Spool(Path(copies), Timers(print), LoopRounds(), print)) as spool:
            earlier = spool.earlier
            if earlier.moved_alive(where.state_dir):
                here = where.state_dir.resolve()
                text = (
                    f"{here} was {earlier.place} when runs that are still alive began, "
                    "and they are known by that path"
                )
                die(f"{text}: give --state-dir {earlier.place}", exits.UNAVAILABLE)


def _cgroup_parent(where: DaemonHome, *, wait: bool) -> str | None:
    """Return the setting. `wait`: exit if the next daemon only waits for a config that it can use,
    and then takes the runs over."""
    try:
        return reloading.load_kept(where).config.containment.cgroup_parent
    except configuration.ConfigError as error:
        if wait:
            die(
                (
                    f"nothing is killed while the config keeps a daemon from starting: {error}; "
                    f"correct it, or {_ANYWAY}"
                ),
                exits.USAGE,
            )
        print(f"sfad: {error}; containment.cgroup_parent is taken as not set", file=sys.stderr)
        return None


_ANYWAY = "end the runs with 'sfad sweep --config /dev/null'"
