"""The kinds of limit, one row each: unit, range, default, whose use counts, who counts it, and how
it is written.

The rest of the daemon and `sfactl` derive their lists from this table. `LimitKind` in `types` has
the words; a new kind needs a word there, a row here, and the code that counts it
(docs/architecture.md has the steps).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .types import LimitKind


class LimitSpec(Struct, frozen=True):
    letter: str
    """Its name where there is room for one character (`sfactl top`)."""
    unit: Literal["s", "USD", "bytes", "cores", "%", ""]
    """Of thresholds and amounts on the wire; empty for a plain number."""
    counts: str
    scope: Literal["run", "tree"]
    """Whose use counts: the run's own, or also its descendants'."""
    counted_by: Literal["clock", "meter", "kernel", "output", "signs", "plan"]
    """`meter`: the agent's events, session files and reports, so the limit holds only where one of
    them tells the use. `signs`: whatever shows that the run does something (`sfad.usage.silence`).
    `plan`: what the provider tells of a subscription's windows."""
    least: float
    most: str = ""
    """The key of `[limits]` in the config, and field of `Policy`, that holds the upper end of the
    range; empty: there is none."""
    default: float | None = None
    instead: str = ""
    """What happens at a limit that takes no action."""
    key: str = ""
    """The key of `[defaults]` in the config, where it is not the kind."""
    learned_from: str = ""
    """The field of `Usage` that limits are learned from; empty: they are not learned."""
    words: tuple[str, ...] = ()
    """Other words for the kind: singulars, and what agent frameworks call it."""
    fields: tuple[str, ...] = ()
    """The fields of the JSON object of `--limits` that set it. One in `_ms` takes milliseconds."""

    @property
    def suffix(self) -> str:
        """What stands behind a bare number of the unit."""
        return self.unit if self.unit in ("", "s", "%") else f" {self.unit}"

    @property
    def whole(self) -> bool:
        return self.unit in ("", "bytes")

    @property
    def acts(self) -> bool:
        return not self.instead


KINDS: dict[LimitKind, LimitSpec] = {
    LimitKind.TIME: LimitSpec(
        "t", "s", "seconds without pauses", "run", "clock", 1.0, "max_time", default=120.0,
        key="timeout", learned_from="elapsed_s",
        words=("wall", "wall_time", "timeout", "duration", "execution_time"),
        fields=("max_duration_ms",),
    ),
    LimitKind.TURNS: LimitSpec(
        "n", "", "tool calls", "run", "meter", 1, "max_turns", default=25, learned_from="turns",
        words=("turn", "tool_call", "tool_calls", "iter", "iteration", "iterations", "steps"),
        fields=("max_turns",),
    ),
    LimitKind.MESSAGES: LimitSpec(
        "m", "", "messages of the model", "run", "meter", 1, learned_from="messages",
        words=("message",), fields=("max_messages",)
    ),
    LimitKind.TOKENS: LimitSpec(
        "k", "", "tokens in and out", "tree", "meter", 1, learned_from="tokens",
        words=("token", "total_tokens"), fields=("max_tokens",)
    ),
    LimitKind.COST: LimitSpec(
        "$", "USD", "USD", "tree", "meter", 0.01, "max_cost", default=1.0, learned_from="cost_usd",
        words=("usd", "cost_usd", "total_cost", "total_cost_usd", "budget_usd"),
        fields=("max_cost_usd", "max_total_cost_usd"),
    ),
    LimitKind.PLANNING_COST: LimitSpec(
        "p", "USD", "USD reported as planning", "tree", "meter", 0.01, "max_cost",
        words=("planning", "planning_cost_usd"), fields=("max_planning_cost_usd",),
    ),
    LimitKind.EXECUTION_COST: LimitSpec(
        "x", "USD", "USD reported as execution", "tree", "meter", 0.01, "max_cost",
        words=("execution", "execution_cost_usd"), fields=("max_execution_cost_usd",),
    ),
    LimitKind.OUTPUT: LimitSpec(
        "o", "bytes", "bytes kept of stdout, and of stderr", "run", "output", 2**16, "max_output",
        default=2**26, instead="the oldest is freed",
    ),
    LimitKind.SILENCE: LimitSpec(
        "q", "s", "seconds without a sign of life", "run", "signs", 1.0, words=("quiet", "idle"),
        fields=("max_silence_ms",)
    ),
    LimitKind.WAITING: LimitSpec(
        "h", "s", "seconds of waiting for a person", "run", "signs", 1.0, words=("person",),
        fields=("max_waiting_ms",)
    ),
    # with less than a mebibyte no command can be executed
    LimitKind.MEMORY: LimitSpec("M", "bytes", "bytes of memory", "tree", "kernel", 2**20,
                                words=("mem",)),
    LimitKind.PIDS: LimitSpec("#", "", "processes", "tree", "kernel", 1, default=1024,
                              words=("pid", "processes")),
    # the kernel takes no less than 1 ms of every 100 (`cpu.max`, cgroups(7))
    LimitKind.CPU: LimitSpec("c", "cores", "cores", "tree", "kernel", 0.01, instead="throttled",
                             words=("cpus", "cores")),
    LimitKind.PLAN: LimitSpec("w", "%", "percent of a subscription's shorter window", "tree",
                              "plan", 1),
}  # fmt: skip
"""In the order in which limits are shown."""

TIMED = frozenset(kind for kind, spec in KINDS.items() if spec.unit == "s")
"""Kinds of which a breach is use at the threshold, not above it."""

ROLES = (LimitKind.PLANNING_COST, LimitKind.EXECUTION_COST)
ROLES_ARE_REPORTED = "only reports and reservations with --role tell what the calls of a role cost"
"""Kinds of cost that only reports and reservations tell apart."""

METERED_KINDS = frozenset(kind for kind, spec in KINDS.items() if spec.counted_by == "meter")
"""Kinds that cannot be enforced unless a meter or the agent tells what the run uses."""

COSTS = frozenset(kind for kind, spec in KINDS.items() if spec.unit == "USD")

BY_KERNEL = tuple(kind for kind, spec in KINDS.items() if spec.counted_by == "kernel")

TREE_USE = tuple(kind for kind in KINDS if kind in METERED_KINDS and KINDS[kind].scope == "tree")
"""Kinds of use that count against every ancestor as well."""

COUNTS = tuple(kind.value for kind in KINDS if kind in METERED_KINDS and KINDS[kind].scope == "run")
"""Numbers that a source tells and the daemon only adds up. They have these names in `Reading`,
`Use`, `Usage` and `Report`."""

DEFAULT_KEYS = {kind: spec.key or kind.value for kind, spec in KINDS.items()}
