import os
import pwd
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from sfad.features.shims import files
from sfad.features.shims.files import SYSTEM_SHIMS, shim_dir
from sfad.protocol.known import KNOWN_PROGRAMS
from sfad.protocol.paths import state_dir
from sfad.protocol.requests.daemon import DaemonInfo, DaemonStatus
from sfad.protocol.stand_ins import is_stand_in

from .. import output
from ..app import app
from ..connecting.connection import ABSENT, Unreachable, call
from ..connecting.inside import inside_run
from ..exits import ExitCode, Quit, UsageError, understood
from ..options.shared import Json, Socket, Value, one_of
from ..shims.real_program import DEFAULT_PATH, found, search
from ..showing import table
from ..whole_file import write_whole

LOGIN = 5.0
"""Seconds for a login shell to begin."""


class InstalledShim(Struct, frozen=True):
    program: str
    path: str
    stands_for: str | None
    """The program in this process's PATH; `None` if it is not there."""
    found_by_runs: bool | None
    """Whether runs that start now have it in their PATH; `None` if no daemon is running."""
    state: str
    """`ok`; `outdated`: another sfad made it; `missing`: what it stands for is not in this
    process's PATH."""


class ShimPlace(Struct, frozen=True):
    directory: Path
    seen: frozenset[str] | None
    """The shims that the daemon knows; `None` if no daemon is running."""


