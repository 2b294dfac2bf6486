"""The options of `spawn` and `run`, and the `Spawn` message that they and the environment make."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from sfad.protocol.known import BY_REPORT, METERS, NO_METER
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.types import Action, After, Isolation, Limit, LimitKind, Placing, RunInfo, Ship, Worktree
from sfad.protocol.units import MOST_WHOLE, parse_decimal, parse_size

from . import environment
from .exits import UsageError, understood
from .options import COMMON, Argument, Heading, Option, Parameter, duration, pair, seconds, whole

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Argument("agent", "AGENT [WORDS...]",
        "A registered agent (sfactl agents); the words are its task, and options of its program",
        required=False, complete="agent"),
    Heading("The run"),
    Option(("--name",), "name", "The agent's name, which the loop rule compares (default: from the command)",
        "NAME", complete="name"),
    Option(("--kind",), "kind", "agent (default) or skill", "KIND"),
    Option(("--type",), "type", "Kind of work: developer, qa, planner, … have a profile of limits", "TYPE", complete="type"),
    Option(("--cwd",), "cwd", "Working directory (default: current)", "DIR"),
    Option(("--worktree",), "worktree",
        "Work in a new git worktree, on a new branch (default: sfad/NAME-ID)", "BRANCH", alone="-"),
    Option(("--worktree-of",), "worktree_of", "Work in the worktree of this ended run; if it is gone, make it again",
        "RUN", complete="run"),
    Option(("--env",), "env", "Set a variable in the run's environment", "K=V", many=True),
    Option(("--label",), "label", "Label for list, stop and others; children inherit it", "K=V", many=True, complete="label"),
    Option(("--channel",), "channel", "Origin of the request, shown in events (default: the parent's, else cli)", "NAME"),
    Option(("--attempts",), "attempts", "Maximum attempts, including the first (default: 1)", "N"),
    Option(("--resume",), "resume",
        "With --attempts: each further attempt continues the agent's session, and so does one after a lost attempt"),
    Option(("--retry-delay",), "retry_delay", "Delay before the second attempt; doubles each time (default: 1s)", "TIME"),
    Option(("--grace",), "grace", "Time between the stop signal and SIGKILL, at most 60s (default: 5s)", "TIME"),
    Option(("--stdin",), "stdin", "Keep the run's stdin open for `sfactl send`"),
    Option(("--no-log",), "no_log", "Keep no output (SFA_NO_LOG)"),
    Option(("--on-end",), "on_end", "Shell command that the daemon executes when the run has ended", "CMD"),
    Option(("--status-file",), "status_file", "File that receives the ended run as JSON", "PATH"),
    Heading("In the foreground"),
    Option(("--wait", "-w"), "wait", "Stay in the foreground, as `run` does"),
    Option(("--keep",), "keep", "Let the run continue if this client dies"),
    Option(("--stdio",), "stdio",
        "files (default), or inherit: the run uses this client's stdin, stdout and stderr, and no output is kept",
        "HOW"),
    Option(("--text",), "text", "Show the agent's text and final answer instead of its JSON events, if the meter knows them"),
    Option(("--raw",), "raw", "Show the output unchanged (default for a COMMAND, except in a run that has a meter)"),
    Option(("--quiet", "-q"), "quiet", "No progress lines; the reason of a failure is still shown (SFA_QUIET)"),
    Option(("--verbose", "-v"), "verbose", "Show each event of the run on stderr"),
    Heading("Limits"),
    Option(("--timeout",), "timeout",
        "Limit of time: 90 (seconds), 90s, 5m, 1h (default: SFA_DEFAULTS_TIMEOUT, else see below)", "TIME"),
    Option(("--limit",), "limit",
        "A limit, and its action: turns=50, cost=2.50:warn, tokens=200k:pause, memory=2G, …",
        "KIND=N", many=True, complete="kind of limit"),
    Option(("--on-limit",), "on_limit",
        "Action of limits that name none: terminate, pause, warn, refuse, request_increase (default: the profile's)",
        "ACTION", complete="action"),
    Option(("--limits",), "limits", "Limits as a JSON object (see `sfactl config schema`), or a file with one", "JSON|@FILE"),
    Option(("--meter",), "meter",
        f"How to read usage from the output: {', '.join(METERS)} (default: by the command)",
        "METER", complete="meter"),
    Option(("--gateway",), "gateway",
        "Check each model call before it is made, so that a limit of cost is not exceeded; children inherit it"),
    Option(("--no-gateway",), "no_gateway", "Leave the gateway out: the daemon only sees what the run's events tell"),
    Option(("--model-allow",), "model_allow",
        "A model that the run and its children may call, as claude-haiku-*; others are refused. Implies --gateway",
        "PATTERN", many=True),
    Heading("Queue and tree"),
    Option(("--no-queue",), "no_queue", "Refuse the run instead of waiting for a slot"),
    Option(("--after",), "after",
        "Start when this run has ended; with :ok, only if it completes, else the new run is cancelled",
        "RUN[:ok]", many=True, complete="run"),
    Option(("--group",), "group", "A group of the config: at most so many of its trees run at once, the others wait",
        "NAME", complete="group"),
    Option(("--priority",), "priority", "A higher priority leaves the queue first (default: 0)", "N"),
    Option(("--detach",), "detach", "Start a new root instead of a child, where the config allows it"),
    Option(("--max-depth",), "max_depth", "Maximum runs in a chain, root included; 0 inherits (default: SFA_MAX_DEPTH)", "N"),
    Option(("--max-descendants",), "max_descendants",
        "Maximum runs below this one; 0 inherits (default: SFA_MAX_DESCENDANTS)", "N"),
    Option(("--leaf",), "leaf", "The run may not start other runs"),
    Option(("--nested",), "nested", "The run may use `sfactl session`, although a run started it"),
    Heading("On another node"),
    Option(("--fleet",), "fleet", "Execute the run on a node of the fleet that has room for it (docs/fleet.md)"),
    Option(("--on",), "on", "Only on this node, or on nodes with this label. Implies --fleet", "NODE|LABEL=VALUE", many=True),
    Option(("--cpus",), "cpus", "CPUs that Ray reserves for the tree. Implies --fleet", "N"),
    Option(("--gpus",), "gpus", "GPUs that Ray reserves for the tree. Implies --fleet", "N"),
    Option(("--memory",), "memory", "Memory that Ray reserves for the tree: 4G. Implies --fleet", "SIZE"),
    Option(("--restart-elsewhere",), "restart_elsewhere",
        "If its node is lost, a further attempt (--attempts) begins on another one after the lease. Implies --fleet"),
    Option(("--ship",), "ship",
        "With --fleet: send this directory, without what git ignores, and work in the copy; sfactl fetch brings changes back",
        "DIR"),
    Heading("What it may do"),
    Option(("--allow",), "allow", "A verb that the run may use; all others are then forbidden", "VERB", many=True),
    Option(("--deny",), "deny", "A verb that the run may not use", "VERB", many=True),
    Option(("--allow-tool",), "allow_tool",
        "A tool that the agent may use (SFA_ALLOWED_TOOLS); a call of any other is then a breach",
        "TOOL", many=True),
    Option(("--block-tool",), "block_tool",
        "A tool that the agent may not use (SFA_BLOCKED_TOOLS); a call that a meter sees is a breach",
        "TOOL", many=True),
    Option(("--isolate",), "isolate",
        "Start the command in a sandbox (bubblewrap); with =net it reaches nothing but the gateway. Children inherit it",
        "on|net", alone="on"),
    Option(("--egress",), "egress",
        "With --isolate=net: what the run also reaches, as HOST, HOST:PORT or *.DOMAIN; * is all but models. Ports: 443 and 80",
        "HOST[,HOST]", many=True),
    Option(("--writable",), "writable",
        "A path that the sandbox may write to, beside the working directory. Implies --isolate", "PATH", many=True),
    Option(("--readable",), "readable",
        "A path that the sandbox shows, beside programs and what it may write to. Implies --isolate", "PATH", many=True),
    Option(("--mcp",), "mcp", "Give the agent the tools that start subagents (docs/sessions.md)"),
)  # fmt: skip


class SpawnOptions(Struct, frozen=True):
    """The command line of `spawn` or `run`, as text."""

    command: list[str]
    """With `agent`, the words after its name."""
    socket: str | None = None
    json: bool = False
    agent: str | None = None
    name: str | None = None
    kind: str = "agent"
    type: str | None = None
    timeout: str | None = None
    limit: Sequence[str] = ()
    on_limit: str | None = None
    limits: str | None = None
    meter: str | None = None
    max_depth: str | None = None
    max_descendants: str | None = None
    attempts: str | None = None
    resume: bool = False
    retry_delay: str | None = None
    cwd: str | None = None
    worktree: str | None = None
    worktree_of: str | None = None
    env: Sequence[str] = ()
    wait: bool = False
    keep: bool = False
    detach: bool = False
    leaf: bool = False
    nested: bool = False
    stdin: bool = False
    stdio: str | None = None
    text: bool = False
    raw: bool = False
    quiet: bool = False
    verbose: bool = False
    no_log: bool = False
    gateway: bool = False
    no_gateway: bool = False
    isolate: str | None = None
    egress: Sequence[str] = ()
    writable: Sequence[str] = ()
    readable: Sequence[str] = ()
    mcp: bool = False
    no_queue: bool = False
    after: Sequence[str] = ()
    group: str | None = None
    priority: str | None = None
    grace: str | None = None
    label: Sequence[str] = ()
    channel: str | None = None
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    allow_tool: Sequence[str] = ()
    block_tool: Sequence[str] = ()
    model_allow: Sequence[str] = ()
    on_end: str | None = None
    status_file: str | None = None
    fleet: bool = False
    on: Sequence[str] = ()
    cpus: str | None = None
    gpus: str | None = None
    memory: str | None = None
    restart_elsewhere: bool = False
    ship: str | None = None


def check(wanted: SpawnOptions) -> None:
    """Raise `UsageError` for invalid or contradictory options."""
    if wanted.agent is None and not wanted.command:
        raise UsageError("nothing to run: name an agent and its task, as in: claude 'look at HEAD~1', or write -- COMMAND")
    if wanted.kind not in ("agent", "skill"):
        raise UsageError(f"--kind: {wanted.kind!r} is neither agent nor skill")
    if wanted.stdio not in (None, "files", "inherit"):
        raise UsageError(f"--stdio: {wanted.stdio!r} is neither files nor inherit")
    if wanted.leaf and wanted.nested:
        raise UsageError("--leaf and --nested exclude each other: a leaf may start nothing")
    if wanted.stdio == "inherit" and wanted.stdin:
        raise UsageError("--stdin and --stdio inherit exclude each other: the run has one stdin")
    if wanted.gateway and wanted.no_gateway:
        raise UsageError("--gateway and --no-gateway exclude each other")
    if wanted.model_allow and wanted.no_gateway:
        raise UsageError("--model-allow and --no-gateway exclude each other: only the gateway sees the model before a call")
    if "" in wanted.model_allow:
        raise UsageError("--model-allow: a pattern is empty; write one such as 'claude-haiku-*'")
    if wanted.after and wanted.no_queue:
        raise UsageError("--after and --no-queue exclude each other: a run that waits for another is queued")
    if wanted.worktree is not None and wanted.worktree_of is not None:
        raise UsageError("--worktree and --worktree-of exclude each other: the second names a worktree that has a branch")
    if wanted.worktree == "":
        raise UsageError("--worktree=: the name of the branch is empty; --worktree alone makes sfad/NAME-ID")
    if wanted.resume and wanted.attempts in (None, "1"):
        raise UsageError("--resume needs further attempts, as in: --attempts 3 --resume")
    _check_text(wanted)
    if wanted.isolate not in (None, "on", "net"):
        raise UsageError(f"--isolate: {wanted.isolate!r} is neither on nor net")
    if wanted.egress and not _words(wanted.egress):
        raise UsageError("--egress: no host is named; write one such as 'packages.example.com'")
    if wanted.meter not in (None, *METERS):
        raise UsageError(f"--meter: unknown meter {wanted.meter!r}; choose from: {', '.join(METERS)}")


def _check_text(wanted: SpawnOptions) -> None:
    for given, option in (
        (wanted.raw, "--raw"),
        (wanted.json, "--json"),
        (wanted.no_log, "--no-log"),
        (wanted.stdio == "inherit", "--stdio inherit"),
    ):
        if wanted.text and given:
            why = "--raw shows events, --text does not" if option == "--raw" else "no output is copied"
            raise UsageError(f"--text and {option} exclude each other: {why}")


def message(wanted: SpawnOptions, environ: Mapping[str, str] = os.environ) -> Spawn:
    """Return the `Spawn` message for a checked command line. It starts a run in the background; `Foreground` ties it
    and adds descriptors."""
    inherit: Literal["files", "inherit"] = "inherit" if wanted.stdio == "inherit" else "files"
    log = not (wanted.no_log or environment.flag("SFA_NO_LOG", environ))
    isolation, cwd, placing = _isolation(wanted), environment.directory(wanted.cwd), _placing(wanted)
    return Spawn(
        id=0,
        argv=[os.fsencode(word) for word in wanted.command],
        # a link that the agent changes later must not lead elsewhere; a mount that does not answer is looked up by the run alone
        cwd=os.path.realpath(cwd) if isolation is not None else cwd,
        env=environment.variables(pairs("--env", wanted.env)),
        umask=environment.umask(),
        agent=wanted.agent,
        name=wanted.name,
        kind="skill" if wanted.kind == "skill" else "agent",
        run_type=wanted.type,
        max_depth=environment.bound("--max-depth", wanted.max_depth, "SFA_MAX_DEPTH", environ),
        max_descendants=environment.bound("--max-descendants", wanted.max_descendants, "SFA_MAX_DESCENDANTS", environ),
        limits=_limits(wanted, environ),
        on_limit=_on_limit(wanted.on_limit),
        meter=_meter(wanted, log),
        attempts=1 if wanted.attempts is None else whole("--attempts", wanted.attempts, 1, MOST_WHOLE),
        resume=wanted.resume,
        retry_delay=seconds("--retry-delay", wanted.retry_delay),
        grace=seconds("--grace", wanted.grace),
        detach=wanted.detach,
        leaf=wanted.leaf,
        nested=wanted.nested,
        gateway=True if wanted.gateway else False if wanted.no_gateway else None,
        queue=not wanted.no_queue,
        after=[_after(text) for text in wanted.after],
        group=wanted.group,
        on_end=wanted.on_end,
        priority=0 if wanted.priority is None else whole("--priority", wanted.priority),
        log=log,
        quiet=wanted.quiet or environment.flag("SFA_QUIET", environ),
        stdin="pipe" if wanted.stdin else "null",
        stdio=inherit,
        labels=pairs("--label", wanted.label),
        channel=wanted.channel,
        allow=_words(wanted.allow),
        deny=_words(wanted.deny),
        allowed_tools=list(wanted.allow_tool),
        blocked_tools=list(wanted.block_tool),
        allowed_models=list(wanted.model_allow),
        claim=environment.claim(environ),
        key=os.urandom(16).hex(),
        isolation=isolation,
        placing=placing,
        ship=_ship(wanted, cwd, placing),
        env_set=bool(wanted.env),
        worktree=_worktree(wanted),
    )


def _after(text: str) -> After:
    run, colon, condition = text.partition(":")
    if not run or (colon and condition != "ok"):
        raise UsageError(f"--after: {text[:80]!r} is not of the form RUN or RUN:ok")
    return After(run=run, ok=bool(colon))


def _worktree(wanted: SpawnOptions) -> Worktree | None:
    if wanted.worktree is None and wanted.worktree_of is None:
        return None
    return Worktree(branch=None if wanted.worktree in (None, "-") else wanted.worktree, of=wanted.worktree_of)


def _placing(wanted: SpawnOptions) -> Placing | None:
    asked = (wanted.fleet, wanted.on, wanted.cpus, wanted.gpus, wanted.memory, wanted.restart_elsewhere)
    if not any(asked):
        return None
    if wanted.stdio == "inherit":
        raise UsageError("--fleet and --stdio inherit exclude each other: the run may be on another machine")
    nodes = [text for text in wanted.on if "=" not in text]
    if len(nodes) > 1:
        raise UsageError(f"--on: {' and '.join(nodes)} are several nodes; name one, or a label that they share")
    amounts = (understood("--cpus", _amount, wanted.cpus), understood("--gpus", _amount, wanted.gpus))
    return Placing(
        node=nodes[0] if nodes else None,
        labels=pairs("--on", [text for text in wanted.on if "=" in text]),
        cpus=amounts[0],
        gpus=amounts[1],
        memory=0 if wanted.memory is None else int(understood("--memory", parse_size, wanted.memory)),
        restart_elsewhere=wanted.restart_elsewhere,
    )


def _ship(wanted: SpawnOptions, cwd: bytes, placing: Placing | None) -> Ship | None:
    """Return what a run is sent with. If it starts in there, it works in the same directory of the copy."""
    if wanted.ship is None:
        return None
    if placing is None:
        raise UsageError("--ship sends a directory to the node where the run is placed: add --fleet or --on NODE")
    directory, here = os.path.realpath(os.fsencode(wanted.ship)), os.path.realpath(cwd)
    if not os.path.isdir(directory):
        raise UsageError(f"--ship: {wanted.ship} is not a directory")
    within = here.startswith(directory.rstrip(b"/") + b"/")
    return Ship(directory=directory, within=os.path.relpath(here, directory) if within else b"")


MOST_RESERVED = 1_000_000
"""CPUs or GPUs."""


def _amount(text: str | None) -> float:
    value = 0.0 if text is None else parse_decimal(text)
    if value > MOST_RESERVED:
        raise ValueError(f"{text} is more than {MOST_RESERVED}")
    return value


def _isolation(wanted: SpawnOptions) -> Isolation | None:
    egress = _words(wanted.egress)
    if wanted.isolate is None and not wanted.writable and not wanted.readable and not egress:
        return None
    writable, readable = ([os.path.realpath(os.fsencode(path)) for path in paths] for paths in (wanted.writable, wanted.readable))
    return Isolation(network=wanted.isolate != "net", writable=writable, readable=readable, egress=egress)


def caveats(run: RunInfo, message: Spawn) -> Iterator[str]:
    """Yield what the user may not expect of the run."""
    if run.isolation == "offline" and not message.quiet:
        yield f"sfactl: {run.id} has no network at all; with --gateway it would reach its model, and nothing else"
    # what a shim starts, no person has started, so it is told though the rest is not
    if run.direct is not None and (message.shim or not message.quiet):
        yield f"sfactl: {run.id} goes without the gateway, so its limits of money are kept after its calls, if at all: {run.direct}"
    if words := unenforceable(run, message):
        yield words


def unenforceable(run: RunInfo, message: Spawn) -> str | None:
    """Return a warning about limits in `message` that cannot be enforced for the run; `None` if there are none."""
    if message.quiet or not message.limits or run.status.terminal or all(s.enforced_by != "nothing" for s in run.limits):
        return None
    from . import limits

    return limits.unenforceable(run, message.limits)


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return `K=V` texts as a dict. Raise `UsageError`."""
    return dict(pair(option, text) for text in given)


