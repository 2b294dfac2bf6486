"""The Textual application."""

from collections.abc import Callable

from textual.app import App, ComposeResult
from textual.message import Message

from sfad.protocol import messages as m

from .feed import Feed
from .keys import Keys
from .screen import RunScreen


class Posted(Message):
    """Something to do that another thread has sent."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


class TopApp(App[None]):
    ENABLE_COMMAND_PALETTE = False
    TITLE = "sfactl top"

    def __init__(self, socket: str | None, wanted: m.WatchRuns) -> None:
        """Connect to the daemon. Raise `Unreachable`, `DaemonError`."""
        super().__init__(ansi_color=True)
        self._keys = Keys(socket, self._post, self.exit, self.action_suspend_process)
        self._screen_of_runs = RunScreen(self._keys)
        self._feed = Feed(socket, wanted, self._take, self._lose)
        self._keys.take(self._feed.first)

    def compose(self) -> ComposeResult:
        yield self._screen_of_runs

    def on_mount(self) -> None:
        self._feed.start()

    def on_unmount(self) -> None:
        self._keys.close()

    def _post(self, work: Callable[[], None]) -> None:
        self.post_message(Posted(work))

    def _take(self, reply: m.RunList | m.RunsPush | m.DaemonStatus) -> None:
        self._post(lambda: self._keys.take(reply))

    def _lose(self, why: str) -> None:
        self._post(lambda: self._keys.lose(why))

    def on_posted(self, message: Posted) -> None:
        message.work()
        self._screen_of_runs.show()


def run(socket: str | None, wanted: m.WatchRuns) -> int:
    """Show runs until a person leaves. Return the exit code."""
    app = TopApp(socket, wanted)
    app.run()
    return app.return_code or 0
