"""Completion of plain command lines, from the declarations that `options.read` reads. `typer_app` completes the others.

A test compares both. The scripts that `sfactl completion` prints are typer's, and so is the form of the answers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from . import verbs
from .options import Argument, Option, Parameter

Split = Callable[[Sequence[str]], tuple[list[str], str | None, list[str]]]
Candidate = tuple[str, str]

HELP = Option(("-h", "--help"), "help", "Show this message and exit.")
UNPLAIN = frozenset("\"'\\`$")
"""Characters that a shell reads."""


def answered(shell: str, split: Split) -> int | None:
    """Print the words with which the command line in the environment may go on, for one of typer's scripts. Return the exit code,
    or `None` if the line is not plain. `split` finds the verb in it."""
    line = os.environ.get("COMP_WORDS" if shell == "bash" else "_TYPER_COMPLETE_ARGS", "")
    if shell not in _FORMS or not UNPLAIN.isdisjoint(line):
        return None
    words = line.split()[1:]
    if shell == "bash":
        at = int(os.environ.get("COMP_CWORD", "1")) - 1
        words, begun = words[:at], "".join(words[at : at + 1])
    else:
        begun = words.pop() if words and not line[-1].isspace() else ""
    found = _found(words, begun, split)
    if found is None:
        return None
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1
    sys.stdout.write(f"{_FORMS[shell](found)}\n")
    sys.stdout.flush()
    return 0


def _found(words: Sequence[str], begun: str, split: Split) -> list[Candidate] | None:
    if not words and not begun.startswith("-"):
        names = [name for name in (*verbs.names(), *verbs.ALIASES) if name.startswith(begun)]
        return [(name, verbs.summary(verbs.ALIASES.get(name, name))) for name in names]
    before, verb, after = split(words)
    module = verbs.load(verb) if verb is not None else None
    if module is None or "--" in after or any("=" in word for word in (begun, *before, *after) if word.startswith("-")):
        return None
    return _of_verb(module.PARAMETERS, [*before, *after], begun, takes_command=getattr(module, "TAKES_COMMAND", False))


def _of_verb(parameters: Sequence[Parameter], words: Sequence[str], begun: str, *, takes_command: bool) -> list[Candidate] | None:
    options = {flag: p for p in parameters if isinstance(p, Option) for flag in p.flags}
    given: dict[str, str] = {}
    positional: list[str] = []
    rest = iter(words)
    for word in rest:
        option = options.get(word)
        if option is None:
            positional.append(word)
        else:
            given[option.target] = word
            if option.metavar and not option.alone and next(rest, None) is None and not begun.startswith("-"):
                return _candidates(option.complete, begun, words, options)
    if any(word.startswith("-") for word in positional) or (takes_command and positional):
        return None
    if begun.startswith("-"):
        shown = [p for p in (*parameters, HELP) if isinstance(p, Option) and (p.many or p.target not in given)]
        return [(flag, p.help) for p in shown for flag in p.flags if flag.startswith(begun)]
    arguments = [p for p in parameters if isinstance(p, Argument)]
    left = [p for at, p in enumerate(arguments) if p.many or at >= len(positional)]
    return _candidates(left[0].complete, begun, words, options) if left else []


def _candidates(kind: str, begun: str, words: Sequence[str], options: dict[str, Option]) -> list[Candidate]:
    if not kind:
        return []
    from .shell_completion import candidates

    sockets = [after for word, after in pairwise(words) if word == "--socket"] if "--socket" in options else []
    return candidates(kind, begun, sockets[-1] if sockets else None)


def _for_bash(found: Iterable[Candidate]) -> str:
    return "\n".join(word for word, _about in found)


def _for_zsh(found: Iterable[Candidate]) -> str:
    lines = [f'"{_escaped(word)}":"{_escaped(about)}"' if about else f'"{_escaped(word)}"' for word, about in found]
    return "_arguments '*: :(({}))'".format("\n".join(lines)) if lines else "_files"


def _escaped(text: str) -> str:
    for character, instead in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", "\\\\:")):
        text = text.replace(character, instead)
    return text


def _for_fish(found: Iterable[Candidate]) -> str:
    return "\n".join(f"{word}\t{' '.join(about.split())}" if about else word for word, about in found)


_FORMS = {"bash": _for_bash, "zsh": _for_zsh, "fish": _for_fish}