def _words(given: Sequence[str]) -> list[str]:
    return [word for text in given for word in text.split(",") if word]


def _limits(wanted: SpawnOptions, environ: Mapping[str, str]) -> list[Limit]:
    found = [] if wanted.timeout is None else [_time("--timeout", wanted.timeout)]
    if wanted.limit or wanted.limits is not None:
        # Imported here because many runs have no such option.
        from . import limits

        found += limits.of_flags(wanted.limit)
        found += limits.of_object(wanted.limits) if wanted.limits is not None else ()
        found = limits.once(found)
    default = environ.get("SFA_DEFAULTS_TIMEOUT", "")
    if default.strip() and all(limit.kind is not LimitKind.TIME for limit in found):
        found.append(_time("SFA_DEFAULTS_TIMEOUT", default))
    return found


def _time(source: str, text: str) -> Limit:
    return Limit(kind=LimitKind.TIME, threshold=duration(source, text), source=source)


def _on_limit(text: str | None) -> Action | None:
    if text is None:
        return None
    from . import limits

    return limits.action(text)


def _meter(wanted: SpawnOptions, log: bool) -> str | None:
    if wanted.meter in (None, NO_METER, BY_REPORT):
        return wanted.meter
    if wanted.stdio == "inherit":
        raise UsageError("--meter and --stdio inherit exclude each other: the daemon does not see the output")
    if not log:
        option = "--no-log" if wanted.no_log else "SFA_NO_LOG"
        raise UsageError(f"--meter and {option} exclude each other: no output is kept for the meter")
    return wanted.meter
