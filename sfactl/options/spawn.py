"""The options of `spawn` and `run`, and the `Spawn` message that they and the environment make."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Annotated, Literal, NamedTuple

import typer
from msgspec import Struct
from msgspec.structs import replace

from sfad.protocol.known import BY_REPORT, METERS, NO_METER, TIME_SAID
from sfad.protocol.limits import parse_action
from sfad.protocol.limits_object import WrittenLimits
from sfad.protocol.requests.starting import Continuation, Spawn
from sfad.protocol.texts.units import (
    MOST_WHOLE,
    parse_decimal,
    parse_duration,
    parse_size,
    parse_whole,
)
from sfad.protocol.types import (
    Action,
    After,
    Checks,
    Isolation,
    Limit,
    LimitKind,
    Placing,
    RunInfo,
    Ship,
    Terminal,
    Worktree,
)

from .. import environment
from ..exits import UsageError, understood
from . import limits
from .shared import (
    DIR,
    GROUP,
    LABEL,
    LIMIT,
    NAME,
    NEW_NAME,
    PAIR,
    PATH,
    RUN,
    TIME,
    TOOL,
    TYPE,
    WHOLE,
    WORDS,
    Json,
    NewChecks,
    Pair,
    Socket,
    Value,
    Words,
    coming,
    completing,
    flag,
    one_of,
    pair,
)

Form = Literal["raw", "text", "auto"]
"""The form of `Logs`."""


class Place(NamedTuple):
    """Where a run may be executed: a node, or nodes with a label."""

    node: str | None = None
    label: Pair | None = None


def read_place(text: str) -> Place:
    return Place(label=pair(text)) if "=" in text else Place(node=text)


def read_after(text: str) -> After:
    run, colon, condition = text.partition(":")
    if not run or (colon and condition != "ok"):
        raise ValueError(f"{text[:80]!r} is not of the form RUN or RUN:ok")
    return After(run=run, ok=bool(colon))


MOST_RESERVED = 1_000_000
"""CPUs or GPUs."""


def _amount(text: str) -> float:
    value = parse_decimal(text)
    if value > MOST_RESERVED:
        raise ValueError(f"{text} is more than {MOST_RESERVED}")
    return value


def _agent(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of an agent, but none of the words after it."""
    return [] if ctx.params.get("command") else completing("agent")(ctx, incomplete)


Command = Annotated[
    list[str],
    typer.Argument(
        metavar="AGENT [WORDS...]",
        help=(
            "A registered agent (sfactl agents); the words are its task, and options of its program"
        ),
        autocompletion=_agent,
    ),
]
"""What follows the options of a verb that takes a command: the agent, or `--`, and the words
after."""

ISOLATIONS = ("on", "net")
"""Values of `--isolate`."""
USAGE = "[OPTIONS] -- COMMAND... | [OPTIONS]"
"""The usage of a verb that takes a command, before the argument."""
Directory = Annotated[str | None, DIR.option("Working directory (default: current)", "--cwd")]
NewWorktree = Annotated[
    str | None,
    Value("BRANCH").option(
        "Work in a new git worktree, on a new branch (default: sfad/NAME-ID)", "--worktree"
    ),
]
NewLabels = Annotated[
    list[Pair], LABEL.option("Label for list, stop and others; children inherit it", "--label")
]
Channel = Annotated[
    str | None,
    NEW_NAME.option(
        "Origin of the request, shown in events (default: the parent's, else cli)", "--channel"
    ),
]
Limits = Annotated[
    WrittenLimits | None,
    Value("JSON|@FILE", limits.of_object).option(
        "Limits as a JSON object (see `sfactl config schema`), or a file with one", "--limits"
    ),
]


