"""Show this list, or explain a verb.

Shows the list of verbs, or the help of one, like --help.
"""

from .. import verbs
from ..exits import ExitCode, UsageError
from ..options import Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (Argument("verb", "VERB", "What to explain", required=False, complete="verb"),)


def main(*, verb: str | None = None) -> int:
    """Print help."""
    name = verbs.ALIASES.get(verb, verb) if verb is not None else None
    if name is not None and verbs.load(name) is None:
        raise UsageError(f"unknown verb {name!r}; choose from: {', '.join(verbs.names())}")
    from ..typer_app import invoke

    invoke(["--help"] if name is None else [name, "--help"], name, lambda _verb, _values: ExitCode.DONE)
    return ExitCode.DONE
