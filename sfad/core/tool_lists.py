"""Which tools a run may use: the lists of `--allow-tool` and `--block-tool`, and how a child's are narrowed."""

from typing import NamedTuple

from .policy import Invalid


class ToolLists(NamedTuple):
    """Names of tools, or patterns such as `Bash(git:*)`."""

    allowed: tuple[str, ...] = ()
    """The only ones; all, where there is none."""
    blocked: tuple[str, ...] = ()


def narrowed(own: ToolLists, above: ToolLists, caller: str) -> ToolLists:
    """Return the lists of a run that asks for `own`, started by a run with `above` that messages call `caller`: it may use what
    both allow, and neither blocks. Raise `Invalid` if none of its tools is left: no list would allow all."""
    blocked = tuple(dict.fromkeys((*above.blocked, *own.blocked)))
    if not (own.allowed and above.allowed):
        return ToolLists(own.allowed or above.allowed, blocked)
    within = [tool for tool in own.allowed if tool in above.allowed or name_of(tool) in above.allowed]
    # of two patterns of one tool, it is not known which allows less
    within += [tool for tool in above.allowed if name_of(tool) in own.allowed]
    if not within:
        raise Invalid(
            f"none of the tools {', '.join(own.allowed)} is among those of {caller}, which may use {', '.join(above.allowed)}; "
            "name some of these"
        )
    return ToolLists(tuple(dict.fromkeys(within)), blocked)


def name_of(tool: str) -> str:
    """Return the tool of a pattern such as `Bash(git:*)`."""
    return tool.partition("(")[0]