class SpawnOptions(Struct, frozen=True):
    """The options of `spawn` and `run`, some of which `continue` has too."""

    command: Sequence[str] = ()
    """With `agent`, the words after its name."""
    agent: str | None = None
    socket: Socket = None
    json: Json = False

    name: Annotated[
        str | None,
        NAME.option("The agent's name, which the loop rule compares (default: from the command)"),
    ] = None
    kind: Annotated[
        Literal["agent", "skill"],
        Value("KIND", one_of(("agent", "skill"), "kind")).option("agent (default) or skill"),
    ] = "agent"
    type: Annotated[
        str | None, TYPE.option("Kind of work: developer, qa, planner, … have a profile of limits")
    ] = None
    cwd: Directory = None
    worktree: NewWorktree = None
    worktree_of: Annotated[
        str | None,
        RUN.option("Work in the worktree of this ended run; if it is gone, make it again"),
    ] = None
    env: Annotated[list[Pair], PAIR.option("Set a variable in the run's environment")] = []
    label: NewLabels = []
    channel: Channel = None
    attempts: Annotated[
        int,
        Value("N", partial(parse_whole, least=1, most=MOST_WHOLE)).option(
            "Maximum attempts, including the first (default: 1)"
        ),
    ] = 1
    resume: Annotated[
        bool,
        flag(
            "With --attempts: each further attempt continues the agent's session, "
            "and so does one after a lost attempt"
        ),
    ] = False
    retry_delay: Annotated[
        float | None,
        TIME.option("Delay before the second attempt; doubles each time (default: 1s)"),
    ] = None
    grace: Annotated[
        float | None,
        TIME.option("Time between the stop signal and SIGKILL, at most 60s (default: 5s)"),
    ] = None
    stdin: Annotated[bool, flag("Keep the run's stdin open for `sfactl send`")] = False
    no_log: Annotated[bool, flag("Keep and show no output (SFA_NO_LOG)")] = False
    check: NewChecks = []
    check_timeout: Annotated[
        float | None,
        TIME.option("Time that each check may take (default: what is left of the run's)"),
    ] = None
    no_check: Annotated[
        bool, flag("Leave out the checks of the agent's entry and of the profile")
    ] = False
    land: Annotated[
        bool, flag("In the foreground: bring its work to your branch when the checks have passed")
    ] = False
    setup: Annotated[
        str | None,
        Value("CMD").option("Shell command that prepares the new worktree before the agent"),
    ] = None
    on_end: Annotated[
        str | None,
        Value("CMD").option("Shell command that the daemon executes when the run has ended"),
    ] = None
    status_file: Annotated[str | None, PATH.option("File that receives the ended run as JSON")] = (
        None
    )

    wait: Annotated[bool, flag("Stay in the foreground, as `run` does", "--wait", "-w")] = False
    keep: Annotated[bool, flag("Let the run continue if this client dies")] = False
    stdio: Annotated[
        Literal["files", "inherit"],
        Value("HOW", one_of(("files", "inherit"), "word")).option(
            "files (default), or inherit: the run uses this client's stdin, stdout and stderr, "
            "and no output is kept"
        ),
    ] = "files"
    terminal: Annotated[
        bool,
        flag(
            "Give the run a terminal of its own, which outlives this client; sfactl attach shows "
            "it. The words after AGENT are its program's own then. sfactl run AGENT at a terminal, "
            "without a task, does the same"
        ),
    ] = False
    text: Annotated[
        bool,
        flag(
            "Show the agent's text and final answer instead of its JSON events, "
            "if the meter knows them"
        ),
    ] = False
    raw: Annotated[
        bool,
        flag("Show the output unchanged (default for a COMMAND, except in a run that has a meter)"),
    ] = False
    quiet: Annotated[
        bool,
        flag(
            "No progress lines; the reason of a failure is still shown (SFA_QUIET)", "--quiet", "-q"
        ),
    ] = False
    verbose: Annotated[bool, flag("Show each event of the run on stderr", "--verbose", "-v")] = (
        False
    )

    timeout: Annotated[
        float | None,
        TIME.option(
            "Limit of time: 90 (seconds), 90s, 5m, 1h (default: "
            "SFA_DEFAULTS_TIMEOUT, else see below)"
        ),
    ] = None
    limit: Annotated[
        list[Limit],
        LIMIT.option(
            "A limit, and its action: turns=50, cost=2.50:warn, tokens=200k:pause, memory=2G, …"
        ),
    ] = []
    on_limit: Annotated[
        Action | None,
        Value("ACTION", parse_action, words="action").option(
            "Action of limits that name none: "
            "terminate, pause, warn, refuse, conclude, request_increase (default: the profile's)"
        ),
    ] = None
    limits: Limits = None
    meter: Annotated[
        str | None,
        Value("METER", one_of(METERS, "meter"), words="meter").option(
            f"How to read usage from the output: {', '.join(METERS)} (default: by the command)"
        ),
    ] = None
    gateway: Annotated[
        bool,
        flag(
            "Check each model call before it is made, so that a limit of cost is not exceeded; "
            "children inherit it"
        ),
    ] = False
    no_gateway: Annotated[
        bool, flag("Leave the gateway out: limits of cost and tokens act after the calls")
    ] = False
    model_allow: Annotated[
        list[str],
        Value("PATTERN").option(
            "A model that the run and its children may call, as claude-haiku-*; "
            "others are refused. Implies --gateway"
        ),
    ] = []

    no_queue: Annotated[bool, flag("Refuse the run instead of waiting for a slot")] = False
    after: Annotated[
        list[After],
        Value("RUN[:ok]", read_after, words="run").option(
            "Start when this run, or NODE/ID of the fleet, has ended; "
            "with :ok, only if it completes, else the new run is cancelled"
        ),
    ] = []
    at: Annotated[
        datetime | None,
        Value("TIME", coming).option(
            "Start at this time: 02:00, 2026-01-31T02:00, or in 2h (docs/guard.md#at-a-time)"
        ),
    ] = None
    group: Annotated[
        str | None,
        GROUP.option(
            "A group of the config: at most so many of its trees run at once, the others wait"
        ),
    ] = None
    priority: Annotated[
        int, WHOLE.option("A higher priority leaves the queue first (default: 0)")
    ] = 0
    detach: Annotated[
        bool, flag("Start a new root instead of a child, where the config allows it")
    ] = False
    max_depth: Annotated[
        int | None,
        WHOLE.option("Maximum runs in a chain, root included; 0 inherits (default: SFA_MAX_DEPTH)"),
    ] = None
    max_descendants: Annotated[
        int | None,
        WHOLE.option("Maximum runs below this one; 0 inherits (default: SFA_MAX_DESCENDANTS)"),
    ] = None
    leaf: Annotated[bool, flag("The run may not start other runs")] = False
    nested: Annotated[bool, flag("The run may use `sfactl session`, although a run started it")] = (
        False
    )

    fleet: Annotated[
        bool, flag("Execute the run on a node of the fleet that has room for it (docs/fleet.md)")
    ] = False
    on: Annotated[
        list[Place],
        Value("NODE|LABEL=VALUE", read_place).option(
            "Only on this node, or on nodes with this label. Implies --fleet"
        ),
    ] = []
    cpus: Annotated[
        float, Value("N", _amount).option("CPUs that Ray reserves for the tree. Implies --fleet")
    ] = 0.0
    gpus: Annotated[
        float, Value("N", _amount).option("GPUs that Ray reserves for the tree. Implies --fleet")
    ] = 0.0
    memory: Annotated[
        int,
        Value("SIZE", parse_size).option(
            "Memory that Ray reserves for the tree: 4G. Implies --fleet"
        ),
    ] = 0
    restart_elsewhere: Annotated[
        bool,
        flag(
            "If its node is lost, a further attempt (--attempts) "
            "begins on another one after the lease. Implies --fleet"
        ),
    ] = False
    ship: Annotated[
        str | None,
        DIR.option(
            "With --fleet: send this directory, without what git ignores, "
            "and work in the copy; sfactl fetch brings changes back"
        ),
    ] = None

    allow: Annotated[
        list[Words], WORDS.option("A verb that the run may use; all others are then forbidden")
    ] = []
    deny: Annotated[list[Words], WORDS.option("A verb that the run may not use")] = []
    allow_tool: Annotated[
        list[str],
        TOOL.option(
            "A tool that the agent may use (in its SFA_ALLOWED_TOOLS); "
            "a call of any other is then a breach"
        ),
    ] = []
    block_tool: Annotated[
        list[str],
        TOOL.option(
            "A tool that the agent may not use (in its SFA_BLOCKED_TOOLS); "
            "a call that a meter sees is a breach"
        ),
    ] = []
    isolate: Annotated[
        Literal["on", "net"] | None,
        Value("|".join(ISOLATIONS), one_of(ISOLATIONS, "word")).option(
            "Start the command in a sandbox (bubblewrap); "
            "with =net it reaches nothing but the gateway. Children inherit it"
        ),
    ] = None
    egress: Annotated[
        list[Words],
        Value("HOST[,HOST]", Words).option(
            "With --isolate=net: what the run also reaches, as HOST, HOST:PORT or *.DOMAIN; "
            "* is all but models. Ports: 443 and 80"
        ),
    ] = []
    writable: Annotated[
        list[str],
        PATH.option(
            "A path that the sandbox may write to, beside the working directory. Implies --isolate"
        ),
    ] = []
    readable: Annotated[
        list[str],
        PATH.option(
            "A path that the sandbox shows, beside programs and what it may write "
            "to. Implies --isolate"
        ),
    ] = []
    mcp: Annotated[
        bool, flag("Give the agent the tools that start subagents (docs/sessions.md)")
    ] = False
    approvals: Annotated[
        bool,
        flag(
            "Ask a person for each tool call that claude or codex may not make "
            "(sfactl approve RUN CALL)"
        ),
    ] = False


