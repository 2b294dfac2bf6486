"""The part in a daemon: it gives runs their terminals, types, waits for the last byte, and
tells of runs that wait for a person."""

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from ...core.state.run import Run
from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from ...processes.launcher import LaunchSpec
from ...protocol.errors import bad_request, too_many, unavailable, wrong_state
from ...protocol.messages import Done
from ...protocol.texts.redaction import redacted
from ...protocol.texts.sanitise import clean
from ...protocol.types import MAX_SIDE, RunId, Terminal
from ...runs.live import Live
from ...start.prepared import Prepared, Surroundings
from .feature import TERMINAL, AgentTerminals
from .holding import Holder, Maker, sizing, typing
from .messages import Keys, TellWaiting
from .notices import MOST_CHARACTERS
from .waiting import Waiting, is_typed

MOST_TYPED = 32 << 10
"""Bytes of one request."""

_FOREIGN = (
    b"TERM=", b"COLORTERM=", b"TERM_PROGRAM", b"TERMCAP=", b"LINES=", b"COLUMNS=", b"TMUX", b"STY=",
    b"WINDOW=", b"WINDOWID=", b"VTE_VERSION=", b"KITTY_", b"ITERM_", b"WEZTERM_", b"GHOSTTY_",
    b"ALACRITTY_", b"KONSOLE_", b"LC_TERMINAL", b"WT_", b"ZELLIJ", b"SSH_TTY=", b"GPG_TTY=",
)  # fmt: skip
"""Variables of the client's terminal, from which programs would take this one for that."""
_OWN = (b"TERM=xterm-256color", b"COLORTERM=truecolor")


