"""What a spawn request asks for, as far as the core decides about it; which tools a run may use."""

from typing import NamedTuple

from msgspec import Struct

from ...protocol.types import Action, After, Bound, Claim, Grant, Kind, Limit, Placing, RunId
from .policy import Invalid

# ---- Which tools a run may use: the lists of `--allow-tool` and `--block-tool`, and how a child's
# are narrowed


class ToolLists(NamedTuple):
    """Names of tools, or patterns such as `Bash(git:*)`."""

    allowed: tuple[str, ...] = ()
    """The only ones; all, where there is none."""
    blocked: tuple[str, ...] = ()


def narrowed(own: ToolLists, above: ToolLists, caller: str) -> ToolLists:
    """Return the lists of a run that asks for `own`, started by a run with `above` that messages
    call `caller`: it may use what both allow, and neither blocks. Raise `Invalid` if none of its
    tools is left: no list would allow all."""
    blocked = tuple(dict.fromkeys((*above.blocked, *own.blocked)))
    if not (own.allowed and above.allowed):
        return ToolLists(own.allowed or above.allowed, blocked)
    within = [
        tool for tool in own.allowed if tool in above.allowed or name_of(tool) in above.allowed
    ]
    # of two patterns of one tool, it is not known which allows less
    within += [tool for tool in above.allowed if name_of(tool) in own.allowed]
    if not within:
        raise Invalid(
            f"none of the tools {', '.join(own.allowed)} is among those of {caller}, "
            f"which may use {', '.join(above.allowed)}; name some of these"
        )
    return ToolLists(tuple(dict.fromkeys(within)), blocked)


def name_of(tool: str) -> str:
    """Return the tool of a pattern such as `Bash(git:*)`."""
    return tool.partition("(")[0]


# ---- What a spawn request asks for, as far as the core decides about it


NO_CLAIM = Claim()

MODEL_CHANNEL = "mcp"
"""The channel on which only models ask, with tools."""


class SessionAsked(Struct, frozen=True):
    """What makes a run a session. `Terms.limits` has what the entry of its agent sets."""

    limits: tuple[Limit, ...] = ()
    """What the caller asked for."""


class Shown(Struct, frozen=True, omit_defaults=True):
    """What is displayed of the command. The shell has the command itself."""

    argv: tuple[str, ...]
    cwd: str = "/"
    task: str | None = None
    """What its agent is told to do, cut for display, as `model` and `provider`."""
    model: str | None = None
    provider: str | None = None


class Identity(Struct, frozen=True, omit_defaults=True):
    """What a run is called, and where the request says that it comes from."""

    name: str | None = None
    kind: Kind = "agent"
    agent: str | None = None
    """The registered name of its agent. The loop rule compares it instead of `name`."""
    run_type: str | None = None
    labels: dict[str, str] = {}
    channel: str | None = None
    claim: Claim = NO_CLAIM
    unnamed: bool = False
    """A program started another one by itself (`Spawn.automatic`), and no one gave that a name."""


class Terms(Struct, frozen=True, omit_defaults=True):
    """What a run may use and do."""

    limits: tuple[Limit, ...] = ()
    on_limit: Action | None = None
    max_depth: Bound | None = None
    max_descendants: Bound | None = None
    grace: float | None = None
    allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    allowed_tools: tuple[str, ...] = ()
    blocked_tools: tuple[str, ...] = ()
    allowed_models: tuple[str, ...] = ()
    """Patterns of the models that it may call; those that its peer's run may, where there is
    none."""
    leaf: bool = False
    nested: bool = False
    """It may start sessions and stop them, although it is a subagent."""

    @property
    def tools(self) -> ToolLists:
        return ToolLists(self.allowed_tools, self.blocked_tools)


class Queueing(Struct, frozen=True, omit_defaults=True):
    """Where a run starts, and what it waits for before."""

    queue: bool = True
    priority: int = 0
    group: str | None = None
    """Of a root: the group whose slots it shares."""
    after: tuple[After, ...] = ()
    """Runs that have to end before it starts, by their ids."""
    detach: bool = False


class Retries(Struct, frozen=True, omit_defaults=True):
    """What follows an attempt that fails."""

    attempts: int = 1
    retry_delay: float | None = None
    resume: bool = False
    """Each further attempt continues the session of the one before, if that has one. So a lost one
    is followed by another."""


class Stage(Struct, frozen=True, omit_defaults=True):
    """A command that a feature has executed in a run beside its own: once before the first attempt,
    or after each attempt that has ended with success."""

    kind: str
    """What it is called, as in `Reason.kind` and `RunInfo.activity`."""
    command: str
    before: bool = False
    seconds: float | None = None
    """How long it may take; `None`: as long as the run."""


class Sources(Struct, frozen=True, omit_defaults=True):
    """What will tell how much a run uses."""

    agent_program: bool = False
    """Its command is an agent program that sfad knows by name."""
    tells_each_call: bool = False
    """Its meter reads lines that its agent prints after each call, for the meter."""
    reports: bool = False
    """Its agent reports what it uses, as its person says."""
    gated: bool = False
    """Its calls go through the gateway."""
    metered: bool = False
    """A meter, or reports, tell what it uses."""
    uncounted: str | None = None
    """Why nothing will tell what the run uses, or not in time for a limit."""
    direct: str | None = None
    """Why it cannot use the gateway, though it was to."""
    logins: dict[str, str] = {}
    """Hashes of the credentials in its environment, by provider."""


class Asked(Struct, frozen=True, omit_defaults=True):
    """What a spawn asked for. Environment and descriptors stay with the shell. A field of a group
    that the request has under the same name is taken from there (`start.asking`). A run is
    saved with it, so a default of a field stays what it is."""

    shown: Shown
    identity: Identity = Identity()
    terms: Terms = Terms()
    queueing: Queueing = Queueing()
    retries: Retries = Retries()
    sources: Sources = Sources()
    tied_to: int | None = None
    """The connection that the run ends with."""
    takes_input: bool = False
    """Its stdin stays open for more: a final result ends a turn, not the run."""
    inherits: bool = False
    """Its stdin is its client's, so Ctrl-C at a terminal reaches it and not the client."""
    session: SessionAsked | None = None
    continues: RunId | None = None
    """The ended run whose agent's session it continues."""
    placing: Placing | None = None
    """It executes on another node, or on this one if that is chosen."""
    grant: Grant | None = None
    """Another node has started it, and this is what it may use."""
    in_program: bool = False
    """It has no process of its own: a program carries it out."""
    prints_in: RunId | None = None
    """The run above whose stdout holds what it prints, and whose meter reads that; or whose output
    is a part of such a run's."""
    stages: tuple[Stage, ...] = ()
    """Those before its command come first."""

    @property
    def by_tool(self) -> bool:
        """Whether a model asked with a tool, not on a command line."""
        return self.identity.channel == MODEL_CHANNEL

    @property
    def from_model(self) -> bool:
        """Whether the request itself says that it comes from a model."""
        claim = self.identity.claim
        return bool(claim.names) or claim.depth > 0 or self.by_tool
