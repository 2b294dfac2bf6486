"""Starting a run, and the agents of which one can be started."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..types import (
    Action,
    Admitted,
    After,
    Bound,
    Checks,
    Claim,
    Grant,
    Isolation,
    Kind,
    Limit,
    Placing,
    Refusal,
    RunId,
    Ship,
    Terminal,
    Worktree,
)
from .base import Reply, Request

Stdin = Literal["null", "descriptor", "pipe"]
Stdio = Literal["files", "inherit"]


class Continuation(Struct, frozen=True, kw_only=True):
    """The ended run whose agent's session a new run continues."""

    run: RunId
    """In a request also a name, or a unique prefix of an id."""
    task: str | None = None
    """What its agent is told first. `None`: why the run ended, and to go on; in a terminal
    nothing."""
    rest: bool = False
    """Give the new run what is left of the limits of the ended one, as far as the request names no
    limit of the kind."""
    fresh: bool = False
    """If the git worktree of the ended run is gone, make it again from its branch, and tell the
    agent. False: refuse."""


class Spawn(Request, tag="spawn", frozen=True):  # type: ignore[misc]  # others are numbered in place
    """Start a run. Answered by `RunReply` once the command has been executed, could not be executed
    or is queued; by `Refused`; or, to a shim, by `OwnProgram` or `OwnServerAsked`.

    A second request with the same `key`, from the same user and the same run (or from outside any
    run), starts nothing. The reply is the run that the first one started, as it is now. The daemon
    remembers the keys of live runs and of the last 1000 that ended, across restarts.

    `allow` and `deny` take the verbs `agents`, `calls`, `config`, `events`, `info`, `keys`,
    `limit`, `list`, `logs`, `pause`, `plans`, `report`, `reserve`, `result`, `resume`, `send`,
    `settle`, `signal`, `spawn`, `status`, `stop`, `summary`, `wait`, `watch`. Any other is
    `bad_request`.
    """

    repeats = 3  # with its key, a run is admitted once however often it is asked for

    argv: list[bytes]
    """The command, found by the `PATH` in `env` as execvp(3) does. It is not empty and has no NUL
    bytes. With `agent`: the words after the agent's name."""
    cwd: bytes
    """An absolute path."""
    env: list[bytes]
    """The whole environment, as `KEY=VALUE`. The daemon changes some variables
    (docs/configuration.md#environment-of-a-run)."""
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    """18 is octal 022."""
    agent: str | None = None
    """A registered agent (docs/agents.md). Its entry and `argv`, where one word after `--` is the
    task, make the command."""
    placeholders: dict[str, str] = {}
    """With `agent`: `task`, `model`, `provider`, `instructions`. With a `task`, all of `argv` goes
    to the program."""
    agent_session: str | None = None
    """Without `agent`: a session id of at most 64 characters that is a word of `argv`. Each further
    attempt gets a new id in its place."""
    name: str | None = None
    """1 to 64 letters and digits of any script, `.`, `_` and `-`; else made from `argv`
    (docs/guard.md#names)."""
    kind: Kind = "agent"
    """The loop rule compares it, with the name."""
    run_type: str | None = None
    """Shown as `type`. Some types bring a profile of limits (docs/limits.md#profiles)."""
    max_depth: Bound | None = None
    """Runs in a chain, from the root: at a root up to `guard.depth_ceiling`; below a root it only
    narrows."""
    max_descendants: Bound | None = None
    """Runs below this one, with the same rule."""
    limits: list[Limit] = []
    """At most one of a kind, within its range (docs/limits.md#kinds), else `bad_request`."""
    on_limit: Action | None = None
    """The action of each limit that names none."""
    meter: str | None = None
    """The meter that reads stdout (docs/metering.md#what-each-program-tells), or `report` or
    `none`. `None`: the meter of the command."""
    attempts: int = 1
    """1 to 100. The daemon starts the command again if it fails."""
    retry_delay: float | None = None
    """Seconds before the second attempt, 0 to 3600; doubles each time."""
    grace: float | None = None
    """Seconds from the stop signal to SIGKILL, 0 to 60; else `stop.grace`."""
    tied: bool = False
    """Stop the run when this connection ends: a foreground run without `--keep`."""
    detach: bool = False
    """From inside a run: start a new root."""
    leaf: bool = False
    """The run may not spawn."""
    nested: bool = False
    """The run may use sessions although it is below another run (docs/sessions.md#who-may)."""
    queue: bool = True
    """Wait if all slots for trees are taken. False: be refused."""
    priority: int = 0
    """A higher one leaves the queue first."""
    group: str | None = None
    """The group whose slots the tree shares (docs/guard.md#groups)."""
    after: list[After] = []
    """The run is queued until each of these has ended (docs/guard.md#after-another-run). At most
    64."""
    log: bool = True
    """Keep stdout and stderr in files."""
    quiet: bool = False
    """The run sees it as `SFA_QUIET=1`."""
    gateway: bool | None = None
    """Send its model calls through the gateway (docs/gateway.md). `None`: as its parent does; a
    root does if the gateway is enabled."""
    shim: bool = False
    """The client is a shim (docs/agents.md#shims). If the reply is `OwnProgram`, it executes the
    program itself."""
    stdin: Stdin = "null"
    """`descriptor`: the descriptor that travels with this message. `pipe`: a pipe that `Send`
    writes to."""
    stdio: Stdio = "files"
    """`inherit`: the three descriptors that travel with this message are the run's stdin, stdout
    and stderr."""
    copies: Literal["raw", "text", "auto"] | None = None
    """The client will copy the run's output to its own, in this form of `Logs`. What it copies into
    the output of a run above that has a meter is counted once."""
    labels: dict[str, str] = {}
    """The parent's other keys are added. At most 64 in all."""
    channel: str | None = None
    """Where the request comes from; else the parent's channel, else `cli`."""
    allow: list[str] = []
    """Verbs that clients inside the run may use. It only narrows."""
    deny: list[str] = []
    """Verbs that clients inside the run may not use."""
    allowed_tools: list[str] = []
    """The run sees them as `SFA_ALLOWED_TOOLS`."""
    blocked_tools: list[str] = []
    """The run sees them as `SFA_BLOCKED_TOOLS`."""
    allowed_models: list[str] = []
    """Patterns of the models that the run and all below it may call. They need the gateway."""
    claim: Claim = Claim()
    """The chain that a client outside any run claims (docs/guard.md#claims)."""
    watch: bool = False
    """Push an `EventPush` for each event of the run and its descendants, from its admission on, as
    `Watch` does."""
    on_end: str | None = None
    """A command for `sh -c`, executed once the run has ended (docs/hooks.md#a-command-for-one-run).
    At most 4 096 characters, and only from outside any run."""
    key: Annotated[str, Meta(max_length=64)] | None = None
    """A random word of at most 64 characters. The same user asking again from the same run with the
    same key gets the run admitted before."""
    descriptors: int = 0
    """How many descriptors travel with this message."""
    isolation: Isolation | None = None
    """Start the command in a sandbox (docs/isolation.md). `None`: as the config says, and as its
    parent is."""
    automatic: bool = False
    """The shim that asks is one that the daemon has made: no person wants a child run."""
    worktree: Worktree | None = None
    """Have the run work in a git worktree of its own. `None`: as its registered agent does, else in
    its working directory."""
    terminal: Terminal | None = None
    """Give it a terminal of its own (docs/terminals.md). `None`: as its registered agent has."""
    check: Checks | None = None
    """Complete the run only if these commands succeed after it (docs/checks.md). `None`: those of
    its registered agent, else of its profile."""
    setup: str | None = None
    """A command for `sh -c`, executed in the new worktree of the run before its own. `None`: that
    of its registered agent; empty: none."""
    placing: Placing | None = None
    """Execute it on a node that has room for it."""
    ship: Ship | None = None
    """With `placing`: have it work in a copy of a directory, whose files `put_files` has
    brought."""
    grant: Grant | None = None
    """Another node has started it. Only the daemon's own process may bring one."""
    env_set: bool = False
    """The command line has set some of the variables, which `Recall` cannot tell."""
    resume: bool = False
    """Each further attempt continues the session of the one before, where that has one."""
    continues: Continuation | None = None
    """Continue the session of an ended run, with its command, its directory, and what it was
    started with. `argv` is empty then, and each field that has another value than its default
    counts instead of that of the ended run."""
    admit: Admitted | None = None
    """Execute nothing: the run is an agent within the calling program (docs/python.md). `argv` is
    what is shown of it."""
    below: RunId | None = None
    """Start it below this run, which is an agent within the calling program."""


