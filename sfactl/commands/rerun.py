import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec.structs import replace

from sfad.protocol.requests.starting import Recall, Recalled, Spawn
from sfad.protocol.types import Checks, Limit, Placing

from .. import exits, output
from ..app import app, carry_out
from ..connecting.start_daemon import connect_or_start
from ..options.shared import GROUP, PAIR, WITHOUT_VALUE, Json, NewChecks, Pair, Runs, Socket, flag


class CommandLine(NamedTuple):
    """The words after `sfactl spawn`."""

    options: Sequence[Sequence[str]]
    """Each with its value."""
    command: Sequence[str]
    """`--` and a command, or an agent and its words."""

    @property
    def words(self) -> list[str]:
        return [*(word for option in self.options for word in option), *self.command]

    def lines(self) -> list[str]:
        """Return the line as a shell reads it, an option with its value on each."""
        return [shlex.join(part) for part in (*self.options, self.command)]


@app.command()
def rerun(
    runs: Runs,
    socket: Socket = None,
    json: Json = False,
    edit: Annotated[bool, flag("Edit the options first", "--edit", "-e")] = False,
    dry_run: Annotated[bool, flag("Print the command line of `spawn` and start nothing")] = False,
    env: Annotated[list[Pair], PAIR.option("Set a variable in the new run's environment")] = [],
    group: Annotated[str | None, GROUP.option("Another group of the config")] = None,
    check: NewChecks = [],
) -> int:
    """Start runs again, with the command and the options that they had.

    `sfactl spawn` starts the new run, with the options, directory, limits, labels, tools,
    sandbox and way to its model that RUN had. It gets the environment and umask of this shell,
    and /dev/null as its stdin. It waits for no other run. RUN may be live, have ended, or have
    been refused. Inside a run, the new one is a child. A run of another user is only shown,
    with --dry-run.

    --edit opens the options in $VISUAL or $EDITOR, one on a line, and starts what is saved
    there; an empty file starts nothing.
    """
    more = [["--env", f"{key}={value}"] for key, value in env] + (
        [["--group", group]] if group is not None else []
    )
    more += [["--check", command] for command in check]
    codes: list[int] = []
    for run in runs:
        try:
            line = _line(run, more, socket, starts=not dry_run)
            words = _edited(run, line) if edit else line.words
            codes.append(_print(words) if dry_run else _start(words, socket, json))
        except exits.Quit as quit_:
            if len(runs) == 1:
                raise
            output.note(f"sfactl: {output.harmless(quit_.message)}")
            codes.append(quit_.code)
    return next((code for code in codes if code), exits.ExitCode.DONE)


def _line(
    run: str, more: Sequence[Sequence[str]], socket: str | None, *, starts: bool
) -> CommandLine:
    with connect_or_start(socket) as client:
        found = client.call(Recall(id=0, run=run), Recalled)
    if starts and found.owner is not None:
        # its files are the owner's to change: a rerun by root would give them root's rights
        raise exits.Quit(
            exits.ExitCode.NOT_PERMITTED,
            f"run {found.run} belongs to {found.owner}, and its command would run as you: "
            f"ask {found.owner} to start it again, or see what that would start: "
            f"sfactl rerun --dry-run {found.run}",
        )
    request, given = found.request, {option[0] for option in more}
    if "--group" in given:
        request = replace(request, group=None)
    if "--check" in given:
        request = replace(request, check=None)
    for note in _left_out(request):
        output.note(f"sfactl: {found.run}: {note}")
    line = line_of(request)
    return line._replace(options=[*more, *line.options])


def _left_out(request: Spawn) -> list[str]:
    """Return what the new run does not have of the old one, where that is not so for each run."""
    found = []
    if request.env_set:
        found.append(
            "what --env had set is not kept, because it may be secret: set it again with --env"
        )
    if request.stdio == "inherit":
        found.append("it had the terminal of its client; the output of the new run goes to files")
    if request.after:
        found.append(
            f"it does not wait again for {', '.join(after.words for after in request.after)}"
        )
    if request.detach:
        found.append(
            "it had left the tree that started it (--detach); "
            "the new run is a root of its own if no run starts it"
        )
    return found


def _print(words: Sequence[str]) -> int:
    text = f"sfactl spawn {shlex.join(words)}\n"
    output.write(os.fsencode(output.harmless(text) if sys.stdout.isatty() else text))
    return exits.ExitCode.DONE


def _start(words: Sequence[str], socket: str | None, json: bool) -> int:
    own = [*(["--socket", socket] if socket is not None else []), *(["--json"] if json else [])]
    return carry_out(["spawn", *own, *words])


