"""The one widget: shows the frame, and takes keys and mouse. Textual lays nothing out, and draws only lines that have changed."""

from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from . import frame
from .keys import Keys


class RunScreen(Widget, can_focus=True):
    DEFAULT_CSS = "RunScreen { width: 100%; height: 100%; background: ansi_default; color: ansi_default; }"

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.keys = keys
        self._lines: list[Strip] = []

    def on_mount(self) -> None:
        self.focus()
        self.set_interval(1.0, self.tick)
        self.app.app_resume_signal.subscribe(self, lambda _app: self.on_resize())  # after Ctrl-Z the terminal is empty

    def tick(self) -> None:
        """Show ages and times as they are now."""
        self.keys.pass_time()
        self.show()

    def show(self) -> None:
        """Draw what has changed."""
        width, height = self.size
        if not (width and height):
            return
        before, self._lines = self._lines, frame.draw(self.keys, width, height)
        if len(before) != len(self._lines):
            self.refresh()
            return
        changed = [Region(0, y, width, 1) for y, line in enumerate(self._lines) if line != before[y]]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)

    def on_resize(self) -> None:
        self._lines = []
        self.show()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.keys.press(event.key, event.character)
        self.show()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.keys.paste(event.text)
        self.show()

    def on_click(self, event: events.Click) -> None:
        line = event.y - frame.tree_top()
        if 0 <= line < self.keys.tree_height:
            self.keys.click(line)
            self.show()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._turn(event, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._turn(event, -1)

    def _turn(self, event: events.MouseEvent, lines: int) -> None:
        event.stop()
        self.keys.turn(lines, below=event.y >= frame.tree_top() + self.keys.tree_height)
        self.show()
