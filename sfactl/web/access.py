"""Who may ask: a browser that has opened a one-time link, from a page of this console.

The link's token is exchanged for a cookie, once. Host is checked, because a page of another site
could reach this server by a name that it resolves to 127.0.0.1; Origin, and a token that only our
pages know, because it could send a request with the cookie.
"""

import hmac
from html import escape
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .logins import LINK_SECONDS, Login, Logins

LOGIN = "/login"
OPEN_PATHS = ("/static/", "/sw.js")
"""What anybody who can connect may read: the program's own files. A browser reads the manifest and
icons without the cookie."""
TOKEN_HEADER = "x-csrf-token"  # noqa: S105
MAX_AGE = 400 * 86400
"""Seconds that a browser keeps the cookie: the most that browsers allow. `logins` decides for how
long it is good."""
MOST_BODY = 256 * 1024
"""Bytes of a request's body."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; worker-src 'self'; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'self'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def login_link(origin: str, token: str) -> str:
    """Return the address that logs a browser in."""
    return f"{origin}{LOGIN}?token={token}"


class Gate:
    """ASGI middleware in front of all pages."""

    def __init__(self, origins: list[str], logins: Logins) -> None:
        """`origins`: the addresses in a browser, as `http://127.0.0.1:8477`, with one scheme and
        port; the first one is the usual."""
        self.origins = origins
        parts = urlsplit(origins[0])
        self._secure = parts.scheme == "https"
        self._by_host = {urlsplit(each).netloc: each for each in origins}
        # a browser sends a cookie to all ports of a host, so two consoles need two names
        self._name = f"{'__Host-' if self._secure else ''}sfad_console_{parts.port or 443}"
        self._logins = logins
        self._app: ASGIApp | None = None

    def link(self, request: Request, seconds: float = LINK_SECONDS) -> str:
        """Return an address that logs a browser in, once, at the host that a request has asked."""
        origin = self._by_host[request.headers["host"]]
        return login_link(origin, self._logins.link(seconds))

    def guard(self, app: ASGIApp) -> ASGIApp:
        """Return `app` behind this gate."""
        self._app = app
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None
        if scope["type"] != "http":
            return  # no lifespan, and no WebSocket

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                told = {key for key, _ in message["headers"]}
                more = [
                    (key.encode(), value.encode())
                    for key, value in HEADERS.items()
                    if key.encode() not in told
                ]
                if b"cache-control" not in told:
                    more.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        answer = self._answer(Request(scope))
        if answer is not None:
            await answer(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that may not pass, or logs in; `None` for the others."""
        headers = request.headers
        origin = self._by_host.get(headers.get("host", ""))
        if origin is None:
            return _refused(f"the console has another address: {self.origins[0]}")
        foreign = headers.get("origin") not in (None, origin) or headers.get("sec-fetch-site") in (
            "same-site",
            "cross-site",
        )
        if foreign and not _is_visit(request):
            return _refused("only pages of this console may ask")
        path = request.url.path
        if path.startswith(OPEN_PATHS):
            return None
        if path == LOGIN:
            return self._log_in(request)
        login = self._login(request)
        if login is None:
            if _is_visit(request) and headers.get("sec-fetch-site") == "cross-site":
                # the cookie is SameSite=Strict: a link in a message arrives without it, a page of
                # ours may then ask again
                return HTMLResponse(_AGAIN.format(escape(_path(request), quote=True)))
            return HTMLResponse(_LOGGED_OUT, 403)
        if request.method not in ("GET", "HEAD") and not _equal(
            headers.get(TOKEN_HEADER, ""), login.token
        ):
            return _refused(
                "the request has no token, or that of an earlier login: load the page again"
            )
        if int(headers.get("content-length") or 0) > MOST_BODY:
            return PlainTextResponse(f"the body is longer than {MOST_BODY} bytes", 413)
        request.scope["state"] = {"login": login}
        return None

    def _login(self, request: Request) -> Login | None:
        return self._logins.login(request.cookies.get(self._name, ""))

    def _log_in(self, request: Request) -> Response:
        [token, *_] = parse_qs(request.url.query).get("token", [""])
        login = self._logins.use(token)
        if login is None:
            return (
                HTMLResponse(_LOGGED_OUT, 403)
                if self._login(request) is None
                else RedirectResponse("/", 303)
            )
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self._name,
            login.cookie,
            path="/",
            httponly=True,
            samesite="strict",
            secure=self._secure,
            max_age=MAX_AGE,
        )
        return response

    def log_out(self, login: Login) -> None:
        self._logins.log_out(login)

    def log_all_out(self) -> None:
        self._logins.forget_all()


def _is_visit(request: Request) -> bool:
    """Whether a person follows a link from elsewhere, which only shows a page."""
    return (
        request.method == "GET"
        and request.headers.get("sec-fetch-mode") == "navigate"
        and "origin" not in request.headers
    )


def _path(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _refused(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 403)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta '
    'name="viewport" content="width=device-width"><link rel="stylesheet" '
    'href="/static/style.css"><title>sfad</title>{}</html>'
)
_AGAIN = _PAGE.format(
    '<meta http-equiv="refresh" content="0; url={0}"><main><a href="{0}">Continue</a></main>'
)
_LOGGED_OUT = _PAGE.format(
    "<main class=plain><h1>Log in</h1><p>Open the link that <code>sfactl web</code> has printed. "
    "It works once, in one browser. For another one, type <code>sfactl web --link</code>, or use "
    "<b>Link for another device</b> in the menu of a browser that is logged in.</p></main>"
)
