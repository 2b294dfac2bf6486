"""Starting a run."""

from __future__ import annotations

from ..structs import Literal
from ..types import Action, After, Bound, Claim, Grant, Isolation, Kind, Limit, Placing, Refusal, RunId
from .base import Reply, Request


class Spawn(Request, tag="spawn"):
    """Start a run. Answered by `RunReply` once it has started, failed to start or is queued; or by `Refused`."""

    repeats = 3  # with its key, a run is admitted once however often it is asked for

    argv: list[bytes]
    cwd: bytes
    env: list[bytes]
    """`KEY=VALUE`, as execve(2) takes them. The daemon adds SFA_* and removes its own variables."""
    umask: int = 0o022
    agent: str | None = None
    """A registered agent. `argv` then holds the words after its name: options of its program, and the task."""
    placeholders: dict[str, str] = {}
    session: str | None = None
    """A session id that is a word of `argv`. Each further attempt gets a new id in its place."""
    name: str | None = None
    kind: Kind = "agent"
    run_type: str | None = None
    max_depth: Bound | None = None
    max_descendants: Bound | None = None
    limits: list[Limit] = []
    on_limit: Action | None = None
    meter: str | None = None
    attempts: int = 1
    retry_delay: float | None = None
    grace: float | None = None
    tied: bool = False
    """Stop the run when this connection ends: a foreground run without `--keep`."""
    detach: bool = False
    leaf: bool = False
    nested: bool = False
    """The run may start sessions and stop them, although it is a subagent."""
    queue: bool = True
    priority: int = 0
    group: str | None = None
    """The group whose slots the tree shares."""
    after: list[After] = []
    """The run is queued until each of these has ended."""
    log: bool = True
    quiet: bool = False
    gateway: bool | None = None
    """Send its model calls through the gateway. `None`: as its parent does; a root's where that is enabled."""
    shim: bool = False
    """A shim asks."""
    stdin: Literal["null", "descriptor", "pipe"] = "null"
    """`descriptor`: the descriptor that travels with this message. `pipe`: a pipe that `Send` writes to."""
    stdio: Literal["files", "inherit"] = "files"
    """`inherit`: the three descriptors that travel with this message are the run's stdin, stdout and stderr."""
    labels: dict[str, str] = {}
    channel: str | None = None
    allow: list[str] = []
    deny: list[str] = []
    allowed_tools: list[str] = []
    blocked_tools: list[str] = []
    allowed_models: list[str] = []
    """Patterns of the models that the run and all below it may call. They need the gateway."""
    claim: Claim = Claim()
    watch: bool = False
    """Push the events of the run and its descendants, from its admission on, as `Watch` does. They carry the id of this request."""
    on_end: str | None = None
    """A command for `sh -c`, executed once the run has ended."""
    key: str | None = None
    """A random word of the client. The same user asking again from the same run with the same key gets the run admitted before."""
    descriptors: int = 0
    isolation: Isolation | None = None
    """Start the command in a sandbox. `None`: as the config says, and its parent is."""
    automatic: bool = False
    """The shim that asks is one that the daemon has made: no person wants a child run."""
    direct: str | None = None
    """Why the run's program goes without the gateway although the run may use it. Set by the daemon only."""
    placing: Placing | None = None
    """Execute it on a node of the fleet that has room for it."""
    grant: Grant | None = None
    """Another node has started it. Only the fleet's actor may bring one."""
    env_set: bool = False
    """The command line has set some of the variables, which `Recall` cannot tell."""


class Recall(Request, tag="recall"):
    """Ask what a run was started with, in order to start it again. Answered by `Recalled`."""

    repeats = 1

    run: str


class Recalled(Reply, tag="recalled"):
    """`request`: as it was sent, without environment, umask, key and claim; and of a run below another with what it has inherited:
    its way to its model, its sandbox, its tools, its models, its labels."""

    run: RunId
    request: Spawn
    owner: str | None = None
    """The run's user, if that is not the caller: a `spawn` of this request would execute it as the caller."""


class OwnProgram(Reply, tag="own_program"):
    """No child run: the command of the run that the shim is in has led to it, so it is to become the program itself."""

    argv: list[bytes]
    """The command, with what leads it through the gateway."""


class Refused(Reply, tag="refused"):
    """The guard refused the spawn; this is a normal answer. `run`: the id under which the refusal is recorded; `None` if there were
    so many refusals of this kind that they are only counted."""

    refused: Refusal
    run: RunId | None = None