HEADINGS = {
    "name": "The run",
    "wait": "In the foreground",
    "timeout": "Limits",
    "no_queue": "Queue and tree",
    "fleet": "On another node",
    "allow": "What it may do",
}
"""The headings of the help, by the first option below each."""


def commanded(wanted: SpawnOptions, words: Sequence[str]) -> SpawnOptions:
    """Return the options, checked, with the agent or the command that follows them. Raise
    `UsageError`."""
    agent = words[0] if words and words[0] != "--" else None
    if agent in ISOLATIONS and wanted.isolate == "on":
        raise UsageError(f"the value of --isolate follows a '=': --isolate={agent}")
    wanted = replace(wanted, agent=agent, command=words[1:])
    check(wanted)
    return wanted


def check(wanted: SpawnOptions) -> None:
    """Raise `UsageError` for invalid or contradictory options."""
    if wanted.agent is None and not wanted.command:
        raise UsageError(
            "nothing to run: name an agent and its task, as in: "
            "claude 'look at HEAD~1', or write -- COMMAND"
        )
    if wanted.leaf and wanted.nested:
        raise UsageError("--leaf and --nested exclude each other: a leaf may start nothing")
    if wanted.stdio == "inherit" and wanted.stdin:
        raise UsageError("--stdin and --stdio inherit exclude each other: the run has one stdin")
    for given, option in (
        (wanted.stdio == "inherit", "--stdio inherit"),
        (wanted.stdin, "--stdin"),
        (wanted.no_log, "--no-log"),
        (wanted.json and wanted.wait, "--json"),
        (wanted.text, "--text"),
        (wanted.raw, "--raw"),
        (wanted.meter not in (None, NO_METER, BY_REPORT), f"--meter {wanted.meter}"),
    ):
        if wanted.terminal and given:
            raise UsageError(f"--terminal and {option} exclude each other")
    if wanted.gateway and wanted.no_gateway:
        raise UsageError("--gateway and --no-gateway exclude each other")
    if wanted.model_allow and wanted.no_gateway:
        raise UsageError(
            "--model-allow and --no-gateway exclude each other: "
            "only the gateway sees the model before a call"
        )
    if "" in wanted.model_allow:
        raise UsageError("--model-allow: a pattern is empty; write one such as 'claude-haiku-*'")
    if wanted.at is not None and wanted.no_queue:
        raise UsageError("--at and --no-queue exclude each other: a run that waits is queued")
    if wanted.after and wanted.no_queue:
        raise UsageError(
            "--after and --no-queue exclude each other: a run that waits for another is queued"
        )
    if wanted.worktree is not None and wanted.worktree_of is not None:
        raise UsageError(
            "--worktree and --worktree-of exclude each other: "
            "the second names a worktree that has a branch"
        )
    if wanted.worktree == "":
        raise UsageError(
            "--worktree=: the name of the branch is empty; --worktree alone makes sfad/NAME-ID"
        )
    if wanted.land and wanted.no_check:
        raise UsageError("--land excludes --no-check: only what was checked lands by itself")
    if wanted.no_check and (wanted.check or wanted.check_timeout is not None):
        raise UsageError("--no-check excludes --check and --check-timeout")
    if wanted.resume and wanted.attempts == 1:
        raise UsageError("--resume needs further attempts, as in: --attempts 3 --resume")
    _check_text(wanted)
    if wanted.egress and not any(wanted.egress):
        raise UsageError("--egress: no host is named; write one such as 'packages.example.com'")


