"""What each key does. Nothing here waits: the daemon is asked in threads, whose answers come back through `post`."""

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import NamedTuple

from sfad.protocol import messages as m
from sfad.protocol.types import AlertState, Event, Limit, RunInfo, Status
from sfad.protocol.units import counted

from .. import limits, output
from ..exits import UsageError
from .cursor import RunCursor
from .errands import Errands, Post
from .pane import HELP, Pane
from .prompt import Prompt
from .ranking import reason
from .table import Row, RunTable
from .tail import OutputTail

NOTICE = 8.0
"""Seconds that a notice is shown."""
ALERTS = 100
SOURCE = "sfactl top"
"""Where limits come from that are typed here."""
SEVERAL = 3
"""Lines that a turn of the mouse wheel scrolls."""


class Spent(NamedTuple):
    """What runs have cost within a window that ends now."""

    usd: float
    window_s: float


class Keys:
    """What is shown, and how keys and mouse change it."""

    def __init__(self, socket: str | None, post: Post, leave: Callable[[], None], suspend: Callable[[], None]) -> None:
        self.table, self.cursor = RunTable(), RunCursor()
        self.prompt: Prompt | None = None
        self.pane: Pane | None = None
        self.alerts: list[AlertState] = []
        """Those that are raised."""
        self.spent: Spent | None = None
        self.notice = ""
        self.notice_bad = False
        self.away = ""
        self.away_since = 0.0
        self.tree_height = 10
        """Lines of the tree that were drawn last, and of the pane."""
        self.pane_height = 0
        self.pane_total = 0
        self._notice_until = 0.0
        self._tail: OutputTail | None = None
        self._socket, self._post, self._leave = socket, post, leave
        self._errands = Errands(socket, post)
        self._keys: dict[str, Callable[[], None]] = {
            "ctrl+c": leave, "q": leave, "ctrl+q": leave, "ctrl+z": suspend, "escape": self._close, "question_mark": self._help,
            "f1": self._help, "up": lambda: self._move(-1), "k": lambda: self._move(-1), "down": lambda: self._move(1),
            "j": lambda: self._move(1), "pageup": lambda: self._move(-self.tree_height),
            "pagedown": lambda: self._move(self.tree_height), "home": lambda: self._move(-len(self.rows)),
            "end": lambda: self._move(len(self.rows)), "left": self._fold_or_up, "right": self._unfold, "space": self._toggle,
            "z": self._fold_all, "n": self._next, "slash": self._filter, "less_than_sign": lambda: self._sort(-1),
            "greater_than_sign": lambda: self._sort(1), "e": self._ended, "s": self._stop, "p": self._pause, "r": self._resume,
            "a": self._approve, "d": self._deny, "l": self._limit, "o": self._output, "O": lambda: self._output(stderr=True),
            "upper_o": lambda: self._output(stderr=True), "w": self._why, "A": self._alerts, "upper_a": self._alerts,
            "left_square_bracket": lambda: self._scroll_pane(-1), "right_square_bracket": lambda: self._scroll_pane(1),
        }  # fmt: skip

    @property
    def rows(self) -> Sequence[Row]:
        return self.table.rows

    @property
    def chosen(self) -> RunInfo | None:
        return self.table.runs.get(self.cursor.run) if self.cursor.run is not None else None

    # ---- what comes in

    def take(self, reply: m.RunList | m.RunsPush | m.DaemonStatus) -> None:
        """Take what the daemon tells of runs and alerts."""
        if isinstance(reply, m.DaemonStatus):
            self.alerts = reply.alerts
            self.spent = Spent(reply.cost_usd, reply.window_s) if reply.cost_usd is not None else None
            self.table.warn_from(reply.limit_share)
            return
        now = monotonic()
        if self.away:
            self.away = ""
            self.say("the daemon is back")
        (self.table.replace if isinstance(reply, m.RunList) else self.table.update)(reply.runs, now)

    def lose(self, why: str) -> None:
        """Note that the daemon cannot be asked."""
        if not self.away:
            self.away_since = monotonic()
        self.away = why

    def press(self, key: str, character: str | None) -> None:
        """Take one key. Keys are pressed in the order in which they were typed."""
        if key.startswith("alt+"):  # terminals send Escape and a key that follows at once like Alt and the key
            self.press("escape", None)
            key = key.removeprefix("alt+")
        prompt = self.prompt
        if key in ("ctrl+c", "ctrl+z"):
            self._keys[key]()
        elif prompt is None:
            if (act := self._keys.get(key)) is not None:
                if not self.notice_bad:
                    self.notice = ""
                act()
        elif prompt.asking:
            if key == "escape":
                self.prompt = None
            elif len(prompt.early) < 1000:
                prompt.early.append((key, character))
        else:
            self._answer(prompt, key, character)

    def paste(self, text: str) -> None:
        """Take text from the clipboard, only into a prompt: no key is pressed by it."""
        if self.prompt is not None and not self.prompt.yes_or_no and not self.prompt.asking:
            self.prompt.type(text.partition("\n")[0])

    def click(self, line: int) -> None:
        """Choose a line of the tree as it was drawn; a second click folds it."""
        at = self.cursor.top + line
        if at >= len(self.rows):
            return
        again = self.cursor.at == at and self.cursor.moved
        self.cursor.go(self.rows, at)
        if again:
            self._toggle()
        self._pane_follows()

    def turn(self, lines: int, *, below: bool) -> None:
        """Scroll the tree, or what is below it."""
        if below and self.pane is not None:
            self.pane.scroll(lines * SEVERAL, self.pane_height, self.pane_total)
        else:
            self._move(lines * SEVERAL)

    def say(self, words: str, *, bad: bool = False) -> None:
        self.notice, self.notice_bad, self._notice_until = output.plain(words), bad, monotonic() + NOTICE

    def pass_time(self) -> None:
        """Forget a notice that was shown long enough."""
        if self.notice and self.prompt is None and monotonic() >= self._notice_until:
            self.notice = ""

    def close(self) -> None:
        """Stop following output."""
        if self._tail is not None:
            self._tail.stop()
            self._tail = None

    # ---- the prompt

    def _answer(self, prompt: Prompt, key: str, character: str | None) -> None:
        if key == "escape":
            self.prompt = None
            if prompt.changed is not None:
                prompt.changed("")
        elif prompt.yes_or_no:
            self.prompt = None
            if character in ("y", "Y"):
                prompt.submit("y")
            else:
                self.say("nothing done")
        elif key == "enter":
            prompt.submit(prompt.text.strip())
        elif not prompt.edit(key) and character is not None:
            prompt.type(character)

    def _ask(
        self, question: str, submit: Callable[[str], None], *, yes_or_no: bool = False, text: str = "", kind: str | None = None
    ) -> None:
        offered = f"{kind}=" if kind else ""
        self.prompt = Prompt(question, submit, text=text, yes_or_no=yes_or_no, offered=offered)
        self.notice = ""

    def _about(self) -> RunInfo | None:
        """Return the chosen run, if it is live."""
        run = self.chosen
        if run is None:
            self.say("there is no run")
        elif run.status.terminal:
            self.say(f"{run.id} has ended", bad=True)
            return None
        return run

    def _send(self, request: m.Request, done: Callable[[RunInfo], str]) -> None:
        """Ask the daemon for something about a run. A prompt stays until that is done: a mistake can be corrected in it."""
        prompt = self.prompt
        if prompt is not None:
            prompt.asking = True
        self.notice = ""

        def told(reply: m.RunReply) -> None:
            self.table.update([reply.run], monotonic())
            self.say(done(reply.run))
            if prompt is not None and self.prompt is prompt:
                self.prompt = None
                for key, character in prompt.early:
                    self.press(key, character)

        def failed(message: str) -> None:
            self.say(message, bad=True)
            if prompt is not None:
                prompt.asking = False
                prompt.early.clear()  # they were meant for what comes after the prompt

        self._errands.send(request, m.RunReply, told, failed)

    def _room(self, text: str) -> list[Limit] | None:
        """Return the limits that a person has typed; `None` if they are wrong, and then the notice says why."""
        try:
            return limits.of_flags(text.replace(",", " ").split(), SOURCE)
        except UsageError as error:
            self.say(error.message.removeprefix(SOURCE).lstrip(": "), bad=True)
            return None

    # ---- moving about

    def _move(self, lines: int) -> None:
        self.cursor.move(self.rows, lines)
        self._pane_follows()

    def _next(self) -> None:
        found = self.cursor.next_in_trouble(self.table.unfolded)
        if found is not None:
            self.table.reveal(found)
            self.cursor.choose(self.rows, found)
        if hidden := self.table.filtered_out:
            self.say(f"the filter hides {counted(hidden, 'run')} in trouble: Esc shows all runs", bad=True)
        elif found is None:
            self.say("no run is in trouble")
        self._pane_follows()

    def _fold_or_up(self) -> None:
        run = self.chosen
        if run is None:
            return
        has_children = any(each.parent_id == run.id for each in self.table.runs.values())
        if has_children and not self.table.is_folded(run.id):
            self.table.fold(run.id, folded=True)
        elif (above := next((at for at, row in enumerate(self.rows) if row.run.id == run.parent_id), None)) is not None:
            self.cursor.go(self.rows, above)

    def _unfold(self) -> None:
        if self.chosen is not None:
            self.table.fold(self.chosen.id, folded=False)

    def _toggle(self) -> None:
        if self.chosen is not None:
            self.table.fold(self.chosen.id, folded=not self.table.is_folded(self.chosen.id))

    def _fold_all(self) -> None:
        self.table.fold_all(folded=all(not row.hidden for row in self.rows))

    def _sort(self, steps: int) -> None:
        names = list(self.table.orders)
        self.table.sort_by(names[(names.index(self.table.order) + steps) % len(names)])
        self.say(f"sorted by {self.table.order}")

    def _ended(self) -> None:
        self.table.show_ended(not self.table.ended_shown)
        self.say("ended runs are shown" if self.table.ended_shown else "ended runs are hidden")

    def _filter(self) -> None:
        def done(text: str) -> None:
            self.table.filter_by(text)
            self.prompt = None
            found = next((at for at, row in enumerate(self.rows) if text and self.table.matches(row.run)), None)
            if found is not None:
                self.cursor.go(self.rows, found)
                self._pane_follows()

        self._ask("show only", done, text=self.table.filter)
        assert self.prompt is not None
        self.prompt.changed = self.table.filter_by

    # ---- steering runs

    def _stop(self) -> None:
        run = self._about()
        if run is None:
            return
        live = len(self._live_below(run))
        below = f" and the {counted(live, 'run')} below it" if live else ""

        def stop(_answer: str) -> None:
            self.say(f"stopping {run.id} …")
            request = m.Stop(id=0, runs=[run.id])
            self._errands.send(request, m.Stopped, self._stopped, lambda message: self.say(message, bad=True))

        self._ask(f"stop {_named(run)}{below}? y/N", stop, yes_or_no=True)

    def _live_below(self, run: RunInfo) -> list[RunInfo]:
        found, above = [], {run.id}
        for each in sorted(self.table.runs.values(), key=lambda each: each.id):
            if each.parent_id in above:
                above.add(each.id)
                if not each.status.terminal:
                    found.append(each)
        return found

    def _stopped(self, reply: m.Stopped) -> None:
        if reply.survivors:
            self.say(output.survivors(reply.survivors).replace("\n", "; "), bad=True)
        else:
            self.say(f"stopped: {', '.join(reply.stopped)}" if reply.stopped else "nothing to stop")

    def _pause(self) -> None:
        run = self._about()
        if run is not None:
            self._send(m.Pause(id=0, run=run.id), lambda now: f"{now.id} is {now.status.value}")

    def _resume(self) -> None:
        run = self._about()
        if run is None:
            return
        if run.reason is None or run.reason.limit_kind is None or run.status is not Status.PAUSED:
            self._send(m.Resume(id=0, run=run.id), lambda now: f"{now.id} is {now.status.value}")
            return
        self._ask_for_room(run, "resume", lambda room: m.Resume(id=0, run=run.id, limits=room))

    def _asking(self) -> RunInfo | None:
        """Return the chosen run, if it waits for approval."""
        run = self._about()
        if run is None or output.waits_for_approval(run):
            return run
        self.say(f"{run.id} does not wait for approval; l changes its limits", bad=True)
        return None

    def _approve(self) -> None:
        run = self._asking()
        if run is not None:
            self._ask_for_room(run, "approve", lambda room: m.Approve(id=0, run=run.id, limits=room))

    def _ask_for_room(self, run: RunInfo, verb: str, request: Callable[[list[Limit]], m.Request]) -> None:
        def submit(text: str) -> None:
            room = self._room(text)
            if room is not None:
                self._send(request(room), lambda now: f"{now.id} is {now.status.value}")

        kind = run.reason.limit_kind if run.reason is not None else None
        self._ask(f"{verb} {_named(run)} with the limit (empty: it only warns)", submit, kind=kind)

    def _deny(self) -> None:
        run = self._asking()
        if run is not None:
            deny = m.Deny(id=0, run=run.id)
            self._ask(
                f"deny {_named(run)} more room, and stop it? y/N",
                lambda _answer: self._send(deny, lambda now: f"{now.id} is {now.status.value}"),
                yes_or_no=True,
            )

    def _limit(self) -> None:
        run = self._about()
        if run is None:
            return

        def submit(text: str) -> None:
            wanted = self._room(text)
            if wanted:
                self._send(m.ChangeLimits(id=0, run=run.id, limits=wanted), lambda now: _limits_of(now, wanted))
            elif wanted is not None:
                self.say("say which limit, as in: cost=5 turns=50 time=2h", bad=True)

        kind = run.reason.limit_kind if run.reason is not None else None
        self._ask(f"limits of {_named(run)}", submit, kind=kind)

    # ---- the pane

    def _close(self) -> None:
        if self.pane is not None:
            self.pane = None
            self.close()
        elif self.table.filter:
            self.table.filter_by("")

    def _open(self, pane: Pane) -> None:
        self.close()
        same = self.pane is not None and (self.pane.title, self.pane.run) == (pane.title, pane.run)
        self.pane = None if same else pane

    def _help(self) -> None:
        self._open(Pane("keys", lines=HELP))

    def _scroll_pane(self, way: int) -> None:
        if self.pane is not None:
            self.pane.scroll(way * max(self.pane_height - 1, 1), self.pane_height, self.pane_total)

    def _why(self) -> None:
        if self.chosen is None:
            return
        run = self.chosen.id

        def told(reply: m.RunReply) -> None:
            if pane is self.pane:
                pane.lines = _explained(reply.run, self.table.limit_share)

        pane = Pane("why", run, lines=_explained(self.chosen, self.table.limit_share))
        self._open(pane)
        self._errands.send(m.Info(id=0, run=run), m.RunReply, told, lambda message: self.say(message, bad=True))

    def _output(self, *, stderr: bool = False) -> None:
        if self.chosen is None:
            return
        pane = Pane("stderr" if stderr else "output", self.chosen.id, follows=True, raw=True)
        self._open(pane)
        if self.pane is not pane:
            return

        def show(lines: list[str], goes_on: bool) -> None:
            if goes_on and pane.lines and lines:
                pane.lines[-1] += lines.pop(0)
            pane.add(lines)

        self._tail = OutputTail(self._socket, self.chosen.id, stderr=stderr, show=show, post=self._post)

    def _pane_follows(self) -> None:
        """Show of the newly chosen run what was shown of the one before."""
        pane, run = self.pane, self.cursor.run
        if pane is None or pane.run in (None, run):
            return
        if pane.title == "why":
            self._why()
        else:
            self._output(stderr=pane.title == "stderr")

    def _whose(self, alert: AlertState | Event) -> str:
        run = self.table.runs.get(alert.run_id) if alert.run_id is not None else None
        who = _named(run) if run is not None else alert.run_id or ""
        return f"{who} {output.plain(alert.message)}".lstrip()

    def _earlier(self, events: Sequence[Event]) -> Iterator[Event]:
        """Yield events of alerts, the newest first, without those that raised what is raised now."""
        raised = {(alert.type, alert.scope, alert.run_id, alert.message) for alert in self.alerts}
        for event in reversed(events):
            about = (event.type, event.scope, event.run_id, event.message)
            if about in raised:
                raised.remove(about)
            else:
                yield event

    def _alerts(self) -> None:
        pane = Pane("alerts", lines=["…"])
        self._open(pane)

        def told(reply: m.EventPage) -> None:
            raised = [f"raised since {output.clock(alert.since)}: {self._whose(alert)}" for alert in self.alerts]
            lines = [
                f"{output.clock(event.time or None)}  {event.type}  {self._whose(event)}" for event in self._earlier(reply.events)
            ]
            pane.lines = [*(raised or ["no alert is raised"]), *([""] if lines else []), *lines]

        request = m.Events(id=0, types=["alert_*"], rows=ALERTS)
        self._errands.send(request, m.EventPage, told, lambda message: self.say(message, bad=True))


def _named(run: RunInfo) -> str:
    return f"{run.id} ({output.plain(run.name)})"


def _limits_of(run: RunInfo, wanted: Sequence[Limit]) -> str:
    kinds = {limit.kind for limit in wanted}
    now = ", ".join(limits.describe(state).partition(";")[0] for state in run.limits if state.kind in kinds)
    return f"{run.id} is {run.status.value}: {now}"


def _explained(run: RunInfo, limit_share: float) -> list[str]:
    keys = ["a approves, d denies"] if output.waits_for_approval(run) else []
    more = [f"milestone: {output.plain(run.milestone)}"] if run.milestone else []
    use = [f"used: {said}" for said in limits.by_source(run)] + ([f"total: {said}"] if (said := limits.totals(run)) else [])
    bounds = [f"limit {limits.describe(state)}" for state in run.limits]
    return [
        f"{_named(run)}: {reason(run, limit_share)}",
        *keys,
        *more,
        *use,
        *bounds,
        f"command: {output.command(run)}",
        f"in: {output.plain(run.cwd)}",
    ]
