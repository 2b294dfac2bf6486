"""The program between the trampoline and bubblewrap. Its words (`sandbox.Sandbox.words`) end with `--` and the command.

It decides what the command sees and can write, and becomes `bwrap`, which makes the namespaces and starts the command in them.
Both are outside of the sandbox, so the command's environment comes sealed, and takes effect inside.
"""

from __future__ import annotations

import os
import pwd
import sys

from ..sealed_environment import own, unsealed
from . import kernel, system_calls, visible

TYPE_CHECKING = False  # as in `typing`, whose import takes as long as all others
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import NoReturn

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL")
_MOST_VARIABLES = 2048
"""bubblewrap takes 9000 arguments, and three set a variable."""
_DEFAULT_SIGNALS = (
    "import os, signal, sys\n"
    "for number in (signal.SIGINT, signal.SIGQUIT): signal.signal(number, signal.SIG_DFL)\n"
    "for number in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(number, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[2:])"
)
"""Undoes within the sandbox what keeps bubblewrap alive outside."""


class _Settings:
    def __init__(self, words: list[str]) -> None:
        at = words.index("--")
        self._pairs = [(name, value) for name, _, value in (word.partition("=") for word in words[:at])]
        self.command = words[at + 1 :]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self._pairs)


def main(words: list[str]) -> None:
    """Become the command's sandbox. Return only by `SystemExit`, after a line on stderr."""
    kernel.default(kernel.SIGPIPE, kernel.SIGXFSZ, kernel.SIGINT)  # Python has changed these, and the command would inherit it
    settings = _Settings(words)
    try:
        _become_sandbox(settings)
    except (OSError, ValueError, visible.ForbiddenError) as error:
        _fail(NOT_EXECUTABLE, f"the command cannot be isolated: {error}")


def _become_sandbox(settings: _Settings) -> None:
    file = _file_of(settings)
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in unsealed(os.environb).items()}
    arguments = [*_NAMESPACES, *_view(settings, file, env), *_environment(env)]
    filtered = _memory("sfad-filter", system_calls.compiled(os.uname().machine))
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
    os.execve(settings.one("bwrap"), ["bwrap", "--args", str(said), "--", *command], own(os.environb))


def _environment(env: Mapping[str, str]) -> Iterator[str]:
    """Yield bubblewrap's words for the command's environment. Raise `ForbiddenError` for more than it takes."""
    if len(env) > _MOST_VARIABLES:
        raise visible.ForbiddenError(
            f"its environment has {len(env)} variables, and at most {_MOST_VARIABLES} are possible: unset some"
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


def _file_of(settings: _Settings) -> str:
    """Return the first of the files that execvp(3) would execute."""
    found = None
    for file in settings.all("file"):
        if os.path.isfile(file):
            if os.access(file, os.X_OK):
                return file
            found = found or file
    name = settings.command[0] if settings.command else "''"
    denied = f"cannot execute {found}: permission denied"
    return _fail(NOT_EXECUTABLE, denied) if found else _fail(NOT_FOUND, f"cannot execute {name}: no such file")


def _view(settings: _Settings, file: str, env: dict[str, str]) -> Iterator[str]:
    """Yield bubblewrap's words for what the command sees. Later mounts cover earlier ones."""
    here = os.getcwd()
    top = os.path.normpath(settings.one("directory") or here)
    home, agent = settings.one("home"), settings.one("agent")
    said = dict(_named(settings.all("variable")))
    homes = sorted({os.path.realpath(each) for each in (home, _home_by_name()) if each and each != "/"})
    own = visible.own_files(agent, home, said) if agent and home else []
    asked = settings.all("write")
    daemons = [os.path.realpath(path) for path in settings.all("hide")]
    secrets = [path for path in visible.secrets(homes, agent, said, root=os.geteuid() == 0) if path not in asked]
    hides = visible.topmost(path for path in (*daemons, *secrets) if os.path.lexists(path))
    writable = visible.writable(asked, own, top, [*homes, *hides], daemons)
    private = [path for path in visible.PRIVATE if os.path.isdir(path) and not os.path.islink(path)]

    covered = [*private, *(path for path in hides if os.path.isdir(path))]
    kept = visible.topmost(path for path in settings.all("keep") if os.path.exists(path) and visible.within_any(path, covered))
    if visible.within_any(os.path.realpath(file), covered) and not visible.within_any(file, [top, *writable, *kept]):
        raise visible.ForbiddenError(f"it would not see {file}: put it elsewhere, or name its directory with --writable")

    yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
    for path in visible.SETTINGS:
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in private:
        yield from ("--tmpfs", path)
    if visible.within_any(top, visible.TEMPORARY) and top not in private:
        yield from ("--ro-bind", top, top)
    for path in visible.visible_of_private():
        yield from ("--ro-bind", path, path)
    seen = [path for path in hides if not visible.within_any(path, private) or visible.within(path, top)]
    folders = [path for path in seen if os.path.isdir(path)]
    for path in seen:
        yield from ("--tmpfs", path) if path in folders else ("--ro-bind", "/dev/null", path)
    for path in visible.sockets([*private, *hides, *writable]):
        yield from ("--ro-bind", "/dev/null", path)
    yield from _own_cgroup()
    for path in writable:
        yield from ("--bind", path, path)
    for path in kept:
        yield from ("--ro-bind", path, path)
    yield from _door(settings.one("door"))
    for path in [*folders, *(path for path in private if path == "/run")]:
        yield from ("--remount-ro", path)
    temporary = env.get("TMPDIR")
    if temporary and os.path.realpath(temporary) not in private and not visible.within_any(os.path.realpath(temporary), writable):
        env["TMPDIR"] = visible.TEMPORARY[0]  # that of the user is read-only, or not there
    yield from ("--chdir", here)


def _named(items: list[str]) -> Iterator[tuple[str, str]]:
    for item in items:
        name, _, value = item.partition("=")
        yield name, value


def _home_by_name() -> str:
    """Return the home directory that the variable HOME cannot change."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # of a user without an entry
        return ""


def _door(socket: str) -> Iterator[str]:
    """Yield the words that show the daemon's socket. Its directory is shown where nothing else is in it: the next daemon will make
    another socket."""
    directory, name = os.path.split(socket)
    try:
        alone = os.listdir(directory) == [name]
    except OSError:
        alone = False
    shown = directory if alone else socket
    if os.path.exists(shown):
        yield from ("--ro-bind", shown, shown)


def _own_cgroup() -> Iterator[str]:
    """Yield the words that hide the cgroups of others, and show the run's own where programs look for their limits."""
    if not os.path.isdir("/sys/fs/cgroup"):
        return
    mount, path = "", ""
    with open("/proc/self/mountinfo") as file:
        mount = next((line.split(" ")[4] for line in file if " - cgroup2 " in line), "")
    with open("/proc/self/cgroup") as file:
        path = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    own = f"{mount}{path}"
    shown = mount and "/sfad-" in path and os.path.isdir(own)
    if mount != "/sys/fs/cgroup" or not shown:
        yield from ("--tmpfs", "/sys/fs/cgroup")
    if shown:
        yield from ("--ro-bind", own, mount)
    if mount != "/sys/fs/cgroup" or not shown:
        yield from ("--remount-ro", "/sys/fs/cgroup")


def _fail(code: int, message: str) -> NoReturn:
    os.write(2, f"sfad: {message}\n".encode(errors="surrogateescape"))
    raise SystemExit(code)