OF_CLIENT = ("shim", "automatic")
"""Fields of `Spawn` that say what the client is. A run that is started again has them not."""

OF_FEATURES = ("on_end", "isolation", "worktree", "terminal", "ship", "check", "setup", "admit")
"""Fields of `Spawn` that a feature carries out. A daemon without it refuses them."""


class Recall(Request, tag="recall"):
    """Ask what a run was started with, in order to start it again (docs/guard.md#again). It needs
    the permission for `info`. Answered by `Recalled`; `wrong_state` if the request is not kept."""

    repeats = 1

    run: str


class Recalled(Reply, tag="recalled"):
    """What a run was started with."""

    run: RunId
    """The run's id."""
    request: Spawn
    """The `spawn` as it was sent, with `id` 0, without `env`, `umask`, `key`, `claim`, `watch`,
    `shim`, `automatic`, `continues` and `copies`. Of a run below another it has what that run had
    inherited: the way to its model, sandbox, tools, models, labels."""
    owner: str | None = None
    """The run's user, if that is not the client's."""


class OwnProgram(Reply, tag="own_program"):
    """No child run: the command of the run that the shim is in has led to it, so it is to become
    the program itself."""

    argv: list[bytes]
    """The command, with what routes it through the gateway."""


ServerAct = Literal["start", "list", "logs", "stop", "outside"]
"""What a command asks of a server of its program: to do a task, to list such tasks, to show what
one says, to stop one, or anything else."""


