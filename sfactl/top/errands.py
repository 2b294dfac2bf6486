"""Requests to the daemon that a key asks for, each in a thread: the screen does not wait for them."""

import threading
from collections.abc import Callable
from typing import TypeVar

from sfad.protocol import messages as m

from ..connection import connect
from ..exits import Quit

R = TypeVar("R", bound=m.Reply)
Post = Callable[[Callable[[], None]], None]
"""Has a function called in the thread of the screen."""


class Errands:
    def __init__(self, socket: str | None, post: Post) -> None:
        self._socket, self._post = socket, post

    def send(self, request: m.Request, expected: type[R], done: Callable[[R], None], failed: Callable[[str], None]) -> None:
        """Ask the daemon, and call `done` with its reply or `failed` with its message, in the thread of the screen."""

        def work() -> None:
            try:
                with connect(self._socket) as client:
                    reply = client.call(request, expected)
            except (Quit, OSError) as error:
                said = error.message if isinstance(error, Quit) else str(error)
                self._post(lambda: failed(said))
                return
            self._post(lambda: done(reply))

        threading.Thread(target=work, name="errand", daemon=True).start()
