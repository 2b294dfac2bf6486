"""Show the verbs, or explain one."""

from .. import verbs
from ..exits import ExitCode, UsageError
from ..options import Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (Argument("verb", "VERB", "Verb to explain", required=False, complete="verb"),)


def main(*, verb: str | None = None) -> int:
    name = verbs.ALIASES.get(verb, verb) if verb is not None else None
    if name is not None and verbs.load(name) is None:
        raise UsageError(f"unknown verb {name!r}; choose from: {', '.join(verbs.names())}")
    from ..typer_app import invoke

    invoke(["--help"] if name is None else [name, "--help"], name, lambda _verb, _values: ExitCode.DONE)
    return ExitCode.DONE
