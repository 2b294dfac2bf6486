"""The tree of runs on the screen, and the keys that are pressed on it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.strip import Strip
from textual.widgets import DataTable

from sfad.protocol.kinds import KINDS
from sfad.protocol.types import RunId, RunInfo

from .cells import DIM, Layout, line, row_line
from .table import ENDED, NEARING, QUIET, Row, RunTable

SEVERAL = 3
"""Lines that a turn of the mouse wheel moves the cursor."""


def _key(keys: str, action: str, footer: str, words: str = "", shown_as: str = "") -> Binding:
    """Return a binding. It has priority, because Textual runs others later than keys that are typed
    after it. `footer`: its word there; empty: it is only in the help."""
    return Binding(
        keys,
        action,
        footer or words,
        show=bool(footer),
        key_display=shown_as or None,
        tooltip=words,
        priority=True,
    )


class RunTree(DataTable[None], inherit_bindings=False):
    """A `DataTable` of one empty cell a run: it has the cursor and the scrolling. A line is drawn
    here at once, because Textual takes 90 ms for 60 lines of twelve cells, five times a second;
    this takes 4.

    The cursor stays on its run while lines come and go. Until a person moves it, it is where the
    trouble is."""

    DEFAULT_CSS = (
        "RunTree, RunTree:focus { height: 1fr; min-height: 1; scrollbar-size: 0 0; "
        "background: ansi_default; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("s", "app.stop", "stop", "stop it and all below it; asks first"),
        _key("p", "app.pause", "pause"),
        _key("r", "app.resume", "resume", "resume it, with more of the limit that has paused it"),
        _key("c", "app.continue", "", "continue the session of an ended agent"),
        _key("m", "app.land", "", "merge the work of an ended run to where it began"),
        _key("l", "app.limit", "limit", "change limits, as in cost=5 turns=50"),
        _key("o", "app.output('output')", "output", "its output, as it grows"),
        _key("O,upper_o", "app.output('stderr')", "", "its stderr, as it grows", "O"),
        _key("w", "app.why", "why", "why it is as it is, with all limits"),
        _key("n", "app.next", "next", "the next run in trouble"),
        _key("slash", "app.filter", "filter", "show only runs with these words"),
        _key("question_mark,f1", "app.keys", "keys", "all keys", "?"),
        _key("q", "app.quit", "quit", "leave (Ctrl-C too); the runs go on"),
        _key(
            "greater_than_sign",
            "app.sort(1)",
            "sort",
            "sort by trouble, age, cost, …; < the other way",
            "< >",
        ),
        _key("less_than_sign", "app.sort(-1)", "", "sort by the one before", "<"),
        _key(
            "A,upper_a",
            "app.alerts",
            "Alerts",
            "alerts, those that are raised and earlier ones",
            "A",
        ),
        _key("a", "app.approve", "", "approve more room for a run that has asked"),
        _key("d", "app.deny", "", "deny it, and stop the run"),
        _key("left", "fold_or_up", "", "fold the tree, or go to the run above", "←"),
        _key("right", "unfold", "", "unfold the tree", "→"),
        _key("space,enter", "select_cursor", "", "fold or unfold the tree", "Space"),
        _key("z", "fold_all", "", "fold all, unfold all"),
        _key("e", "app.ended", "", "hide or show ended runs"),
        _key("up,k", "cursor_up", "", "the run above", "↑ k"),
        _key("down,j", "cursor_down", "", "the run below", "↓ j"),
        _key("pageup", "page_up", "", "a page up", "PgUp"),
        _key("pagedown", "page_down", "", "a page down", "PgDn"),
        _key("home", "scroll_top", "", "the first run", "Home"),
        _key("end", "scroll_bottom", "", "the last run", "End"),
        _key("left_square_bracket", "app.page(-1)", "", "scroll the lower part up", "["),
        _key("right_square_bracket", "app.page(1)", "", "scroll the lower part down", "]"),
        _key("escape", "app.close", "", "close the lower part, or end the filter", "Esc"),
    ]

    def __init__(self, table: RunTable) -> None:
        super().__init__(show_header=False, cursor_type="row", cell_padding=0)
        self.table = table
        self.run_id: RunId | None = None
        """The chosen run."""
        self.moved = False
        self._lines: Sequence[Row] = ()
        self._placing = False
        self._drawn: dict[int, tuple[tuple[object, ...], Strip]] = {}
        """Lines of the screen, and what they were drawn from."""
        self._now, self._passed = datetime.now(UTC), 0.0
        self.columns_shown = Layout.of(0)

    @property
    def chosen(self) -> RunInfo | None:
        return self.table.runs.get(self.run_id) if self.run_id is not None else None

    # ---- what is drawn

    def on_mount(self) -> None:
        self.add_column("", width=1)

    def on_resize(self) -> None:
        self.move_cursor(row=self.cursor_row)

    def show(self, now: datetime) -> None:
        """Take the lines that the table has now, and draw those that have changed."""
        self.columns_shown = Layout.of(
            self.size.width, users=self.table.of_others, nodes=self.table.of_fleet
        )
        if int(monotonic()) != int(self._passed):
            self._now, self._passed = now, monotonic()
        if self.table.rows is not self._lines:
            self._place(self.table.rows)
        for y in range(self.size.height):
            if self._drawn.get(y, ((), None))[0] != self._about(y):
                self.refresh_line(y + self.scroll_offset.y)

    def _about(self, y: int) -> tuple[object, ...]:
        """Return what a line of the screen is drawn from."""
        at = y + self.scroll_offset.y
        row = self._lines[at] if at < len(self._lines) else None
        return (
            at,
            row or self.table.filter,
            at == self.cursor_row,
            self.columns_shown,
            self._passed,
            self.table.limit_share,
        )

    def render_line(self, y: int) -> Strip:
        about = self._about(y)
        if (drawn := self._drawn.get(y)) is None or drawn[0] != about:
            drawn = self._drawn[y] = about, self._draw(y + self.scroll_offset.y)
        return drawn[1]

    def _draw(self, at: int) -> Strip:
        width = self.size.width
        if at < len(self._lines):
            row, chosen = self._lines[at], at == self.cursor_row
            elapsed = self.table.elapsed_since(row.run, self._passed)
            return row_line(
                row,
                elapsed,
                self.columns_shown,
                width,
                self._now,
                self.table.limit_share,
                chosen=chosen,
            )
        nothing = f"no run has: {self.table.filter}" if self.table.filter else "no run"
        return line([(nothing, DIM)] if not at else [], width)

    def _place(self, lines: Sequence[Row]) -> None:
        """Have as many rows as there are lines, and the cursor on its run."""
        self._lines, at, self._placing = lines, self.cursor_row, True
        if len(lines) < self.row_count - SEVERAL:
            self.clear()  # to remove rows one by one takes a millisecond each
        for row in self.ordered_rows[len(lines) :]:
            self.remove_row(row.key)
        for _ in range(len(lines) - self.row_count):
            self.add_row(None)
        if not self.moved and (worst := max(lines, key=_need, default=None)) is not None:
            self.run_id = worst.run.id
        at = next(
            (each for each, row in enumerate(lines) if row.run.id == self.run_id),
            max(min(at, len(lines) - 1), 0),
        )
        self.run_id = lines[at].run.id if lines else None
        if at != self.cursor_row:
            self.move_cursor(row=at)
        self._placing = False

    # ---- the cursor

    def watch_cursor_coordinate(
        self, old_coordinate: Coordinate, new_coordinate: Coordinate
    ) -> None:
        super().watch_cursor_coordinate(old_coordinate, new_coordinate)
        if not self._placing and old_coordinate.row != new_coordinate.row:
            self.moved, self.run_id = True, self._lines[new_coordinate.row].run.id

    def choose(self, run: RunId) -> None:
        """Move the cursor to this run, which the table shows."""
        self.moved, self.run_id = True, run
        self._place(self.table.rows)

    def next_in_trouble(self) -> RunId | None:
        """Return the next run below the chosen one that needs a person, also a folded one, from the
        top again after the last. If no run needs one: the next that ended badly."""
        unfolded = self.table.unfolded
        start = next((at + 1 for at, row in enumerate(unfolded) if row.run.id == self.run_id), 0)
        after = [*unfolded[start:], *unfolded[:start]]
        least = NEARING if any(row.rank >= NEARING for row in after) else ENDED
        return next((row.run.id for row in after if row.rank >= least), None)

    def on_click(self, event: events.Click) -> None:
        """Choose a line; a second click folds it."""
        event.prevent_default()
        at = event.y + self.scroll_offset.y
        if at >= len(self._lines):
            return
        if self.moved and at == self.cursor_row:
            self.action_select_cursor()
        self.moved = True
        self.move_cursor(row=at)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.prevent_default()
        self.move_cursor(row=self.cursor_row + SEVERAL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.prevent_default()
        self.move_cursor(row=self.cursor_row - SEVERAL)

    # ---- folding

    def action_fold_or_up(self) -> None:
        run = self.chosen
        if run is None:
            return
        if self.table.has_below(run.id) and not self.table.is_folded(run.id):
            self.table.fold(run.id, folded=True)
        elif run.parent_id is not None and any(row.run.id == run.parent_id for row in self._lines):
            self.choose(run.parent_id)

    def action_unfold(self) -> None:
        if self.run_id is not None:
            self.table.fold(self.run_id, folded=False)

    def toggle(self) -> None:
        if self.run_id is not None:
            self.table.fold(self.run_id, folded=not self.table.is_folded(self.run_id))

    def action_fold_all(self) -> None:
        self.table.fold_all(folded=all(not row.hidden for row in self._lines))


def shown_key(binding: Binding) -> str:
    return binding.key_display or {"slash": "/"}.get(binding.key, binding.key)


def keys() -> list[Binding]:
    """Return all keys of the tree."""
    return [each for each in RunTree.BINDINGS if isinstance(each, Binding)]


def help_lines() -> list[str]:
    """Return a line for each key, and what the letters of limits mean."""
    letters = ", ".join(f"{spec.letter} {kind.replace('_', ' ')}" for kind, spec in KINDS.items())
    return [
        *(f"{shown_key(each):6} {each.tooltip or each.description}" for each in keys()),
        "Ctrl-Z suspend",
        "Ctrl-P search among the keys",
        f"Limits: {letters}; yellow from alerts.limit_share on, red when exceeded",
    ]


def _need(row: Row) -> tuple[int, bool]:
    return row.rank if row.rank > ENDED else QUIET, not row.run.status.terminal