class OwnServerAsked(Reply, tag="own_server"):
    """No child run yet: the command would hand work to a server of the program, outside of the run.
    The shim does the like with child runs (docs/agents.md#the-background).
    """

    act: ServerAct
    """Not `outside`."""
    what: str
    """The words that ask for it, as in `claude --bg`."""
    argv: list[bytes] = []
    """Of `start`: the command that does the task without the server. Of others: the words after
    the subcommand."""
    says: str = ""
    """Of `start`: what the program prints then; `{run}` stands for the id, and a tab for a
    column."""


class Refused(Reply, tag="refused"):
    """The guard refused the spawn; this is a normal answer. `run`: the id under which the refusal
    is recorded; `None` if there were so many refusals of this kind that they are only counted."""

    refused: Refusal
    run: RunId | None = None
    """The id that recorded the refusal; `None` if it was only counted
    (docs/guard.md#refusals-as-data)."""


class Agents(Request, tag="agents"):
    """List the registered agents. Answered by `AgentList`."""

    repeats = 1


class AgentInfo(Struct, frozen=True, kw_only=True):
    """A registered agent (docs/agents.md)."""

    name: str
    """`agent` of `spawn`."""
    description: str
    command: list[str]
    """With its placeholders (docs/agents.md#placeholders)."""
    kind: Kind
    type: str | None
    """`run_type` of its runs."""
    meter: str
    """A meter, `auto` (by the command) or `none`."""
    limits: list[str]
    stdin: bool
    """Background runs keep their stdin open."""
    source: str
    """The config file, or `built-in`."""
    worktree: bool = False
    """Its runs get a git worktree of their own (docs/going-on.md#worktrees)."""


class AgentList(Reply, tag="agent_list"):
    agents: list[AgentInfo]
    """Sorted by name."""
