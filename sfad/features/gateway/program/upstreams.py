"""Where calls go: the providers' APIs, and what is changed in the head of a request on its way
there."""

import os
import re
import ssl
import stat
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, unquote_plus, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import httpx2
from msgspec import Struct

from ....host.tasks import in_thread
from ....protocol.texts.destinations import PORTS, host_of
from .apis import APIS, Api
from .bodies.coding import ENCODINGS
from .egress_rules import literal

_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
"""RFC 9110, section 7.6.1: they are about one connection."""
_OVERRIDES = {b"x-http-method-override", b"x-http-method", b"x-method-override"}
"""To the gateway such a request would be a GET, which costs nothing, and to the provider a call."""
_CREDENTIALS = {b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"}

_IN_QUERY = {"key", "access_token"}
"""Where Google takes credentials too."""

_KEY = re.compile(r"[!-~]+")

RawHeaders = Sequence[tuple[bytes, bytes]]


class Upstream(Struct, frozen=True):
    name: str
    url: str
    """What the provider's base URL variable would hold."""
    api: str
    key_env: str | None = None
    key_file: str | None = None
    through: str | None = None
    """The address of the gateway that has its key, if that is not this one."""
    free: bool | Literal["auto"] = "auto"
    """Whether its calls cost nothing; `auto`: those of local models."""

    @property
    def keyed(self) -> bool:
        """Whether this gateway puts in a key of the operator's."""
        return self.key_file is not None or self.key_env is not None

    @property
    def shown(self) -> str:
        """The URL without the password that a person's environment may have in it."""
        return re.sub(r"//[^/]*@", "//", self.url)

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or self.name

    @property
    def endpoints(self) -> set[tuple[str, int]]:
        """The host, in the spelling of `host_of`, with its port; a name also with the ports that
        mostly are the same service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        with suppress(ValueError):
            host = host_of(host)
        ports = {urlsplit(self.url).port or (443 if self.url.startswith("https") else 80)}
        return {(host, port) for port in (ports if literal(host) is not None else ports | {*PORTS})}

    def api_of(self, path: str) -> Api:
        """Return the format of a request. OpenAI's base URL serves two."""
        if self.api.startswith("openai-"):
            return APIS["openai-chat" if path.endswith("/chat/completions") else "openai-responses"]
        return APIS[self.api]

    def key(self) -> str | None:
        """Return the key of the operator, or `None` where the caller's own is used. Raises
        `OSError` and `LookupError`, whose texts do not hold it."""
        if self.key_file is not None:
            try:
                where, text = self.key_file, Path(self.key_file).read_text(errors="replace")
            except FileNotFoundError:
                raise LookupError(f"{self.key_file} does not exist") from None
        elif self.key_env is not None:
            if self.key_env not in os.environ:
                raise LookupError(
                    f"the daemon's environment has no {self.key_env}: "
                    "set it there, and restart the daemon"
                )
            where, text = f"{self.key_env} in the daemon's environment", os.environ[self.key_env]
        else:
            return None
        if not _KEY.fullmatch(text.strip()):  # h11 would quote it in an error
            raise LookupError(f"{where} holds no key: one word of printable ASCII is expected")
        return text.strip()

    def exposed(self) -> str | None:
        """Return the file of the key if other users may read or write it. Raises `OSError`."""
        return (
            self.key_file
            if self.key_file is not None and Path(self.key_file).stat().st_mode & 0o066
            else None
        )

    def passage(self, rest: str, query: str, token: str | None) -> str:
        """Return the URL of a request at the gateway that has the key. `rest`: as in `target`;
        `token`: names the run."""
        here = f"{self.through}/run/{token}/{quote(self.name, safe='')}"
        return f"{here}{rest}{'?' if query else ''}{query}"

    def target(self, rest: str, query: str, *, keyed: bool) -> str:
        """Return the URL of a request. `rest`: its path after the upstream's name."""
        if not self.url.endswith("/v1"):
            rest = self.api_of(rest).path(rest)
        if keyed:
            query = "&".join(
                pair
                for pair in query.split("&")
                if unquote_plus(pair.partition("=")[0]) not in _IN_QUERY
            )
        return f"{self.url}{rest}{'?' if query else ''}{query}"


class Route(Struct, frozen=True):
    """Where the path of a request leads: `/run/TOKEN/UPSTREAM/REST`, the first two only where runs
    have no cgroup."""

    token: str | None
    upstream: str
    rest: str
    query: str

    @property
    def path(self) -> str:
        """As the provider reads it."""
        return unquote(self.rest)


def route_of(target: str) -> Route | None:
    """Return where a request goes, or `None` if it leads to no upstream."""
    path, _, query = target.partition("?")
    if "#" in target or not {".", ".."}.isdisjoint(unquote(path).split("/")):
        return None  # the provider would see another path than the one that was judged here
    parts = path.split("/", 4)
    if len(parts) == 5 and parts[1] == "run":
        return Route(parts[2], unquote(parts[3]), f"/{parts[4]}", query)
    parts = path.split("/", 2)
    return Route(None, unquote(parts[1]), f"/{parts[2]}", query) if len(parts) == 3 else None


def proxy_of(url: str) -> str | None:
    """Return the proxy for a URL, as a URL; `None` if there is none."""
    scheme, proxies = _proxied(url)
    if scheme is None:
        return None
    proxy = proxies[scheme]
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_variable(url: str) -> str | None:
    """Return which variable of this process's environment names the proxy for a URL; `None` if none
    does."""
    scheme, _ = _proxied(url)
    return None if scheme is None else f"{scheme.upper()}_PROXY"


def _proxied(url: str) -> tuple[str | None, dict[str, str]]:
    """Return the scheme for which the environment names the proxy of a URL, and all its proxies."""
    parts, proxies = urlsplit(url), getproxies_environment()
    if proxy_bypass(parts.hostname or "", proxies):
        return None, proxies
    return next((each for each in (parts.scheme, "all") if each in proxies), None), proxies


def proxy_token(headers: RawHeaders) -> str | None:
    """Return the run's token, which is the user in the URL of its proxy where runs have no
    cgroup."""
    words = next(
        (value for name, value in headers if name.lower() == b"proxy-authorization"), b""
    ).split()
    with suppress(ValueError):
        if len(words) == 2 and words[0].lower() == b"basic":
            return b64decode(words[1]).decode().partition(":")[0]
    return None


def upward(headers: RawHeaders, key: str | None, api: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request to the provider, with the operator's key if there is one."""
    named = _named_in_connection(headers)
    kept = [
        (name, value)
        for name, value in headers
        if name.lower()
        not in _HOP_BY_HOP | _OVERRIDES | named | {b"host", b"content-length", b"expect"}
        and not (key is not None and name.lower() in _CREDENTIALS)
    ]
    kept = [
        (name, _readable(value) if name.lower() == b"accept-encoding" else value)
        for name, value in kept
    ]
    return kept if key is None else [*kept, _credentials(api, key)]


def _readable(accepted: bytes) -> bytes:
    """Return the encodings that a client takes without those that the gateway cannot read: it could
    not charge such a reply."""
    words = accepted.split(b",")
    known = [
        word
        for word in words
        if word.partition(b";")[0].strip().lower().decode("latin-1") in {*ENCODINGS, "identity", ""}
    ]
    return accepted if known == words else b",".join(known).strip() or b"identity"


def downward(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply to the client."""
    left_out = _HOP_BY_HOP | _named_in_connection(headers)
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        left_out |= {b"content-length"}  # it is wrong then (RFC 9112, section 6.3)
    return [(name, value) for name, value in headers if name.lower() not in left_out]


def _named_in_connection(headers: RawHeaders) -> set[bytes]:
    values = b",".join(value for name, value in headers if name.lower() == b"connection")
    return {name.strip().lower() for name in values.split(b",")} - {b""}


def _credentials(api: str, key: str) -> tuple[bytes, bytes]:
    if api == "anthropic":
        return b"x-api-key", key.encode()
    if api == "gemini":
        return b"x-goog-api-key", key.encode()
    return b"authorization", b"Bearer " + key.encode()


# ---- Which authorities the gateway trusts when it connects to an upstream


MOST_FILES = 64
"""Files of certificates that trees may name. A user who names more gets an error of TLS for the
rest."""


class Trust:
    """Those that httpx2 finds in the environment, and those in files that the environments of its
    user's trees name."""

    def __init__(self, trouble: Callable[[str], None]) -> None:
        self.context: ssl.SSLContext = httpx2.create_ssl_context()
        self._trouble = trouble
        self._known: set[str] = set()

    async def add(self, path: str) -> None:
        """Trust the certificates in a file, too. It is read once."""
        if path in self._known or len(self._known) >= MOST_FILES:
            return
        try:
            await in_thread(self._load, path)
        except (OSError, ValueError) as error:  # an error of TLS follows if they were needed
            self._trouble(f"the certificates in {path} cannot be loaded: {error}")
        self._known.add(path)

    def _load(self, path: str) -> None:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ValueError("it is not a regular file")
        self.context.load_verify_locations(path)
