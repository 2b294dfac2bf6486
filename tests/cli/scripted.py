"""A daemon that answers as a test tells it to."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REQUEST, FrameDecoder
from tests.harness import wait_until

Answer = Callable[[m.Request], m.Reply | Sequence[m.Reply] | None]
"""Returns the replies to a request, perhaps none yet (`()`); `None` closes the connection
instead."""

Q = TypeVar("Q", bound=m.Request)

PATIENCE = 60.0


class Scripted:
    """Listen at `path` until `stop`, in threads. `asked` has each request except handshakes, `came`
    the inodes of the descriptors that came with them, and `files` the descriptors that go with a
    `LogFiles`."""

    def __init__(self, path: Path, answer: Answer, *, run: str | None = "a1") -> None:
        self.path = path
        self.answer = answer
        self.asked: list[m.Request] = []
        self.came: list[list[int]] = []
        self.files: list[int] = []
        self.greeted = 0
        self._run = run
        self._changed = threading.Condition()
        self._answering = 0
        self._open: list[tuple[socket.socket, threading.Thread]] = []
        self.start()

    def start(self) -> None:
        """Listen, again after `stop`."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,))
        self._accepting.start()

    def stop(self) -> None:
        """Close the listener and every connection, as a daemon does that ends."""
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
        """Stop and start: what a client sees of a daemon's restart."""
        self.stop()
        self.start()

    def all(self, kind: type[Q]) -> list[Q]:
        """Return each request of that kind."""
        return [request for request in list(self.asked) if isinstance(request, kind)]

    def until(self, kind: type[Q], count: int = 1) -> Q:
        """Wait until `count` requests of a kind have come. Return the last of them."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.all(kind)) >= count, PATIENCE)
        assert enough, f"not {count} {kind.__name__}; {self.asked}"
        return self.all(kind)[count - 1]

    def until_read(self) -> None:
        """Wait until each reply is sent, and the client has read those on the newest connection."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._answering, PATIENCE)
        left = array.array("i", [1])
        wait_until(
            lambda: not fcntl.ioctl(self._open[-1][0], termios.TIOCOUTQ, left) and not left[0],
            "replies are read",
        )

    def say(self, *replies: m.Reply) -> None:
        """Send replies on the newest connection."""
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
                with self._busy():
                    replies = self._reply(m.unpack_request(body))
                    if replies is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    with suppress(BrokenPipeError, ConnectionResetError):  # the client did not wait
                        self._send(
                            connection, [replies] if isinstance(replies, m.Reply) else replies
                        )

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

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
            return m.Welcome(
                id=request.id, version=1, daemon="0", pid=1, state_dir="/", run=self._run
            )
        with self._changed:
            self.asked.append(request)
            self._changed.notify_all()
        return self.answer(request)
