"""The program between the trampoline and bubblewrap. Its words (`sandbox.Sandbox.words`) end with
`--` and the command.

It decides what the command sees and can write, and becomes `bwrap`, which makes the namespaces and
starts the command in them. Both are outside of the sandbox, so the command's environment comes
sealed, and takes effect inside.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import NoReturn

from ...processes.credentials import own, unsealed
from . import kernel
from .view import SandboxSettings, SandboxView
from .visible import TEMPORARY, ForbiddenError

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
)
_MOST_VARIABLES = 2048
"""bubblewrap takes 9000 arguments, and three set a variable."""
_PIECE = 1 << 16
"""Bytes of a file as stdin that are passed on at once."""
_DEFAULT_SIGNALS = (
    "import os, signal, sys\n"
    "for number in (signal.SIGINT, signal.SIGQUIT): signal.signal(number, signal.SIG_DFL)\n"
    "for number in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(number, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[2:])"
)
"""Undoes within the sandbox what keeps bubblewrap alive outside."""


def main(words: list[str]) -> None:
    """Become the command's sandbox. Return only by `SystemExit`, after a line on stderr."""
    # Python has changed these, and the command would inherit it
    kernel.default(kernel.SIGPIPE, kernel.SIGXFSZ, kernel.SIGINT)
    settings = SandboxSettings(words)
    try:
        _become_sandbox(settings)
    except (OSError, ValueError, ForbiddenError) as error:
        _fail(NOT_EXECUTABLE, f"the command cannot be isolated: {error}")


def _become_sandbox(settings: SandboxSettings) -> None:
    file = _file_of(settings)
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in unsealed(os.environb).items()}
    kernel.give_up_capabilities()
    _pass_on_stdin()
    view = SandboxView(settings, _say)
    if not view.sees(os.path.realpath(file)):
        raise ForbiddenError(f"it would not see {file}: name its directory with --readable")
    if (temporary := env.get("TMPDIR")) and not view.has_writable(os.path.realpath(temporary)):
        env["TMPDIR"] = TEMPORARY[0]  # that of the user is read-only, or not there
    if os.geteuid() == 0:
        kernel.keep_later_mounts_away(view.shown())
    arguments = [*_NAMESPACES, *view.words(), *_environment(env)]
    if settings.has("looks"):
        arguments.append("--die-with-parent")
    filtered = _memory("sfad-filter", kernel.compiled(os.uname().machine))
    arguments += ["--seccomp", str(filtered)]
    kernel.join_new_keyring()
    if settings.has("net"):
        arguments += ["--unshare-net", *_way_to_gateway(settings.one("port"))]
    else:
        kernel.leave_abstract_sockets()
    said = _memory("sfad-sandbox", b"".join(os.fsencode(word) + b"\0" for word in arguments))
    command = [file, *settings.command[1:]]
    if settings.has("terminal"):
        # the terminal sends them to bubblewrap as well, which would end
        kernel.ignore(kernel.SIGINT, kernel.SIGQUIT)
        command = [sys.executable, "-I", "-S", "-c", _DEFAULT_SIGNALS, file, *settings.command]
    os.execve(
        settings.one("bwrap"), ["bwrap", "--args", str(said), "--", *command], own(os.environb)
    )


def _pass_on_stdin() -> None:
    """Have another process pass on what a file contains, if stdin is one. Raises `OSError`.

    /proc/self/fd/0 opens a file again, for writing too, and past all that is mounted: it belongs to
    a mount of the machine."""
    kind = os.fstat(0).st_mode
    if (
        stat.S_ISCHR(kind)
        or stat.S_ISSOCK(kind)
        or os.readlink("/proc/self/fd/0").startswith("pipe:")
    ):
        return
    read, write = os.pipe()
    if os.fork():
        os.dup2(read, 0)
        os.close(read)
        os.close(write)
        return
    try:
        for descriptor in (read, 1, 2):
            os.close(descriptor)
        while data := os.read(0, _PIECE):
            os.write(write, data)  # SIGPIPE ends this process when the command reads no more
    finally:
        os._exit(0)


def _environment(env: Mapping[str, str]) -> Iterator[str]:
    """Yield bubblewrap's words for the command's environment. Raise `ForbiddenError` for more than
    it takes."""
    if len(env) > _MOST_VARIABLES:
        raise ForbiddenError(
            f"its environment has {len(env)} variables, "
            f"and at most {_MOST_VARIABLES} are possible: unset some"
        )
    for name, value in env.items():
        yield from ("--setenv", name, value)


def _way_to_gateway(port: str) -> list[str]:
    """Start the forwarder. Return the words that have the command wait for it."""
    if not port:
        return []
    from . import forwarder  # here, because its imports take as long as all others

    told, tells = os.pipe()
    waits, gate = os.pipe()
    forwarder.start(int(port), told, gate)
    os.set_inheritable(tells, True)
    os.set_inheritable(waits, True)
    return ["--info-fd", str(tells), "--block-fd", str(waits)]


def _memory(name: str, content: bytes) -> int:
    """Return a descriptor, for bubblewrap to inherit, from which it reads this."""
    descriptor = os.memfd_create(name, 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _file_of(settings: SandboxSettings) -> str:
    """Return the first of the files that execvp(3) would execute."""
    found = None
    for file in settings.all("file"):
        if os.path.isfile(file):
            if os.access(file, os.X_OK):
                return file
            found = found or file
    name = settings.command[0] if settings.command else "''"
    denied = f"cannot execute {found}: permission denied"
    return (
        _fail(NOT_EXECUTABLE, denied)
        if found
        else _fail(NOT_FOUND, f"cannot execute {name}: no such file")
    )


def _say(message: str) -> None:
    os.write(2, f"sfad: {message}\n".encode(errors="surrogateescape"))


def _fail(code: int, message: str) -> NoReturn:
    _say(message)
    raise SystemExit(code)
