"""The loop identity of a command that was not named: what a person would call the agent.

Looks through interpreters and launchers: `python x.py` is `x`, `npx codex` is `codex`, `env A=1
nice claude` is `claude`, `sh -c TEXT` is `sh-` and eight hex digits of its hash. To do so it must
know which options of a launcher take a value; the tables below list those, and nothing else is
known of any program.
"""

import hashlib
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from ...protocol.known import KNOWN_PROGRAMS, is_helper, is_named_so
from ...protocol.texts.sanitise import is_invisible

NAME = "1 to 64 letters, digits, . _ and -, not beginning with -"
"""What a name is, for messages."""
LONGEST = 64
_PLAIN = re.compile(r"[A-Za-z0-9._-]*")

_BY_PACKAGE = {
    package: name for name, program in KNOWN_PROGRAMS.items() for package in program.packages
}
AGENT_COMMANDS = frozenset({*KNOWN_PROGRAMS, *_BY_PACKAGE})
"""Derived names of programs that are coding agents, and of the packages that they come in."""

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox"})
_SHELL = "o O --rcfile --init-file --command"
"""Options of shells that take a value."""

_NODE = (
    "r e p C --require --import --loader --experimental-loader --eval "
    "--print --conditions --tsconfig"
)
_INTERPRETERS = {
    "python": "c m W X", "pypy": "c m W X", "node": _NODE, "nodejs": _NODE, "tsx": _NODE,
    "bun": _NODE, "deno": "c --config --import-map --lock", "ruby": "e I r C", "perl": "e E I",
    "php": "r d f c", "lua": "e l", "Rscript": "e",
}  # fmt: skip
"""Interpreters, and their options that take a value."""

_CODE = {"python": "-c", "pypy": "-c", "php": "-r"}
"""The option whose value is the program itself; `-e` and its like where nothing is said."""

_LAUNCHERS = {
    "env": "u C S --unset --chdir --split-string", "nice": "n --adjustment", "nohup": "",
    "setsid": "", "stdbuf": "i o e --input --output --error", "time": "o f --output --format",
    "ionice": "c n --class --classdata", "chrt": "T P D", "taskset": "",
    "timeout": "k s --kill-after --signal", "unbuffer": "", "exec": "a", "command": "",
    "sudo": "u g h p C c R D T r t U --user --group --host --prompt --chdir --chroot --role --type",
    "doas": "u C", "xvfb-run": "n e f p s w", "strace": "o e s a p u E I O S P X b", "flock": "w E",
    "watch": "n --interval",
    "systemd-run": (
        "p E u H M --unit --property --setenv --uid --gid --slice --description --working-directory"
    ),
    "npx": "p c w --package --call --workspace", "bunx": "p --package",
    "uvx": (
        "p w --from --with --with-editable --with-requirements --python "
        "--index --index-url --env-file"
    ),
    "pipx": "i --spec --python --pip-args --index-url",
}  # fmt: skip
"""Programs whose first operand is the command to run, and their options that take a value."""

_OPERANDS_FIRST = {"chrt": 1, "taskset": 1, "timeout": 1, "flock": 1}
"""Operands before the command: a duration, a mask, a priority, a lock file."""

_UV = (
    "m p w --module --with --with-editable --with-requirements --python --project --directory "
    "--extra --group --package --env-file --index"
)
_RUNNERS = {
    "uv": ("run", _UV), "poetry": ("run", "C P --directory --project"), "pipenv": ("run", ""),
    "pixi": ("run", "e --environment"), "pdm": ("run", "p --project"), "hatch": ("run", "e --env"),
    "rye": ("run", ""), "conda": ("run", "n p --name --prefix --cwd"),
    "npm": ("exec x run run-script", "p c w --package --call --workspace --prefix"),
    "pnpm": ("exec dlx run", "C --dir --package"), "yarn": ("exec dlx run", "p --package --cwd"),
    "bun": ("x", "p --package"), "mise": ("exec x", "C --cd"),
}  # fmt: skip
"""Project tools: the subcommands that run something, and options that take a value."""

_PACKAGES = frozenset({"npx", "bunx", "uvx", "pipx", "npm", "pnpm", "yarn", "bun"})
"""What these run may be written as a package with scope and version."""

