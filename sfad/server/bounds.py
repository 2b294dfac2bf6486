"""The bounds of everything that clients make the daemon hold, each shared out (see `shares`)."""

from __future__ import annotations

from ..host.descriptors import Descriptors, Need
from .connection import Connection
from .shares import Holder, Shares

MAX_CONNECTIONS = 2048
"""Each costs about 2 KiB and a descriptor; 64 trees of 64 runs with a client in each are far below. Where the process may open
few descriptors, half of these. Descriptors that wait for a request or for a client count like connections."""

LEAST_CONNECTIONS = 8
"""The smallest share of a run, however few descriptors there are."""

MAX_PARTIAL = 64 * 1024 * 1024
"""Bytes of requests that are not complete or wait for their turn, all connections together."""

MAX_UNREAD = 32 * 1024 * 1024
"""Bytes of replies and events that clients have not read, all connections together."""

MAX_REQUESTS = 16384
"""Requests that are not answered, of all connections together: of waits, stops, and of connections that have ended since. Each
costs 1 or 2 KiB."""

MAX_WATCHES = 2048
"""Watches of all connections together. Each event of a run is sent to each that watches it or an ancestor."""


class ClientBounds:
    """Counts what each connection makes the daemon hold."""

    def __init__(self, descriptors: Descriptors) -> None:
        """`descriptors`: those of this process."""
        most = min(MAX_CONNECTIONS, descriptors.limit // 2)
        self._process = descriptors
        self._descriptors = Shares("connections and descriptors", most, least=LEAST_CONNECTIONS)
        self.input = Shares("bytes of unfinished requests", MAX_PARTIAL)
        self.output = Shares("bytes of unread replies and events", MAX_UNREAD)
        self.requests = Shares("open requests", MAX_REQUESTS)
        self.watches = Shares("open watches", MAX_WATCHES)

    def count(self, connection: Connection) -> None:
        """Bring the shares up to date with what the connection holds."""
        for shares, more in zip((self._descriptors, self.input, self.output), connection.count(), strict=True):
            if more:
                shares.add(connection.holder, more)

    def refusal(self, holder: Holder, *, uncounted: int = 0, unopened: int = 0) -> str | None:
        """Say why the holder may not have the descriptors that are counted for it and `uncounted` more, or return `None`. Of these,
        `unopened` have yet to be opened."""
        need = Need.OWNER if holder.owner else Need.CLIENT
        return self._descriptors.refusal(holder, uncounted) or self._process.refusal(need, unopened)
