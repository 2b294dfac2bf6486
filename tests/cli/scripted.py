"""A daemon that answers as a test tells it to, for clients that must be seen to cope with any."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REQUEST, FrameDecoder

Answer = Callable[[m.AnyRequest], m.Reply | None]
"""What is said to a request; `None` closes the connection instead."""


class Scripted:
    """Listens at `path` from the start to `stop`, in threads. `asked` is every request but the handshakes."""

    def __init__(self, path: Path, answer: Answer, *, run: str | None = "a1") -> None:
        self.path = path
        self.answer = answer
        self.asked: list[m.AnyRequest] = []
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
        while data := connection.recv(65536):
            for body in decoder.feed(data):
                reply = self._reply(m.unpack_request(body))
                if reply is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                with suppress(BrokenPipeError):  # who asked did not wait
                    connection.sendall(m.pack_message(reply))

    def _reply(self, request: m.AnyRequest) -> m.Reply | None:
        if isinstance(request, m.Hello):
            self.greeted += 1
            return m.Welcome(id=request.id, version=1, daemon="0", pid=1, state_dir="/", run=self._run)
        self.asked.append(request)
        return self.answer(request)