_SUFFIX = re.compile(
    r"\.(py|pyw|pyz|sh|bash|zsh|js|mjs|cjs|ts|mts|cts|tsx|rb|pl|php|lua|jar|exe|R|r)$"
)
_VERSION = re.compile(r"[0-9][0-9.]*t?$")
_OF_VERSION = re.compile(r"/(?P<program>[^/]+)/versions/[^/]*[0-9][^/]*(/index\.js)?$")
"""Installers that keep several versions: `~/.local/share/claude/versions/2.1.330`."""
_AFTER_PACKAGE = re.compile(r"[@=<>~!\[#]")
_ENTRY_POINTS = frozenset({"cli", "index", "main", "__main__"})
"""Files that say nothing by themselves: two packages whose agents are both called `cli` would look
like a loop."""

_DEEPEST = 16
"""Launchers looked through. A command with more of them gets the name of the last one: the work
must not grow with its square."""


def is_name(text: str) -> bool:
    """Return whether `text` is a name: letters and digits of any script. Nothing in it can steer a
    terminal or is invisible, and no program takes it for an option."""
    if not 0 < len(text) <= LONGEST or text.startswith("-"):
        return False
    return _PLAIN.fullmatch(text) is not None or (not _is_mark(text[0]) and all(map(_fits, text)))