def _edited(run: str, line: CommandLine) -> list[str]:
    """Return the words as the user has saved them in an editor. Raise `Quit` if nothing is to be
    started."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise exits.UsageError(
            "--edit needs an editor: set VISUAL or EDITOR, as in: "
            "EDITOR=nano sfactl rerun --edit RUN"
        )
    with tempfile.NamedTemporaryFile(
        mode="w+", prefix="sfactl-rerun-", suffix=".txt", errors="surrogateescape"
    ) as file:
        file.write(
            f"# sfactl spawn, as {run} was started. What is saved here is started; "
            "an empty file starts nothing.\n"
        )
        file.writelines(f"{each}\n" for each in line.lines())
        file.flush()
        ended = subprocess.run([*shlex.split(editor), file.name], check=False)
        if ended.returncode:
            raise exits.Quit(
                exits.ExitCode.REFUSED,
                f"nothing was started: {editor} ended with {ended.returncode}",
            )
        # editors often put another file in the place of this one
        with open(file.name, errors="surrogateescape") as saved:
            text = saved.read()
    try:
        found = shlex.split(text, comments=True)
    except ValueError as error:
        raise exits.UsageError(f"the saved options cannot be read: {error}") from None
    if not found:
        raise exits.Quit(exits.ExitCode.REFUSED, "nothing was started: the file is empty")
    return found


# ---- the command line


def line_of(message: Spawn) -> CommandLine:
    """Return the line that asks for the same, in the background: what `message` reads, the other
    way round. It leaves out what belongs to one request only: the environment, the terminal and the
    runs that it waited for."""
    begin = message.agent if message.agent is not None else "--"
    return CommandLine([*_options(message)], [begin, *map(os.fsdecode, message.argv)])


def _options(message: Spawn) -> Iterator[Sequence[str]]:
    isolation, worktree, check = message.isolation, message.worktree, message.check
    for option, value in (
        ("--name", message.name),
        ("--kind", message.kind if message.kind != "agent" else None),
        ("--type", message.run_type),
        ("--on-limit", message.on_limit),
        ("--meter", message.meter),
        ("--max-depth", message.max_depth.value if message.max_depth is not None else None),
        (
            "--max-descendants",
            message.max_descendants.value if message.max_descendants is not None else None,
        ),
        ("--attempts", message.attempts if message.attempts != 1 else None),
        ("--retry-delay", _amount(message.retry_delay)),
        ("--grace", _amount(message.grace)),
        ("--cwd", os.fsdecode(message.cwd)),
        ("--priority", message.priority or None),
        ("--group", message.group),
        ("--channel", message.channel),
        ("--check-timeout", _amount(check.timeout) if check is not None else None),
        ("--setup", message.setup),
        ("--on-end", message.on_end),
        (
            "--worktree",
            None if worktree is None or worktree.of is not None else worktree.branch or "-",
        ),
        ("--worktree-of", worktree.of if worktree is not None else None),
        ("--isolate", None if isolation is None else "on" if isolation.network else "net"),
    ):
        if value is not None:
            yield _option(option, str(value))
    for option, values in (
        ("--check", check.commands if check is not None else []),
        ("--label", [f"{key}={value}" for key, value in message.labels.items()]),
        ("--allow", message.allow),
        ("--deny", message.deny),
        ("--allow-tool", message.allowed_tools),
        ("--block-tool", message.blocked_tools),
        ("--model-allow", message.allowed_models),
        ("--egress", isolation.egress if isolation is not None else []),
        ("--writable", map(os.fsdecode, isolation.writable if isolation is not None else [])),
        ("--readable", map(os.fsdecode, isolation.readable if isolation is not None else [])),
        ("--limit", map(_limit_words, message.limits)),
    ):
        for value in values:
            yield _option(option, value)
    for option, given in (
        ("--leaf", message.leaf),
        ("--nested", message.nested),
        ("--stdin", message.stdin == "pipe"),
        ("--terminal", message.terminal is not None),
        ("--no-check", check == Checks()),
        ("--resume", message.resume and message.attempts != 1),
        ("--no-log", not message.log and message.stdio == "files"),
        ("--gateway", message.gateway is True),
        ("--no-gateway", message.gateway is False),
        ("--no-queue", not message.queue and not message.after),
    ):
        if given:
            yield [option]
    if message.placing is not None:
        yield from _placing(message.placing)
    if message.ship is not None and message.placing is not None:
        yield _option("--ship", os.fsdecode(message.ship.directory))


def _placing(placing: Placing) -> Iterator[Sequence[str]]:
    yield ["--fleet"]
    for place in [
        *([placing.node] if placing.node else []),
        *(f"{key}={value}" for key, value in placing.labels.items()),
    ]:
        yield _option("--on", place)
    for option, amount in (
        ("--cpus", placing.cpus),
        ("--gpus", placing.gpus),
        ("--memory", placing.memory),
    ):
        if amount:
            yield _option(option, str(_amount(amount)))
    if placing.restart_elsewhere:
        yield ["--restart-elsewhere"]


def _option(flag: str, value: str) -> Sequence[str]:
    return [f"{flag}={value}"] if flag in WITHOUT_VALUE or value.startswith("-") else [flag, value]


def _limit_words(limit: Limit) -> str:
    return f"{limit.kind}={_amount(limit.threshold)}" + (
        f":{limit.action}" if limit.action is not None else ""
    )


def _amount(number: float | None) -> str | None:
    """Return the shortest text that is read as this number."""
    return None if number is None else str(int(number)) if number == int(number) else repr(number)
