"""Where programs are that a sandbox shows, read-only, in directories of which it shows nothing
else: in a home, below /data.

They come from variables and the command of the run that was isolated first, and from names that
installers use. What a run starts can choose none of them. No link is followed that the run could
have made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .visible import ForbiddenError, followed, within, within_any

_INSTALLED = (
    ".local/bin", ".local/lib", ".local/opt", ".local/share/claude", ".local/share/uv",
    ".local/share/pipx", ".local/pipx", ".local/share/mise", ".local/share/fnm",
    ".local/share/virtualenvs", ".virtualenvs", ".nvm", ".fnm", ".volta", ".nodenv", ".pyenv",
    ".rbenv", ".goenv", ".asdf", ".npm-global", ".npm-packages", ".cargo/bin", ".rustup",
    ".bun/bin", ".bun/install/global", ".deno/bin", "go/bin", ".dotnet", ".sdkman/candidates",
    ".opencode/bin", ".nix-profile", ".local/state/nix", "miniconda3", "anaconda3", "miniforge3",
    ".agents/skills",
)  # fmt: skip
"""Below a home directory: nothing but programs. Not caches such as ~/go/pkg, which a program would
want to write."""
_GIT = (".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes")
_CREDENTIALS = (b"token", b"passw", b"secret", b"extraheader")
VARIABLES = (
    "PATH", "PYTHONPATH", "NODE_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "NVM_DIR",
    "JAVA_HOME", "GOROOT", "RUSTUP_HOME", "DOTNET_ROOT", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
)  # fmt: skip
"""Where a user says that programs and the certificates that they trust are: paths, or lists of them
with colons."""
_FOLDERS = ("bin", "sbin", ".bin", "shims", "Scripts")
_SIGNS = ("lib", "lib64", "libexec", "pyvenv.cfg", "versions")
"""What an installation has beside its folder of programs."""
_SHARED = ("", ".local", ".local/share", ".config", ".cache")
"""Directories of a home that are no installation, whatever they hold."""
_INTERPRETERS = (
    "python",
    "python3",
    "node",
    "npm",
    "uv",
    "ruby",
    "java",
    "go",
    "git",
    "deno",
    "bun",
    "cargo",
    "perl",
)
"""What is often a link in /usr/local/bin or ~/.local/bin."""


def places(
    homes: Sequence[str], said: Mapping[str, str], program: str, changeable: Sequence[str]
) -> Iterator[str]:
    """Yield paths. `said`: variables of the run that was isolated first; `program`: the first word
    of its command. `changeable`: where the run can make links."""
    shared = [os.path.normpath(f"{home}/{name}") for home in homes for name in _SHARED]
    path = [each for each in said.get("PATH", "").split(":") if each.startswith("/")]
    found = [f"{home}/{name}" for home in homes for name in _INSTALLED]
    found += [f"{home}/{name}" for home in homes for name in _GIT if _is_harmless(f"{home}/{name}")]
    found += [_installation(each, shared) for each in path]
    found += [each for name in VARIABLES[1:] for each in said.get(name, "").split(":")]
    for file in _executed(program, path):
        found += _of_program(file, shared, changeable)
    for each in found:
        if (
            each.startswith("/")
            and os.path.exists(each)
            and not _leads(each, changeable)
            and not _is_shared(each, shared)
        ):
            yield os.path.normpath(each)


def _executed(program: str, path: Sequence[str]) -> Iterator[str]:
    """Yield the files of the command and of interpreters, and the interpreter that the command's
    first line names."""
    if "/" in program:
        yield program
    for name in (program, *_INTERPRETERS):
        yield from (
            f"{each}/{name}"
            for each in path
            if name and "/" not in name and os.path.lexists(f"{each}/{name}")
        )
    candidates = [program] if "/" in program else [f"{each}/{program}" for each in path]
    file = next((each for each in candidates if os.path.isfile(each)), None)
    if file is not None:
        yield from _interpreter(file)


def _interpreter(file: str) -> Iterator[str]:
    """Yield the program that the first line of a script names."""
    try:
        with open(file, "rb") as opened:
            line = opened.read(256).split(b"\n")[0]
    except OSError:
        return
    words = line[2:].split() if line.startswith(b"#!") else []
    if words and words[0].startswith(b"/"):
        yield os.fsdecode(words[0])


def _of_program(file: str, shared: Sequence[str], changeable: Sequence[str]) -> Iterator[str]:
    """Yield what a program consists of: each installation that a link to it, or the program itself,
    lies in."""
    try:
        real, links = followed(file)
    except ForbiddenError:
        return
    if any(within_any(link, changeable) for link in links):
        return
    for each in (*links, real):
        top, modules, _ = each.partition("/node_modules/")
        yield (
            f"{top}/node_modules"
            if modules
            else _installation(os.path.dirname(each), shared, otherwise=each)
        )


def _installation(folder: str, shared: Sequence[str], otherwise: str = "") -> str:
    """Return the directory that holds a folder of programs and what belongs to them; the folder if
    there is none."""
    folder = os.path.normpath(folder)
    above, name = os.path.split(folder)
    if name not in _FOLDERS:
        return otherwise or folder
    whole = name == ".bin" or any(os.path.exists(f"{above}/{sign}") for sign in _SIGNS)
    return above if whole and not _is_shared(above, shared) else folder


def _is_shared(path: str, shared: Iterable[str]) -> bool:
    real = os.path.realpath(path)
    return any(within(each, real) for each in shared)


def _leads(path: str, changeable: Sequence[str]) -> bool:
    """Return whether a run can change where a path leads."""
    try:
        return any(within_any(link, changeable) for link in followed(path)[1])
    except ForbiddenError:
        return True


def _is_harmless(path: str) -> bool:
    """Return whether settings of git hold nothing that looks like a credential."""
    try:
        with open(path, "rb") as file:
            text = file.read(1 << 20).lower()
    except OSError:
        return False
    hosts = [word.partition(b"://")[2].partition(b"/")[0] for word in text.split()]
    users = {host.rpartition(b"@")[0] for host in hosts}
    return not any(word in text for word in _CREDENTIALS) and users <= {b"", b"git"}