def one_form(name: str) -> str:
    """Return the name in the one form in which names are compared: `Ü` may be written as one
    character or as two."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _fits(character: str) -> bool:
    return character in "._-" or (
        (character.isalnum() or _is_mark(character)) and not is_invisible(character)
    )


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Mc")


def derive_name(argv: Sequence[str]) -> str:
    """The name of a command. Never empty; always a name."""
    # the start of a run asks several times
    if len(argv) <= _MAX_REMEMBERED and sum(map(len, argv)) <= _MAX_REMEMBERED:
        return _remembered(tuple(argv))
    return _derived(argv)


_MAX_REMEMBERED = 4096
"""Words, and characters in them."""


def _derived(argv: Sequence[str]) -> str:
    words = list(argv)
    for _ in range(_DEEPEST):
        program = _base(words[0]) if words else ""
        inner = _look_inside(program, words[1:])
        if not inner:
            return _clean(program)
        if isinstance(inner, str):
            return _clean(inner)
        words = inner
    return _clean(_base(words[0]))


_remembered = lru_cache(maxsize=64)(_derived)


def program_name(argv: Sequence[str]) -> str:
    """The program of a command by the name that the config has for it, however it was installed:
    `npx @google/gemini-cli` is `gemini`."""
    name = derive_name(argv)
    return _BY_PACKAGE.get(name, name)


def executes(argv: Sequence[str], program: str) -> bool:
    """Return whether a process with this command line is the program itself, and neither launches
    it nor runs it in a shell."""
    name = _executed(argv)
    return _BY_PACKAGE.get(name, name) == program


def is_launcher(words: Sequence[str]) -> bool:
    """Return whether a process executes a launcher, such as `timeout`, and not yet what that
    starts."""
    return bool(words) and words[0].rpartition("/")[2] in _LAUNCHERS


def executed_word(argv: Sequence[str], program: str) -> int | None:
    """Return where a command names the program that it executes; `None` if it executes another, or
    does not say so in a word of its own, as `sh -c` and `env -S` do not."""
    return named_word(argv, program) if program_name(argv) == program else None


def named_word(argv: Sequence[str], program: str) -> int | None:
    """Return where a command names its program, which is known; `None` if that is not a word of its
    own."""
    for at, word in enumerate(argv):
        name = _clean(_base(_package(word)))
        if _BY_PACKAGE.get(name, name) == program:
            return at
    return None


_ONLY_TELLS = frozenset({"--version", "--help", "-v", "-V", "-h"})
"""Last arguments with which a program tells something and ends."""

_VERBOSE = frozenset({"aider"})
"""Programs whose `-v` is not a version."""

_SUBCOMMAND = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def agent_of(argv: Sequence[str], programs: Collection[str]) -> str | None:
    """Return which of `programs` a running process is, by its command line. A file that
    stands in for the program is not it, but asks for it or finds it."""
    if not argv or only_tells(argv):
        return None
    if not argv[0].startswith("/"):
        # a title that the process has given itself: `npm exec @openai/codex`
        argv = [argv[0].split(" ")[0], *argv[1:]]
    name = _executed(argv)
    file = next((word for word in argv if _base(word) == name), "")
    program = _BY_PACKAGE.get(name, name)
    if program not in programs or is_named_so(file, name) or is_helper(argv, program):
        return None
    return program


def only_tells(argv: Sequence[str]) -> bool:
    """Return whether a program with this command line tells something of itself and ends. Behind an
    option or `--`, the same word may be a value or a task, and so the program may call its model:
    only subcommands may come before it."""
    if argv[-1:] == [] or argv[-1] not in _ONLY_TELLS:
        return False
    arguments = _arguments(argv)
    if arguments[-1:] == ["-v"] and _executed(argv) in _VERBOSE:
        return False
    return 0 < len(arguments) < 4 and all(map(_SUBCOMMAND.fullmatch, arguments[:-1]))


def _arguments(argv: Sequence[str]) -> list[str]:
    """Return the arguments of the program that a process executes, behind the options of its shell
    or interpreter."""
    first, rest = _base(argv[0]), list(argv[1:])
    plain = _VERSION.sub("", first[:64]) or first
    if plain in _SHELLS:
        return _parse(rest, _SHELL)[1][1:]
    if plain not in _INTERPRETERS:
        return rest
    found, operands = _interpreted(plain, rest)
    module = _value(found, "-m") if plain in {"python", "pypy"} else None
    return rest[rest.index(module) + 1 :] if module in rest else operands[1:]


def file_program(path: str, programs: Collection[str]) -> str | None:
    """Return which of `programs` a file is, by its path: the file itself, not a link to it."""
    program = agent_of([path], programs)
    match = _OF_VERSION.search(path)
    if program is None and match is not None:
        program = match["program"] if match["program"] in programs else None
    return program


def interpreter_of(path: str) -> str | None:
    """Return which interpreter a file is, by its path."""
    base = _base(path)
    plain = _VERSION.sub("", base[:64]) or base
    return plain if plain in _INTERPRETERS else None


def script_word(interpreter: str, argv: Sequence[str]) -> int | None:
    """Return which word of an interpreter's command is the file of the script; `None` if there is
    none."""
    name = _VERSION.sub("", interpreter) or interpreter
    if name not in _INTERPRETERS:
        return None
    found, operands = _interpreted(name, list(argv[1:]))
    no_file = _code(name, found) is not None or (name in {"python", "pypy"} and _value(found, "-m"))
    return len(argv) - len(operands) if operands and not no_file else None


def _executed(argv: Sequence[str]) -> str:
    """Return the name of a command, without looking behind launchers and `sh -c`: what these run is
    a process of its own."""
    first = _base(argv[0]) if argv else ""
    plain = _VERSION.sub("", first[:64]) or first
    inner = _of_shell(plain, list(argv[1:])) if plain in _SHELLS else None
    inner = _of_interpreter(plain, list(argv[1:])) if plain in _INTERPRETERS else inner
    return inner if isinstance(inner, str) else first


def _look_inside(program: str, rest: list[str]) -> list[str] | str | None:
    """What the program runs: a shorter command to look at again, a name, or nothing if the program
    is the agent itself."""
    plain = _VERSION.sub("", program[:64]) or program
    if plain in _SHELLS:
        return _of_shell(plain, rest)
    if program in _RUNNERS and (found := _of_runner(program, rest)):
        return found
    if plain in _INTERPRETERS:
        return _of_interpreter(plain, rest)
    if program == "java":
        return _of_java(rest)
    if program in _LAUNCHERS:
        return _of_launcher(program, rest)
    return None


def _parse(words: list[str], valued: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and what follows them, as getopt(3) would see it."""
    takes = valued.split()
    found: list[tuple[str, str]] = []
    rest = list(reversed(words))
    while rest and rest[-1][:1] in {"-", "+"} and len(rest[-1]) > 1:
        word = rest.pop()
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found.append((name, value if equals else rest.pop() if name in takes and rest else ""))
            continue
        # no program has more letters, and a word may have megabytes
        for at, letter in enumerate(word[1:65], start=2):
            if letter in takes:
                found.append((f"-{letter}", word[at:] or (rest.pop() if rest else "")))
                break
            found.append((f"-{letter}", ""))
    return found, rest[::-1]


def _value(found: Iterable[tuple[str, str]], *names: str) -> str | None:
    return next((value for name, value in found if name in names), None)


def _of_shell(shell: str, rest: list[str]) -> list[str] | str | None:
    found, operands = _parse(rest, _SHELL)
    if shell == "busybox":
        return operands
    text = (
        operands[0] if _value(found, "-c") is not None and operands else _value(found, "--command")
    )
    if text is not None:
        return f"sh-{_hash(text)}"
    return _base(operands[0]) if operands and _value(found, "-s") is None else None