class Terminals:
    def __init__(self, heart: Heart, waiting: Waiting) -> None:
        self._heart = heart
        self._waiting = waiting
        launcher = heart.resources.launcher
        self._maker = Maker(Path(heart.resources.state_dir, "terminals"), launcher)
        self._holders: dict[RunId, Holder] = {}

    # Deciding.

    def decide(self, p: Prepared, around: Surroundings) -> None:
        """Give a run of an agent that wants one a terminal."""
        asked: Terminal | None = p.parts.of(TERMINAL)
        if asked is None and around.order.stdio == "files" and not around.order.placing:
            agents = self._heart.section("agents", AgentTerminals)
            agent = agents.get(around.order.agent or "")
            asked = Terminal() if agent is not None and agent.terminal else None
        if asked is not None:
            p.parts.decide(TERMINAL, asked)

    def check(self, p: Prepared, around: Surroundings) -> None:
        """Refuse a terminal beside what it excludes."""
        terminal: Terminal | None = p.parts.of(TERMINAL)
        if terminal is None:
            return
        _check_size(terminal.rows, terminal.columns)
        for excluded, option in (
            (not p.output.log, "--no-log: what it shows is kept"),
            (p.output.stdio == "inherit", "--stdio inherit: the run has one terminal"),
            (p.output.stdin != "null", "--stdin: the run reads its terminal"),
            (around.order.placing is not None, "--fleet: a terminal is on its client's machine"),
        ):
            if excluded:
                raise bad_request(f"a terminal of its own excludes {option}")

    # Launching.

    def launch(self, live: Live, spec: LaunchSpec, opened: list[int]) -> LaunchSpec:
        """Return what a run is launched with: a terminal. Raises `OSError`."""
        self._waiting.over(live.run.id)
        if live.run.latest.stage:
            return spec  # what it prints stands apart
        terminal: Terminal = live.parts.of(TERMINAL)
        run, user = live.run.id, live.credentials
        if (earlier := self._holders.get(run)) is not None and earlier.size is not None:
            terminal = Terminal(rows=earlier.size[0], columns=earlier.size[1])
        output = spec.stdout
        assert output is not None
        record = self._heart.resources.output.open_shown(
            run, os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )
        try:
            slave, holder = self._maker.make(
                run, terminal, output, record, None if user is None else user.uid
            )
        finally:
            os.close(record)
        opened.append(slave)
        self._keep(run, holder)
        self._waiting.watch(live)
        env = [item for item in spec.env if not item.startswith(_FOREIGN)]
        return replace(
            spec,
            env=[*env, *_OWN],
            terminal=True,
            alone=True,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )

    def _keep(self, run: RunId, holder: Holder) -> None:
        self._holders[run] = holder
        self._heart.background.start_soon(holder.watch)

    def begin(self) -> None:
        """Find the holders of an earlier daemon, and remove what it left."""
        live = self._heart.catalogue.live
        for run, each in live.items():
            if each.parts.of(TERMINAL) is not None and run not in self._holders:
                with suppress(OSError):  # it waits for its start, or has ended
                    self._keep(run, self._maker.found(run))
                    self._waiting.watch(each)
        self._maker.remove_others(live)
        self._waiting.begin()

    # Ending.

    def emptied(self, run: Run) -> Callable[[], Awaitable[None]] | None:
        held = [
            holder
            for each in run.subtree()
            if (holder := self._holders.get(each.id)) is not None and not holder.ended.is_set()
        ]
        return partial(_end, held) if held else None

    def ended(self, run: Run) -> None:
        holder = self._holders.pop(run.id, None)
        if holder is not None and not holder.ended.is_set():
            self._heart.background.start_soon(holder.end)
        self._maker.remove(run.id)
        self._waiting.forget(run.id)

    # Typing.

    def keys(self, asker: Asker, request: Keys) -> None:
        run = asker.resolve(request.run)
        live = self._heart.catalogue.live.get(run.id)
        if live is None:
            raise wrong_state(f"run {run.id} is {run.status}; nothing reads its terminal any more")
        if live.parts.of(TERMINAL) is None:
            raise wrong_state(f"run {run.id} has no terminal of its own; start one with --terminal")
        if len(request.data) > MOST_TYPED:
            raise too_many("bytes of keys", len(request.data), MOST_TYPED)
        orders = typing(request.data)
        holder = self._holders.get(run.id)
        size = request.rows, request.columns
        if any(size):
            _check_size(*size)
            if holder is None or holder.size != size:
                orders.insert(0, sizing(*size))
        try:
            if holder is None:
                raise OSError("it has not begun, or its holder has ended")
            done = holder.order(*orders)
        except OSError as error:
            raise wrong_state(f"cannot type into the terminal of run {run.id}: {error}") from error
        if done < len(orders):
            raise unavailable(
                f"run {run.id} does not read its terminal: "
                f"{done} of {len(orders)} parts were typed; try the rest later"
            )
        if any(size):
            holder.size = size
        if is_typed(request.data):
            self._waiting.over(run.id)
        asker.reply(Done(id=asker.id))

    def tell_waiting(self, asker: Asker, request: TellWaiting) -> None:
        name = request.run if request.run is not None else asker.peer.run
        if name is None:
            raise bad_request("say which run waits: this process is in no run")
        run = asker.resolve(name)
        live = self._heart.catalogue.live.get(run.id)
        if live is None:
            raise wrong_state(f"run {run.id} is {run.status}; it waits for no one")
        if request.over:
            self._waiting.over(run.id)
        else:
            words = " ".join(clean(request.words.encode(errors="replace")).split())
            self._waiting.say(live, redacted(words)[:MOST_CHARACTERS])
        asker.reply(Done(id=asker.id))


def _check_size(rows: int, columns: int) -> None:
    for what, value in (("rows", rows), ("columns", columns)):
        if not 1 <= value <= MAX_SIDE:
            raise bad_request(f"{what} of a terminal must be 1 to {MAX_SIDE}, got {value}")


async def _end(holders: list[Holder]) -> None:
    async with trio.open_nursery() as nursery:
        for holder in holders:
            nursery.start_soon(holder.end)


def part(heart: Heart) -> Part:
    waiting = Waiting(heart)
    terminals = Terminals(heart, waiting)
    return Part(
        verbs={Keys: terminals.keys, TellWaiting: terminals.tell_waiting},
        serve=waiting.serve,
        changed=waiting.changed,
        begin=terminals.begin,
        decide=terminals.decide,
        check=terminals.check,
        launch=terminals.launch,
        emptied=terminals.emptied,
        ended=terminals.ended,
    )
