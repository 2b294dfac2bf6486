"""The part below the tree: the output of a run as it grows, or words about a run, alerts and
keys."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Log

from sfad.protocol.types import AlertState, Event, RunId, RunInfo

from .. import output
from ..options import limits
from .cells import DIM, HEAD, KEY, line
from .daemon import Feed, Tail
from .table import reason

MOST_LINES = 5000


class Lines(Widget):
    """Shows lines that are drawn already."""

    DEFAULT_CSS = "Lines { height: 1; background: ansi_default; }"
    _lines: Sequence[Strip] = ()

    def show(self, *lines: Strip) -> None:
        if lines != self._lines:
            self._lines = lines
            self.refresh()

    def render_line(self, y: int) -> Strip:
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)


class About(NamedTuple):
    """What the pane shows."""

    title: str
    run: RunId | None = None


class Pane(Vertical):
    DEFAULT_CSS = """
    Pane { height: 50%; display: none; }
    Pane Log { height: 1fr; scrollbar-size: 0 0; background: ansi_default; color: ansi_default; }
    """

    def __init__(self, source: Feed | None) -> None:
        super().__init__()
        self.about: About | None = None
        self._source = source
        self._rule, self._log = Lines(), Log()
        self._log.can_focus = False
        self.words: Sequence[str] = ()
        """What is shown, if it is not output."""
        self._tail: Tail | None = None

    def compose(self) -> ComposeResult:
        yield from (self._rule, self._log)

    def open(self, about: About, words: Sequence[str] = ()) -> bool:
        """Show this; close the pane if it is shown already. Return whether the pane is open."""
        self.about = about if about != self.about else None
        self.display = self.about is not None
        self._log.clear()
        self.fill(words)
        return self.display

    def fill(self, words: Sequence[str] | None = None) -> None:
        """Show these words, or the same as wide as the terminal is now. Output is read again."""
        self.stop()
        at, self.words = self._log.scroll_y, self.words if words is None else words
        self._log.clear()
        if self.about is not None and self.about.title in ("output", "stderr"):
            assert self.about.run is not None
            assert self._source is not None
            show = partial(self.call_later, self._add)
            self._tail = self._source.tail(
                self.about.run, show, stderr=self.about.title == "stderr"
            )
        else:
            self._log.write("\n".join(_in_words(self.words, self.app.size.width)), scroll_end=False)
            self._log.scroll_to(y=at, animate=False)

    def _add(self, tail: Tail, text: str) -> None:
        """Add output, and follow its end until a person has scrolled up. A line that is too long
        goes on in the next."""
        if tail is not self._tail:
            return
        lines, width = self._log.lines, self.app.size.width
        column, parts = cell_len(lines[-1]) if lines else 0, list[str]()
        for part in text.splitlines(keepends=True):
            while cell_len(part.rstrip("\n")) > width - column:
                head = set_cell_size(part, width - column)
                # a wide character that does not fit whole is replaced by a space
                cut = len(head) if part.startswith(head) else len(head) - 1
                parts.append(part[:cut] + "\n")
                part, column = part[cut:], 0
            parts.append(part)
            column = 0
        follows, at = self._log.is_vertical_scroll_end, self._log.scroll_y
        self._log.write("".join(parts), scroll_end=follows)
        # Log(max_lines=…) of Textual 8.2 scrolls to lines that it has removed
        if (surplus := len(lines) - MOST_LINES) > 0:
            kept = "\n".join(lines[surplus + MOST_LINES // 2 :])
            self._log.clear().write(kept, scroll_end=follows)
            if not follows:
                self._log.scroll_to(y=at - surplus - MOST_LINES // 2, animate=False)

    def stop(self) -> None:
        """Follow output no more."""
        if self._tail is not None:
            self._tail.stop()
            self._tail = None

    def page(self, pages: int) -> None:
        (self._log.scroll_page_up if pages < 0 else self._log.scroll_page_down)(animate=False)

    def show_title(self, runs: Mapping[RunId, RunInfo]) -> None:
        if self.about is None:
            return
        width, run = (
            self.app.size.width,
            runs.get(self.about.run) if self.about.run is not None else None,
        )
        title = (
            f" {self.about.title} of {run.id} {output.plain(run.name)} "
            if run is not None
            else f" {self.about.title} "
        )
        hint = " [ ] scroll " if self._log.line_count > self._log.size.height else ""
        rule = "─" * max(width - 2 - cell_len(title) - len(hint), 0)
        self._rule.show(line([("──", DIM), (title, HEAD), (rule, DIM), (hint, KEY)], width))


def _in_words(lines: Iterable[str], width: int) -> Iterable[str]:
    for each in lines:
        wide = cell_len(each) >= width
        yield from (
            wrap(each, max(width - 1, 4), subsequent_indent="  ", break_on_hyphens=False)
            if wide
            else [each]
        )


def named(run: RunInfo) -> str:
    return f"{run.id} ({output.plain(run.name)})"


def explained(run: RunInfo, limit_share: float) -> list[str]:
    """Return why a run is as it is, with all limits and what is used."""
    keys = ["a approves, d denies"] if output.waits_for_approval(run) else []
    more = [f"milestone: {output.plain(run.milestone)}"] if run.milestone else []
    use = [f"used: {told}" for told in limits.by_source(run)] + (
        [f"total: {told}"] if (told := limits.totals(run)) else []
    )
    return [
        f"{named(run)}: {reason(run, limit_share)}",
        *keys,
        *more,
        *use,
        *(f"limit {limits.describe(state)}" for state in run.limits),
        f"command: {output.command(run)}",
        f"in: {output.plain(run.cwd)}",
    ]


def alert_lines(
    raised: Sequence[AlertState], events: Sequence[Event], runs: Mapping[RunId, RunInfo]
) -> list[str]:
    """Return the alerts that are raised, then earlier ones, the newest first."""

    def whose(alert: AlertState | Event) -> str:
        run = runs.get(alert.run_id) if alert.run_id is not None else None
        return (
            f"{named(run) if run is not None else alert.run_id or ''} {output.plain(alert.message)}"
        ).lstrip()

    def about(alert: AlertState | Event) -> tuple[object, ...]:
        return alert.type, alert.scope, alert.run_id, alert.message

    lines = [f"raised since {output.clock(each.since)}: {whose(each)}" for each in raised]
    told, earlier = set(map(about, raised)), list[str]()
    for each in reversed(events):
        if about(each) in told:  # this event raised what is raised now
            told.remove(about(each))
        else:
            earlier.append(f"{output.clock(each.time or None)}  {each.type}  {whose(each)}")
    return [*(lines or ["no alert is raised"]), *([""] if earlier else []), *earlier]