def _check_text(wanted: SpawnOptions) -> None:
    for given, option in (
        (wanted.raw, "--raw"),
        (wanted.json, "--json"),
        (wanted.no_log, "--no-log"),
        (wanted.stdio == "inherit", "--stdio inherit"),
    ):
        if wanted.text and given:
            why = (
                "--raw shows events, --text does not"
                if option == "--raw"
                else "no output is copied"
            )
            raise UsageError(f"--text and {option} exclude each other: {why}")


def message(wanted: SpawnOptions, environ: Mapping[str, str] = os.environ) -> Spawn:
    """Return the `Spawn` message for a checked command line. It starts a run in the background;
    `Foreground` ties it and adds descriptors."""
    log = not (wanted.no_log or environment.flag("SFA_NO_LOG", environ))
    isolation, cwd, placing = (
        _isolation(wanted),
        environment.directory(wanted.cwd),
        _placing(wanted),
    )
    return Spawn(
        id=0,
        argv=[os.fsencode(word) for word in wanted.command],
        # a link that the agent changes later must not lead elsewhere; a mount that does not answer
        # is looked up by the run alone
        cwd=os.path.realpath(cwd) if isolation is not None else cwd,
        env=environment.variables(dict(wanted.env)),
        umask=environment.umask(),
        run_type=wanted.type,
        max_depth=environment.bound("--max-depth", wanted.max_depth, "SFA_MAX_DEPTH", environ),
        max_descendants=environment.bound(
            "--max-descendants", wanted.max_descendants, "SFA_MAX_DESCENDANTS", environ
        ),
        limits=_limits(wanted, environ),
        on_limit=_on_limit(wanted),
        meter=_meter(wanted, log),
        gateway=True if wanted.gateway else False if wanted.no_gateway else None,
        queue=not wanted.no_queue,
        log=log,
        quiet=wanted.quiet or environment.flag("SFA_QUIET", environ),
        stdin="pipe" if wanted.stdin else "null",
        labels=dict(wanted.label),
        allow=_all(wanted.allow),
        deny=_all(wanted.deny),
        allowed_tools=wanted.allow_tool,
        blocked_tools=wanted.block_tool,
        allowed_models=wanted.model_allow,
        claim=environment.claim(environ),
        key=os.urandom(16).hex(),
        isolation=isolation,
        placing=placing,
        ship=_ship(wanted, cwd, placing),
        env_set=bool(wanted.env),
        worktree=_worktree(wanted),
        terminal=_terminal(wanted),
        check=_checks(wanted),
        after=[*wanted.after, *([] if wanted.at is None else [After(run="", at=wanted.at)])],
        **{name: getattr(wanted, name) for name in _SAME},
    )


