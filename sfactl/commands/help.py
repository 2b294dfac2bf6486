from typing import Annotated

from .. import verbs
from ..app import app, context
from ..exits import UsageError
from ..options.shared import Value


@app.command("help")
def help_(
    verb: Annotated[list[str], Value("VERB", words="verb").argument("Verb to explain")] = [],
) -> None:
    """Show the verbs, or explain one."""
    name = " ".join([verbs.ALIASES.get(verb[0], verb[0]), *verb[1:]]) if verb else None
    if name is not None and name not in verbs.SUMMARIES:
        hint = verbs.suggestion(name) or f"; choose from: {', '.join(verbs.known())}"
        raise UsageError(f"unknown verb {name!r}{hint}")
    print(context(*(name.split(" ") if name is not None else ())).get_help())