def _interpreted(name: str, rest: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of an interpreter, and what follows them."""
    found, operands = _parse(rest, _INTERPRETERS[name])
    if name in {"bun", "deno"} and operands[:1] in (["run"], ["eval"]):
        more, operands = _parse(operands[1:], _INTERPRETERS[name])
        found += more
    return found, operands


def _code(name: str, found: Iterable[tuple[str, str]]) -> str | None:
    """Return the program that is a value of an interpreter's option."""
    names = (_CODE[name],) if name in _CODE else ("-e", "-E", "-p", "--eval", "--print")
    valued = _INTERPRETERS[name].split()
    return _value(found, *(each for each in names if each.startswith("--") or each[1:] in valued))


def _of_interpreter(name: str, rest: list[str]) -> str | None:
    found, operands = _interpreted(name, rest)
    text = _code(name, found)
    if text is not None:
        return f"code-{_hash(text)}"
    module = (
        _value(found, "-m")
        if name in {"python", "pypy"}
        else _value(found, "-f")
        if name == "php"
        else None
    )
    if module:
        return module.split(".")[0] if name != "php" else _base(module)
    return _base(operands[0]) if operands else None


def _of_java(rest: list[str]) -> str | None:
    words = iter(rest)
    for word in words:
        if word in {"-jar", "-m", "--module"}:
            return _base(next(words, ""))
        if word in {"-cp", "-classpath", "--class-path", "-p", "--module-path"}:
            next(words, None)
        elif not word.startswith("-"):
            return _base(word)
    return None


def _of_runner(program: str, rest: list[str]) -> list[str] | str | None:
    subcommands, valued = _RUNNERS[program]
    _, operands = _parse(rest, valued)
    if program == "uv" and operands[:2] == ["tool", "run"]:
        return ["uvx", *operands[2:]]
    if not operands or operands[0] not in subcommands.split():
        return None
    found, inner = _parse(operands[1:], valued)
    module = _value(found, "-m", "--module") if program == "uv" else None
    if module:
        return module.split(".")[0]
    return [_package(inner[0]), *inner[1:]] if inner and program in _PACKAGES else inner


def _of_launcher(program: str, rest: list[str]) -> list[str] | None:
    found, inner = _parse(rest, _LAUNCHERS[program])
    options = {"env": ("-S", "--split-string"), "npx": ("-c", "--call")}.get(program, ())
    string = _value(found, *options)
    if string:
        inner = [*_split(string), *inner]
    if program in {"env", "sudo", "doas"}:
        inner = inner[next((n for n, word in enumerate(inner) if "=" not in word), len(inner)) :]
    inner = inner[_OPERANDS_FIRST.get(program, 0) :]
    if program == "pipx" and inner[:1] == ["run"]:
        found, inner = _parse(inner[1:], _LAUNCHERS[program])
    return [_package(inner[0]), *inner[1:]] if inner and program in _PACKAGES else inner


def _split(text: str) -> list[str]:
    text = text[:4096]  # only its first words matter, and shlex takes its time
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _package(spec: str) -> str:
    """`@openai/codex@latest` → `codex`."""
    return _AFTER_PACKAGE.split(spec.rstrip("/").rsplit("/", 1)[-1], 1)[0] or spec


def _base(path: str) -> str:
    parts = path[-4096:].rstrip("/").split("/")
    name = _SUFFIX.sub("", parts[-1])
    if name in _ENTRY_POINTS:
        return next((above for above in _packages(parts[:-1])), name)
    return name


def _packages(parts: list[str]) -> Iterable[str]:
    """The directories just below `node_modules`, the innermost first; scopes are looked through."""
    for at in range(len(parts) - 1, 0, -1):
        above = parts[at - 2] if parts[at - 1].startswith("@") and at > 1 else parts[at - 1]
        if above == "node_modules" and not parts[at].startswith("@"):
            yield parts[at]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]


def _clean(name: str) -> str:
    if name.strip(".") and name.isascii() and is_name(name):
        return name  # as nearly all are, and a spawn asks ten times
    cleaned = "".join(c if _fits(c) else "-" for c in one_form(name[: 4 * LONGEST]))[:LONGEST]
    if cleaned and (cleaned[0] == "-" or _is_mark(cleaned[0])):
        cleaned = f"_{cleaned[1:]}"
    # "." and ".." would be dangerous where a name becomes a file name
    return cleaned if cleaned.strip(".") else "agent"
