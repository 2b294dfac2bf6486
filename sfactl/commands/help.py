"""Show this list, or explain a verb.

The list of verbs, or the help of one: the same as --help.
"""

from __future__ import annotations

from .. import verbs
from ..exits import ExitCode, UsageError
from ..options import Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (Argument("verb", "VERB", "What to explain", required=False, complete="verb"),)


def main(*, verb: str | None = None) -> int:
    """Prints help."""
    name = verbs.ALIASES.get(verb, verb) if verb is not None else None
    if name is not None and verbs.load(name) is None:
        raise UsageError(f"there is no verb {name!r}; the verbs are: {', '.join(verbs.names())}")
    from ..typer_app import invoke

    invoke(["--help"] if name is None else [name, "--help"], name, lambda _verb, _values: ExitCode.DONE)
    return ExitCode.DONE
