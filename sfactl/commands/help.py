"""Show the verbs, or explain one."""

from __future__ import annotations

from collections.abc import Sequence

from .. import verbs
from ..exits import ExitCode, UsageError
from ..options import Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (Argument("words", "VERB", "Verb to explain", many=True, required=False, complete="verb"),)


def main(*, words: Sequence[str] = ()) -> int:
    verb = " ".join(words) or None
    name = verbs.ALIASES.get(verb, verb) if verb is not None else None
    if name is not None and not (verbs.load(name) or verbs.is_group(name)):
        hint = verbs.suggestion(name) or f"; choose from: {', '.join(verbs.names())}"
        raise UsageError(f"unknown verb {name!r}{hint}")
    from ..typer_app import invoke

    invoke(["--help"] if name is None else [*name.split(" "), "--help"], name, lambda _verb, _values: ExitCode.DONE)
    return ExitCode.DONE
