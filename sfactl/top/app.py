"""The Textual application: what is on the screen, and what keys ask of the daemon."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import ClassVar, TypeVar

from rich.cells import cell_len
from textual import events, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import DataTable, Footer

from sfad.protocol import messages as m
from sfad.protocol.texts.units import counted
from sfad.protocol.types import Limit, LimitKind, RunId, RunInfo

from .. import output
from ..exits import Quit, UsageError
from ..options import limits
from ..options.spawn import continuation
from .cells import BAD, DIM, GOOD, WARN, heading, in_lines, line, titles
from .daemon import Feed, Told, ask, said
from .pane import About, Lines, Pane, alert_lines, explained, named
from .prompt import Confirm, Prompt
from .run_tree import RunTree, help_lines, keys, shown_key
from .table import NEARING, QUIET, RunTable, rank, reason

R = TypeVar("R", bound=m.Reply)

NOTICE = 8.0
"""Seconds that a notice is shown."""
REASONS = 2
"""Lines of the reasons below the tree."""
ALERTS = 100
AT_ONCE = ("ctrl+c", "ctrl+z")
"""Keys that do not wait for those before."""
ROOM = "with the limit (empty: it only warns)"
SOURCE = "sfactl top"
"""Where limits come from that are typed here."""


class TopApp(App[None]):
    TITLE = "sfactl top"
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Confirm { background: transparent; }
    #reasons { height: 2; }
    Footer, FooterKey { background: ansi_default; }
    FooterKey .footer-key--key { color: ansi_cyan; background: ansi_default; }
    FooterKey .footer-key--description { color: ansi_bright_black; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", "leave", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", show=False, priority=True),
    ]

    def __init__(self, source: Feed | None = None) -> None:
        """`source`: where runs come from, besides `take`."""
        super().__init__(ansi_color=True)
        self.table = RunTable()
        self.runs, self.pane, self.prompt = RunTree(self.table), Pane(source), Prompt()
        self.daemon: m.DaemonStatus | None = None
        self.typed: asyncio.Queue[events.Key | events.Paste] = asyncio.Queue()
        """Keys, and text from the clipboard, that wait for those before."""
        self._source = source
        self.table.of_fleet = source is not None and source.of_fleet
        self._away, self._away_since = "", 0.0
        self._notice, self._notice_bad, self._notice_until = "", False, 0.0
        self._header, self._titles, self._reasons, self._bottom = (
            Lines(),
            Lines(),
            Lines(id="reasons"),
            Lines(),
        )

    def compose(self) -> ComposeResult:
        yield from (
            self._header,
            self._titles,
            self.runs,
            self._reasons,
            self.pane,
            self._bottom,
            self.prompt,
        )
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.runs.focus()
        self.take_keys()
        self.set_interval(1.0, self.show)  # ages and times
        # after Ctrl-Z the terminal is empty
        self.app_resume_signal.subscribe(self, lambda _app: self.screen.refresh(layout=True))
        if self._source is not None:
            self.take(self._source.first)
            self._source.start(
                partial(self.call_later, self.take), partial(self.call_later, self._lose)
            )

    def on_unmount(self) -> None:
        self.pane.stop()

    def on_resize(self) -> None:
        self.pane.fill()
        self.call_after_refresh(self.show)

    def get_system_commands(self, _screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer all keys in the command palette."""
        for each in keys():
            act = partial(self.run_action, each.action, self.runs)
            yield SystemCommand(each.tooltip or each.description, shown_key(each), act)

    # ---- keys, in the order in which they are typed

    async def on_event(self, event: events.Event) -> None:
        """Have keys wait for those before: what a key opens must have the focus before the next one
        is looked at."""
        if (
            not isinstance(event, events.Key | events.Paste)
            or event.is_forwarded
            or getattr(event, "key", "") in AT_ONCE
        ):
            await super().on_event(event)
        elif not (
            isinstance(event, events.Key) and event.key == "escape" and self.prompt.interrupt()
        ):
            self.typed.put_nowait(event)

    @work
    async def take_keys(self) -> None:
        while True:
            pressed = await self.typed.get()
            for key in _as_typed(pressed):
                if not self._notice_bad and not self.prompt.display:
                    self._notice = ""
                target, handled = self.focused or self.screen, asyncio.Event()
                await super().on_event(key)
                # keys of the tree are all bound
                if target is not self.runs and target.call_later(handled.set):
                    await handled.wait()
                self.show()
            self.typed.task_done()

    # ---- what comes in

    def take(self, reply: Told) -> None:
        """Take what the daemon tells of runs and alerts."""
        if isinstance(reply, m.DaemonStatus):
            self.daemon = reply
            self.table.warn_from(reply.limit_share)
        else:
            (self.table.replace if isinstance(reply, m.RunList) else self.table.update)(
                reply.runs, monotonic()
            )
            self.table.left_out = reply.queued
        self.show()

    def _lose(self, why: str) -> None:
        """Show why no answer comes; `""`: all is there again."""
        if not why:
            self.say("the daemon is back" if not self.table.of_fleet else "all nodes are back")
        elif not self._away:
            self._away_since = monotonic()
        self._away = why
        self.show()

    def say(self, words: str, *, bad: bool = False) -> None:
        self._notice, self._notice_bad, self._notice_until = (
            output.plain(words),
            bad,
            monotonic() + NOTICE,
        )

    def on_data_table_row_highlighted(self) -> None:
        self.show()

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        self.runs.toggle()
        self.show()

    # ---- what is drawn

    def now(self) -> datetime:
        return datetime.now(UTC)

    def show(self) -> None:
        """Draw what has changed."""
        width, now = self.size.width, self.now()
        if self._notice and not self.prompt.display and monotonic() >= self._notice_until:
            self._notice = ""
        self.runs.show(now)
        about = self.pane.about
        if about is not None and about.run not in (None, self.runs.run_id) and self.runs.moved:
            self.action_why() if about.title == "why" else self.action_output(about.title)
        away = (
            f"{self._away} for {output.seconds(monotonic() - self._away_since)}: waiting for it"
            if self._away
            else ""
        )
        self._header.show(heading(self.table, self.daemon, away, width, now))
        self._titles.show(titles(self.runs.columns_shown, self.table.order, width))
        style = BAD if self._notice_bad else GOOD
        self._bottom.display = not self.prompt.display
        if self._notice and (self.prompt.display or cell_len(self._notice) > width):
            self._reasons.show(*in_lines(self._notice, style, width, REASONS))
            self._bottom.show()
        else:
            self._reasons.show(*self._why(width, now))
            self._bottom.show(line([(self._notice, style)], width))
        self.pane.show_title(self.table.runs)

    def _why(self, width: int, now: datetime) -> list[Strip]:
        run, share = self.runs.chosen, self.table.limit_share
        if run is None:
            return []
        level = rank(run, share)
        style = DIM if level == QUIET else WARN if level == NEARING else BAD
        return in_lines(
            f"{run.id} {output.plain(run.name)}: {reason(run, share, now)}", style, width, REASONS
        )

    # ---- prompts

    async def action_submit(self) -> None:
        if await self.prompt.submit():
            self.screen.set_focus(self.runs)
            return
        # keys that were typed ahead were meant for what comes after the prompt
        while not self.typed.empty():
            self.typed.get_nowait()
            self.typed.task_done()

    def action_cancel(self) -> None:
        self._notice = ""
        self.prompt.cancel()
        self.screen.set_focus(self.runs)

    async def _confirm(self, question: str, act: Callable[[], object]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                act()
            else:
                self.say("nothing done")
            self.show()

        await self.push_screen(Confirm(question), answered)

    def action_filter(self) -> None:
        def changed(text: str) -> None:
            self.table.filter_by(text)
            self.show()

        async def answer(text: str) -> bool:
            self.table.filter_by(text)
            found = next(
                (row.run.id for row in self.table.rows if text and self.table.matches(row.run)),
                None,
            )
            if found is not None:
                self.runs.choose(found)
            return True

        self.prompt.ask("show only", answer, self.table.filter, changed=changed)

    # ---- what is shown of runs

    def action_next(self) -> None:
        found = self.runs.next_in_trouble()
        if found is not None:
            self.table.reveal(found)
            self.runs.choose(found)
        if hidden := self.table.filtered_out:
            self.say(
                f"the filter hides {counted(hidden, 'run')} in trouble: Esc shows all runs",
                bad=True,
            )
        elif found is None:
            self.say("no run is in trouble")

    def action_sort(self, steps: int) -> None:
        names = list(self.table.orders)
        self.table.sort_by(names[(names.index(self.table.order) + steps) % len(names)])
        self.say(f"sorted by {self.table.order}")

    def action_ended(self) -> None:
        self.table.show_ended(not self.table.ended_shown)
        self.say("ended runs are shown" if self.table.ended_shown else "ended runs are hidden")

    # ---- steering runs

    def _live(self) -> RunInfo | None:
        """Return the chosen run, if it is live."""
        run = self.runs.chosen
        if run is None:
            self.say("there is no run")
        elif run.status.terminal:
            self.say(f"{run.id} has ended", bad=True)
            return None
        return run

    async def _asked(self, request: m.Request, expected: type[R]) -> R | None:
        """Return what the daemon answers; `None` after an error, which is shown."""
        try:
            return await ask(self._source, request, expected)
        except (Quit, OSError) as error:
            self.say(said(error), bad=True)
            self.show()
            return None

    async def _change(self, request: m.Request, kinds: Collection[LimitKind] = ()) -> bool:
        """Ask the daemon to change a run, and say what came of it, with the limits of these kinds.
        Return whether it is done."""
        self._notice = ""
        reply = await self._asked(request, m.RunReply)
        if reply is None:
            return False
        run = reply.run
        self.table.update([run], monotonic())
        now = ", ".join(
            limits.describe(state).partition(";")[0] for state in run.limits if state.kind in kinds
        )
        self.say(f"{run.id} is {run.status.value}{': ' if now else ''}{now}")
        self.show()
        return True

    def _ask_for_limits(
        self,
        question: str,
        run: RunInfo,
        request: Callable[[list[Limit]], m.Request],
        *,
        needed: bool = False,
    ) -> None:
        """Change a run with the limits that a person types. `needed`: at least one."""

        async def answer(text: str) -> bool:
            try:
                wanted = limits.of_flags(text.replace(",", " ").split(), SOURCE)
            except UsageError as error:
                self.say(error.message.removeprefix(SOURCE).lstrip(": "), bad=True)
                return False
            if needed and not wanted:
                self.say("say which limit, as in: cost=5 turns=50 time=2h", bad=True)
                return False
            return await self._change(request(wanted), {limit.kind for limit in wanted})

        self.prompt.ask(question, answer, kind=output.holding_limit(run))

    async def action_stop(self) -> None:
        if (run := self._live()) is None:
            return
        live = self.table.live_below(run.id)
        below = f" and the {counted(live, 'run')} below it" if live else ""
        await self._confirm(
            f"stop {named(run)}{below}", lambda: self.run_worker(self._stop(run.id))
        )

    async def _stop(self, run: RunId) -> None:
        self.say(f"stopping {run} …")
        reply = await self._asked(m.Stop(id=0, runs=[run]), m.Stopped)
        if reply is not None and reply.survivors:
            self.say(output.survivors(reply.survivors).replace("\n", "; "), bad=True)
        elif reply is not None:
            self.say(f"stopped: {', '.join(reply.stopped)}" if reply.stopped else "nothing to stop")
        self.show()

    def action_pause(self) -> None:
        if (run := self._live()) is not None:
            self.run_worker(self._change(m.Pause(id=0, run=run.id)))

    def action_resume(self) -> None:
        if (run := self._live()) is None:
            return
        if output.holding_limit(run) is None:
            self.run_worker(self._change(m.Resume(id=0, run=run.id)))
        else:
            self._ask_for_limits(
                f"resume {named(run)} {ROOM}",
                run,
                lambda room: m.Resume(id=0, run=run.id, limits=room),
            )

    def action_continue(self) -> None:
        run = self.runs.chosen
        if run is None:
            self.say("there is no run")
        elif not run.status.terminal:
            self.say(f"{run.id} has not ended", bad=True)
        elif run.session:
            self.say(
                f"{run.id} is a session; continue it with: sfactl session send {run.id} MESSAGE",
                bad=True,
            )
        else:
            self.prompt.ask(
                f"continue {named(run)}, and tell it (nothing: why it ended)",
                partial(self._continue, run.id),
            )

    async def _continue(self, run: RunId, task: str) -> bool:
        try:
            request = continuation(run, task or None)
        except Quit as error:
            self.say(error.message, bad=True)
            return True
        reply = await self._asked(request, m.Reply)
        if isinstance(reply, m.Refused):
            self.say(f"refused: {output.plain(reply.refused.message)}", bad=True)
        elif isinstance(reply, m.RunReply):
            self.table.update([reply.run], monotonic())
            self.say(f"{run} continues as {reply.run.id}")
        self.show()
        return True

    async def action_land(self) -> None:
        run = self.runs.chosen
        if run is None:
            self.say("there is no run")
        elif not run.status.terminal or run.worktree is None:
            why = "had no worktree" if run.status.terminal else "has not ended"
            self.say(f"{run.id} {why}", bad=True)
        else:
            await self._confirm(
                f"commit the work of {named(run)}, and merge it where it was started",
                lambda: self.run_worker(self._land(run.id)),
            )

    async def _land(self, run: RunId) -> None:
        from ..worktrees import landing  # few runs have a worktree

        assert self._source is not None
        self.say(f"landing {run} …")
        try:
            done = await asyncio.to_thread(landing.from_afar, self._source.call, run)
        except (Quit, OSError) as error:
            done = said(error)
        self._notice, about = "", About("land", run)
        words = [output.plain(each) for each in done.splitlines()]
        # names of files, and what git says, need more room than a notice has
        if not self.pane.open(about, words):
            self.pane.open(about, words)
        self.show()

    def _waiting(self) -> RunInfo | None:
        """Return the chosen run, if it waits for approval."""
        run = self._live()
        if run is None or output.waits_for_approval(run):
            return run
        self.say(f"{run.id} does not wait for approval; l changes its limits", bad=True)
        return None

    def action_approve(self) -> None:
        if (run := self._waiting()) is not None:
            self._ask_for_limits(
                f"approve {named(run)} {ROOM}",
                run,
                lambda room: m.Approve(id=0, run=run.id, limits=room),
            )

    async def action_deny(self) -> None:
        if (run := self._waiting()) is not None:
            deny = m.Deny(id=0, run=run.id)
            await self._confirm(
                f"deny {named(run)} more room, and stop it",
                lambda: self.run_worker(self._change(deny)),
            )

    def action_limit(self) -> None:
        if (run := self._live()) is not None:
            change = partial(m.ChangeLimits, id=0, run=run.id)
            self._ask_for_limits(
                f"limits of {named(run)}", run, lambda wanted: change(limits=wanted), needed=True
            )

    # ---- the part below the tree

    def action_close(self) -> None:
        if self.pane.about is not None:
            self.pane.open(self.pane.about)
        elif self.table.filter:
            self.table.filter_by("")

    def action_page(self, pages: int) -> None:
        self.pane.page(pages)

    def action_output(self, title: str) -> None:
        if self.runs.run_id is not None:
            self.pane.open(About(title, self.runs.run_id))

    def action_keys(self) -> None:
        self.pane.open(About("keys"), help_lines())

    def action_why(self) -> None:
        run = self.runs.chosen
        if run is not None and self.pane.open(
            About("why", run.id), explained(run, self.table.limit_share)
        ):
            self._tell_more(
                m.Info(id=0, run=run.id),
                m.RunReply,
                lambda now: explained(now.run, self.table.limit_share),
            )

    def action_alerts(self) -> None:
        if self.pane.open(About("alerts"), ["…"]):
            request = m.Events(id=0, types=["alert_*"], rows=ALERTS)
            self._tell_more(
                request,
                m.EventPage,
                lambda page: alert_lines(
                    self.daemon.alerts if self.daemon is not None else (),
                    page.events,
                    self.table.runs,
                ),
            )

    def _tell_more(
        self, request: m.Request, expected: type[R], words: Callable[[R], list[str]]
    ) -> None:
        """Show what the daemon answers, if the pane is still the same then."""
        about = self.pane.about

        async def work() -> None:
            reply = await self._asked(request, expected)
            if reply is not None and self.pane.about == about:
                self.pane.fill(words(reply))
            self.show()

        self.run_worker(work())


def _as_typed(key: events.Key | events.Paste) -> Sequence[events.Key | events.Paste]:
    """Terminals send Escape and a key that follows at once like Alt and the key."""
    if isinstance(key, events.Paste) or not key.key.startswith("alt+"):
        return [key]
    # the name of Alt and O is alt+shift+o
    letter = key.character if key.character and key.character.isalnum() else None
    return [
        events.Key("escape", None),
        events.Key(letter or key.key.removeprefix("alt+"), key.character),
    ]


def run(socket: str | None, wanted: m.WatchRuns) -> int:
    """Show runs until a person leaves. Return the exit code."""
    app = TopApp(Feed(socket, wanted))
    app.run()
    return app.return_code or 0
