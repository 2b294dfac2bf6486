"""One request of Prometheus, by HTTP."""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import h11
import trio

from ...gateway.http_server import ClientGoneError, HttpServer
from ...host.exposition import CONTENT_TYPE

_LOCAL = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.IGNORECASE)
"""The hosts by which a loopback address is reached. A page in a browser reaches it by a name of its own (DNS rebinding)."""

Text = Callable[[], Awaitable[str]]
"""Returns the metrics. Raises `OSError`."""


async def answer_scrape(stream: trio.SocketStream, text: Text, *, local: bool) -> None:
    """Answer one request. `local`: it came by TCP, so that its host must be a loopback address."""
    http = HttpServer(stream)
    with suppress(ClientGoneError):
        request = await http.request()
        if request is None:
            return
        status, body = await _reply(request, text, local)
        kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
        await http.answer(status, [(b"content-type", kind.encode()), (b"connection", b"close")], body.encode())


async def _reply(request: h11.Request, text: Text, local: bool) -> tuple[int, str]:
    hosts = [value for name, value in request.headers if name == b"host"]
    if local and not all(_LOCAL.fullmatch(host) for host in hosts):
        return 403, "the host must be localhost, 127.0.0.1 or [::1]\n"
    if request.method not in {b"GET", b"HEAD"}:
        return 405, "only GET is answered here\n"
    if request.target.partition(b"?")[0] != b"/metrics":
        return 404, "the metrics are at /metrics\n"
    try:
        return 200, await text()
    except OSError as error:
        return 503, f"the daemon could not do it: {error}\n"
