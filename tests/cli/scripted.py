"""A daemon that answers as a test tells it to, for clients that must be seen to cope with any."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REQUEST, FrameDecoder

Answer = Callable[[m.Request], m.Reply | Sequence[m.Reply] | None]
"""What is said to a request, which may be nothing yet (`()`); `None` closes the connection instead."""

Q = TypeVar("Q", bound=m.Request)

PATIENCE = 60.0


class Scripted:
    """Listens at `path` from the start to `stop`, in threads. `asked` is every request but the handshakes, `came` the inodes of
    the descriptors that came along, `files` what goes with a `LogFiles`."""

    def __init__(self, path: Path, answer: Answer, *, run: str | None = "a1") -> None:
        self.path = path
        self.answer = answer
        self.asked: list[m.Request] = []
        self.came: list[list[int]] = []
        self.files: list[int] = []
        self.greeted = 0
        self._run = run
        self._open: list[tuple[socket.socket, threading.Thread]] = []
        self.start()

    def start(self) -> None:
        """Begins to listen, again if it has stopped."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,))
        self._accepting.start()

    def stop(self) -> None:
        """Closes the listener and every connection, as a daemon does that ends."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.path.unlink()
        for connection, thread in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()
            connection.close()
        self._open.clear()

    def restart(self) -> None:
        """What a client sees of a daemon's restart."""
        self.stop()
        self.start()

    def all(self, kind: type[Q]) -> list[Q]:
        """Every request of that kind."""
        return [request for request in list(self.asked) if isinstance(request, kind)]

    def until(self, kind: type[Q], count: int = 1) -> Q:
        """Waits until there were so many of a kind. Returns the last of them."""
        end = time.monotonic() + PATIENCE
        while len(found := self.all(kind)) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} {kind.__name__}; {self.asked}"
            time.sleep(0.005)
        return found[count - 1]

    def say(self, *replies: m.Reply) -> None:
        """Says something on the newest connection."""
        self._send(self._open[-1][0], replies)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._open.append((connection, thread))
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder(MAX_REQUEST)
        while data := self._receive(connection):
            for body in decoder.feed(data):
                replies = self._reply(m.unpack_request(body))
                if replies is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                with suppress(BrokenPipeError, ConnectionResetError):  # who asked did not wait
                    self._send(connection, [replies] if isinstance(replies, m.Reply) else replies)

    def _receive(self, connection: socket.socket) -> bytes:
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, 65536, m.MAX_DESCRIPTORS)
        except ConnectionResetError:
            return b""
        if descriptors:
            self.came.append([os.fstat(descriptor).st_ino for descriptor in descriptors])
        for descriptor in descriptors:
            os.close(descriptor)
        return data

    def _send(self, connection: socket.socket, replies: Sequence[m.Reply]) -> None:
        for reply in replies:
            files = self.files if isinstance(reply, m.LogFiles) else []
            socket.send_fds(connection, [m.pack_message(reply)], files)

    def _reply(self, request: m.Request) -> m.Reply | Sequence[m.Reply] | None:
        if isinstance(request, m.Hello):
            self.greeted += 1
            return m.Welcome(id=request.id, version=1, daemon="0", pid=1, state_dir="/", run=self._run)
        self.asked.append(request)
        return self.answer(request)