@app.command()
def shim(
    action: Annotated[
        str,
        Value(
            "install|list|remove", one_of(("install", "list", "remove"), "action"), words="shim"
        ).argument("What to do"),
    ],
    programs: Annotated[
        list[str],
        Value("PROGRAM", words="program").argument("Names of programs, as in: claude codex"),
    ] = [],
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Have agent programs that a run starts by itself become child runs.

    `sfactl shim install claude codex` puts a stand-in for each program into a directory that
    comes first in the PATH of every run that starts from now on. A `claude` that an agent calls
    in its shell is then a child run: guarded, limited and counted, with the same stdin, stdout,
    stderr, terminal and exit code. Outside runs nothing changes.

    `list` shows the shims, what they stand in for, and whether runs find them, also in a login
    shell, which may set PATH again. `remove` removes them again.

    Exit codes: 0; 2 wrong arguments; 77 the directory may not be changed, or this process is
    inside a run.
    """
    if action == "list":
        _list(place_of_shims(socket), programs, json)
        return
    if not programs:
        raise UsageError(
            f"nothing to {action}: name programs, as in: sfactl shim {action} claude codex"
        )
    if (why := inside_run()) is not None:
        raise Quit(
            ExitCode.NOT_PERMITTED,
            f"shims are changed outside runs only, and this process is inside one ({why})",
        )
    place = place_of_shims(socket)
    try:
        if action == "install":
            _install(place.directory, programs)
        else:
            _remove(place.directory, programs)
    except OSError as error:
        raise Quit(
            ExitCode.NOT_PERMITTED, f"cannot {action} in {place.directory}: {error.strerror}"
        ) from error
    after = place_of_shims(socket)  # the daemon looks at the directory again
    if action == "remove" and not json:
        print(f"removed from {place.directory}: {', '.join(programs)}")
    else:
        _list(after, programs if action == "install" else (), json)


def place_of_shims(socket: str | None) -> ShimPlace:
    """Return where the shims of the daemon are, or of the one that would be started. A daemon that
    is asked looks at them again. Raise `Quit`."""
    try:
        status = call(socket, DaemonInfo(id=0), DaemonStatus)
    except Unreachable as error:
        if error.kind not in ABSENT:
            raise
        return ShimPlace(shim_dir(understood("", state_dir, os.environ, os.getuid())), None)
    if not status.shim_dir:
        raise Quit(
            ExitCode.UNAVAILABLE,
            f"the daemon is sfad {status.version}, which has no shims; restart it: sfactl reload",
        )
    return ShimPlace(Path(status.shim_dir), frozenset(status.shims))


def installed(place: ShimPlace) -> list[InstalledShim]:
    """Return all shims in the directory."""
    return [
        _looked_at(place, name)
        for name in _names(place.directory)
        if is_stand_in(os.fsencode(place.directory / name))
    ]


def _names(directory: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(os.listdir(directory))
    return []


def _looked_at(place: ShimPlace, program: str) -> InstalledShim:
    path = place.directory / program
    file, _ = search(os.fsencode(program), os.environb.get(b"PATH", DEFAULT_PATH))
    return InstalledShim(
        program=program,
        path=str(path),
        stands_for=os.fsdecode(file) if file is not None else None,
        found_by_runs=program in place.seen if place.seen is not None else None,
        state="outdated"
        if path.read_bytes() != files.text(program)
        else "ok"
        if file is not None
        else "missing",
    )


def _install(directory: Path, programs: Sequence[str]) -> None:
    for program in programs:
        _check(directory, program)
    directory.parent.mkdir(
        mode=0o755 if directory == SYSTEM_SHIMS else 0o700, parents=True, exist_ok=True
    )
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
    write_whole(directory / files.BASH_ENV, files.FIND_AGAIN, 0o644)
    for program in programs:
        write_whole(directory / program, files.text(program), 0o755)
        if program not in KNOWN_PROGRAMS:
            output.note(
                f"sfactl: {program} is not an agent program that sfad knows; "
                "each call of it in a run is now a child run"
            )


def _check(directory: Path, program: str) -> None:
    if "/" in program or not program.isprintable() or program[:1] in ("", ".", "-"):
        raise UsageError(f"{program!r} is not the name of a program")
    if program in ("sfad", "sfactl"):
        raise UsageError(f"{program} starts runs itself and needs no shim")
    path = directory / program
    if os.path.lexists(path) and not is_stand_in(os.fsencode(path)):
        raise UsageError(f"{path} is not a shim of sfad; move it away first")


def _remove(directory: Path, programs: Sequence[str]) -> None:
    there = [
        program for program in _names(directory) if is_stand_in(os.fsencode(directory / program))
    ]
    for program in programs:
        if program not in there:
            known = f"installed: {', '.join(there)}" if there else "none is installed"
            raise UsageError(f"there is no shim of {program!r} in {directory}; {known}")
    for program in programs:
        (directory / program).unlink(missing_ok=True)
    if not set(there) - set(programs):
        (directory / files.BASH_ENV).unlink(missing_ok=True)
    with suppress(OSError):  # it has others, or files of the user
        directory.rmdir()


def _list(place: ShimPlace, programs: Sequence[str], json: bool) -> None:
    shims = installed(place)
    if unknown := [
        program for program in programs if program not in {shim.program for shim in shims}
    ]:
        raise UsageError(
            f"there is no shim of {unknown[0]!r}; install it with: sfactl shim install {unknown[0]}"
        )
    shims = [shim for shim in shims if not programs or shim.program in programs]
    kept = (
        _kept_by_login_shell(place.directory, [shim.program for shim in shims]) if shims else None
    )
    if json:
        about = {
            "directory": str(place.directory),
            "daemon": place.seen is not None,
            "login_shell": kept,
        }
        line = _for_profile(place.directory) if kept is False else None
        output.print_json({**about, "profile_line": line, "shims": shims})
        return
    if shims:
        print(table.of(_COLUMNS, shims))
    else:
        output.note(
            "sfactl: no shims; install them with, for example: sfactl shim install claude codex"
        )
    if outdated := [shim.program for shim in shims if shim.state == "outdated"]:
        output.note(
            f"sfactl: made by another sfad; fix it with: sfactl shim install {' '.join(outdated)}"
        )
    if missing := [shim.program for shim in shims if shim.state == "missing"]:
        output.note(
            f"sfactl: not in your PATH: {', '.join(missing)}; "
            "in a run with your PATH its shim exits with 127"
        )
    if kept is False:
        output.note(
            "sfactl: your login shell, which Codex uses, sets PATH again and loses the shims. "
            "Append to its file (~/.profile, "
            f"~/.bash_profile or ~/.zprofile):\n  {_for_profile(place.directory)}"
        )


def _kept_by_login_shell(directory: Path, programs: Sequence[str]) -> bool | None:
    """Return whether the user's login shell finds the shims if it is started in a run; `None` if it
    does not tell."""
    env = os.environ | {
        "PATH": f"{directory}:{os.environ.get('PATH', os.defpath)}",
        "SFA_RUN_ID": "login-shell",
    }
    shell = os.environ.get("SHELL") or pwd.getpwuid(os.getuid()).pw_shell
    try:
        told = subprocess.run(
            [shell, "-lc", "printenv PATH"], env=env, stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LOGIN,
            start_new_session=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    path = told.stdout.rstrip(b"\n").rpartition(b"\n")[2]  # a profile may print something
    return all(
        is_stand_in(next(found(os.fsencode(program), path), (b"", b""))[1]) for program in programs
    )


def _for_profile(directory: Path) -> str:
    return f'[ -z "$SFA_RUN_ID" ] || PATH={shlex.quote(str(directory))}:"$PATH"'


_FOUND = {None: "once a daemon runs", True: "yes", False: "no"}
_COLUMNS: dict[str, Callable[[InstalledShim], str]] = {
    "PROGRAM": lambda shim: shim.program,
    "STANDS FOR": lambda shim: shim.stands_for or "not in your PATH",
    "RUNS FIND IT": lambda shim: _FOUND[shim.found_by_runs],
    "STATE": lambda shim: shim.state,
}
