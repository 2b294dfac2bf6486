"""The declaration."""

from typing import Annotated

from msgspec import Meta, Struct

from ...config_values import COMMAND, Form, NotAllowed
from ...core.state.access import Access
from ...core.state.policy import DURATION
from ...feature import Feature, Section
from ...protocol.event_types import EVENT_TYPES, unknown_pattern
from .messages import TryHook

TYPES = tuple(each for each in EVENT_TYPES if not each.startswith("hook_"))
"""Those that start hooks: a hook that is started when one fails could fail for ever."""


def _check_types(patterns: tuple[str, ...]) -> None:
    if "" in patterns:
        raise ValueError
    if (unknown := unknown_pattern(patterns, TYPES)) is not None:
        raise NotAllowed(
            "types of events, and patterns that match one; "
            f"{unknown!r} matches none of {', '.join(TYPES)}"
        )


_EVENTS = {
    "form": Form(
        "a list of types of events in which * stands for any letters, "
        'such as "run_failed" or "alert_*"',
        _check_types,
    )
}


class Hook(Struct, frozen=True, kw_only=True):
    """A command that is started at events (docs/hooks.md)."""

    on: Annotated[tuple[str, ...], Meta(min_length=1, extra=_EVENTS)]
    command: Annotated[tuple[str, ...], Meta(min_length=1, extra=COMMAND)]
    timeout: Annotated[float, Meta(ge=1, le=600, extra=DURATION)] = 30.0


Hooks = dict[str, Hook]
"""By name."""

CHANNEL = "hook"
"""The channel of runs that a hook starts. Their events start no hook, else a hook could start
itself for ever."""

DONE, ON_END = "hooks", "onend/"
"""Keys of the spool: how far each hook has come, and before a run's id its command of
`--on-end`."""

FEATURE = Feature(
    sections=(Section("hooks", Hooks, array=True),),
    verbs={TryHook: Access("admin", inside=False, narrowed_by=None, scope="none")},
    decides={"on_end": str},
    saved=(DONE, ON_END),
    channels={CHANNEL: "runs which a hook starts"},
    check="programs",
    part="part",
)
