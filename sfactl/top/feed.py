"""A thread that receives runs from the daemon, and comes back when the daemon does."""

import select
import threading
import time
from collections.abc import Callable

from sfad.protocol import messages as m

from ..connection import Client, DaemonError, Unreachable, connect
from ..exits import Quit

STATUS_AGAIN = 5.0
"""Seconds between two looks at the alerts and the cost of the last hour, which passes without a change of any run."""
AGAIN = 0.5
"""Seconds between attempts to reach a daemon that is away."""

Take = Callable[[m.RunList | m.RunsPush | m.DaemonStatus], None]
"""Takes runs, or what the daemon tells of itself."""
Away = Callable[[str], None]
"""Takes why the daemon cannot be asked."""


class Feed:
    """`take` and `away` are called in the thread."""

    def __init__(self, socket: str | None, wanted: m.WatchRuns, take: Take, away: Away) -> None:
        """Connect, and receive the first runs. Raise `Unreachable`, `DaemonError`."""
        self._socket, self._wanted, self._take, self._away = socket, wanted, take, away
        self._client: Client | None = connect(socket)
        self.first = self._client.call(wanted, m.RunList)
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                if self._client is None:
                    self._client = connect(self._socket)
                    self._client.send(self._wanted)
                self._follow(self._client)
            except Quit as error:
                self._away(_said(error))
            if self._client is not None:
                self._client.close()
                self._client = None
            time.sleep(AGAIN)

    def _follow(self, client: Client) -> None:
        """Pass on what comes until the connection ends. Raise `Unreachable`, `DaemonError`."""
        aside = {client.send(m.Events(id=0, types=["alert_*"], rows=1, follow=True))}
        due = 0.0
        while True:
            if time.monotonic() >= due:
                aside.add(client.send(m.DaemonInfo(id=0)))
                due = time.monotonic() + STATUS_AGAIN
            if not select.select([client], [], [], max(due - time.monotonic(), 0.0))[0]:
                continue
            for answer in client.arrived():
                reply = answer.reply
                if isinstance(reply, m.EventPush):
                    due = 0.0
                elif isinstance(reply, m.RunList | m.RunsPush | m.DaemonStatus):
                    self._take(reply)
                elif isinstance(reply, m.Error) and reply.id not in aside:  # a run may see runs, but no alerts
                    raise DaemonError(reply.code, reply.message)
                if isinstance(reply, m.DaemonStatus | m.Error):
                    aside.discard(reply.id)


def _said(error: Quit) -> str:
    if isinstance(error, Unreachable):
        return "the daemon is away" if error.kind in ("missing", "refused", "gone") else error.message
    return error.message