_SAME = (
    "agent", "name", "kind", "attempts", "resume", "retry_delay", "grace", "detach",
    "leaf", "nested", "group", "on_end", "priority", "stdio", "channel", "setup",
)  # fmt: skip
"""Options that the message has as they are."""


def continuation(
    run: str,
    task: str | None,
    options: SpawnOptions | None = None,
    *,
    rest: bool = False,
    fresh: bool = False,
) -> Spawn:
    """Return the request to continue the session of an ended run. `task`: what its agent is told,
    if not why it ended and to go on; `options`: what is to be different; `fresh`: its worktree may
    be gone. Raise `Quit`."""
    # the daemon takes command and directory of the ended run
    options = replace(options or SpawnOptions(), command=["-"], cwd="/")
    check(options)
    asked = message(options)
    # the ended run had this default, or what its command line said
    limits = [limit for limit in asked.limits if limit.source != TIME_SAID]
    continues = Continuation(run=run, task=task, rest=rest, fresh=fresh)
    return replace(asked, argv=[], limits=limits, continues=continues)


def own_worktree(branch: str) -> Worktree:
    """Return what `--worktree` asks for. `-`: a branch by the default name."""
    return Worktree(branch=None if branch == "-" else branch)


def _worktree(wanted: SpawnOptions) -> Worktree | None:
    if wanted.worktree_of is not None:
        return Worktree(of=wanted.worktree_of)
    return None if wanted.worktree is None else own_worktree(wanted.worktree)


def _terminal(wanted: SpawnOptions) -> Terminal | None:
    if not wanted.terminal:
        return None
    with suppress(OSError):
        size = os.get_terminal_size(1)
        if size.lines and size.columns:
            return Terminal(rows=size.lines, columns=size.columns)
    return Terminal()


def _checks(wanted: SpawnOptions) -> Checks | None:
    if not (wanted.check or wanted.no_check or wanted.check_timeout is not None):
        return None
    return Checks(commands=wanted.check, timeout=wanted.check_timeout)


