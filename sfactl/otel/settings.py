"""Where spans go, and with which headers. Keys come from the environment or a file, and are in no command line and no message."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from sfad.protocol.requests.daemon import Setting

from ..exits import UsageError

PATH = "/v1/traces"
"""Below the endpoint (OTLP specification, "OTLP/HTTP Request")."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
MAX_HEADERS = 64 * 1024


class Settings(NamedTuple):
    url: str
    headers: dict[str, str]


def settings_of(found: Sequence[Setting], env: Mapping[str, str]) -> Settings:
    """Return what the daemon's config says. Raise `UsageError`."""
    values = {setting.key: setting.value for setting in found}
    endpoint = values.get("otel.endpoint")
    if endpoint is None:
        raise UsageError("otel.endpoint is not set in the daemon's config; set it to the collector's URL, then run 'sfactl reload'")
    source, text = _headers_text(values.get("otel.headers_env"), values.get("otel.headers_file"), env)
    return Settings(f"{endpoint}{PATH}", parse_headers(source, text))


def _headers_text(variable: str | None, file: str | None, env: Mapping[str, str]) -> tuple[str, str]:
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8", errors="replace") as opened:
                return file, opened.read(MAX_HEADERS)
        except OSError as error:
            raise UsageError(f"otel.headers_file: {file} cannot be read: {error.strerror}") from None
    if variable is not None and variable not in env:
        raise UsageError(f"otel.headers_env: the environment has no {variable}: set it for the daemon, and restart that")
    return variable or "", env[variable] if variable is not None else ""


def parse_headers(source: str, text: str) -> dict[str, str]:
    """Return the headers in `NAME=VALUE,NAME=VALUE`, or one on each line. Values may be percent-encoded, as the
    specification of OTLP exporters says. Raise `UsageError`, which shows no value."""
    headers = {}
    for number, part in enumerate(filter(None, map(str.strip, re.split(r"[,\n]", text))), 1):
        name, equals, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not (equals and _HEADER.fullmatch(name) and _VALUE.fullmatch(value)):
            raise UsageError(f"{source}: header {number} is not of the form NAME=VALUE in printable ASCII")
        headers[name.lower()] = value
    return headers