def _placing(wanted: SpawnOptions) -> Placing | None:
    asked = (
        wanted.fleet,
        wanted.on,
        wanted.cpus,
        wanted.gpus,
        wanted.memory,
        wanted.restart_elsewhere,
    )
    if not any(asked):
        return None
    if wanted.stdio == "inherit":
        raise UsageError(
            "--fleet and --stdio inherit exclude each other: the run may be on another machine"
        )
    nodes = [place.node for place in wanted.on if place.node is not None]
    if len(nodes) > 1:
        raise UsageError(
            f"--on: {' and '.join(nodes)} are several nodes; name one, or a label that they share"
        )
    return Placing(
        node=nodes[0] if nodes else None,
        labels=dict(place.label for place in wanted.on if place.label is not None),
        cpus=wanted.cpus,
        gpus=wanted.gpus,
        memory=wanted.memory,
        restart_elsewhere=wanted.restart_elsewhere,
    )


def _ship(wanted: SpawnOptions, cwd: bytes, placing: Placing | None) -> Ship | None:
    """Return what a run is sent with. If it starts in there, it works in the same directory of the
    copy."""
    if wanted.ship is None:
        return None
    if placing is None:
        raise UsageError(
            "--ship sends a directory to the node where the run is placed: add --fleet or --on NODE"
        )
    directory, here = os.path.realpath(os.fsencode(wanted.ship)), os.path.realpath(cwd)
    if not os.path.isdir(directory):
        raise UsageError(f"--ship: {wanted.ship} is not a directory")
    within = here.startswith(directory.rstrip(b"/") + b"/")
    return Ship(directory=directory, within=os.path.relpath(here, directory) if within else b"")


def _isolation(wanted: SpawnOptions) -> Isolation | None:
    egress = _all(wanted.egress)
    if wanted.isolate is None and not wanted.writable and not wanted.readable and not egress:
        return None
    writable, readable = (
        [os.path.realpath(os.fsencode(path)) for path in paths]
        for paths in (wanted.writable, wanted.readable)
    )
    return Isolation(
        network=wanted.isolate != "net", writable=writable, readable=readable, egress=egress
    )


def caveats(run: RunInfo, message: Spawn) -> Iterator[str]:
    """Yield what the user may not expect of the run."""
    if run.isolation == "offline" and not message.quiet:
        yield (
            f"sfactl: {run.id} has no network at all; "
            "with --gateway it would reach its model, and nothing else"
        )
    # what a shim starts, no person has started, so it is told though the rest is not
    if run.direct is not None and (message.shim or not message.quiet):
        yield (
            f"sfactl: {run.id} goes without the gateway, "
            f"so its limits of money are kept after its calls, if at all: {run.direct}"
        )
    if words := unenforceable(run, message):
        yield words


def unenforceable(run: RunInfo, message: Spawn) -> str | None:
    """Return a warning about limits in `message` that cannot be enforced for the run; `None` if
    there are none."""
    if (
        message.quiet
        or not message.limits
        or run.status.terminal
        or all(s.enforced_by != "nothing" for s in run.limits)
    ):
        return None
    return limits.unenforceable(run, message.limits)


def _all(given: Iterable[Words]) -> list[str]:
    return [word for words in given for word in words]


def _limits(wanted: SpawnOptions, environ: Mapping[str, str]) -> list[Limit]:
    found = [] if wanted.timeout is None else [_time("--timeout", wanted.timeout)]
    if wanted.limit or wanted.limits is not None:
        more = wanted.limits.limits if wanted.limits is not None else []
        found = limits.once([*found, *wanted.limit, *more])
    default = environ.get(TIME_SAID, "")
    if default.strip() and all(limit.kind is not LimitKind.TIME for limit in found):
        found.append(_time(TIME_SAID, understood(TIME_SAID, parse_duration, default)))
    return found


def _on_limit(wanted: SpawnOptions) -> Action | None:
    written = wanted.limits.on_limit if wanted.limits is not None else None
    if None not in (written, wanted.on_limit) and written != wanted.on_limit:
        raise UsageError(
            f"--on-limit {wanted.on_limit} and the timeout_action of --limits ({written}) "
            "differ: give one of them"
        )
    return wanted.on_limit or written


def _time(source: str, seconds: float) -> Limit:
    return Limit(kind=LimitKind.TIME, threshold=seconds, source=source)


def _meter(wanted: SpawnOptions, log: bool) -> str | None:
    if wanted.meter in (None, NO_METER, BY_REPORT):
        return wanted.meter
    if wanted.stdio == "inherit":
        raise UsageError(
            "--meter and --stdio inherit exclude each other: the daemon does not see the output"
        )
    if not log:
        option = "--no-log" if wanted.no_log else "SFA_NO_LOG"
        raise UsageError(
            f"--meter and {option} exclude each other: no output is kept for the meter"
        )
    return wanted.meter
