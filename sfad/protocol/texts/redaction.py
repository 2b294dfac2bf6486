"""Replaces what looks like a secret by `***`, in texts that leave the daemon's memory: log,
exporters.

This is a net, not a wall: it knows the names that people give to secrets and the prefixes by which
services mark their keys, but no secret without either. A library was rejected: detect-secrets pulls
in requests and PyYAML, and reads files, not lines.

Sources of the prefixes: the rules of gitleaks (https://github.com/gitleaks/gitleaks,
config/gitleaks.toml), and the services' own pages about their tokens. RFC 7519 for JWT, RFC 7468
for PEM, RFC 3986 section 3.2.1 for URLs.
"""

import re
from collections.abc import Iterator
from typing import Any

HIDDEN = "***"

_NAME = (
    r"(?:pass(?:word|wd|phrase|code)|pwd|secret|token|credentials?|bearer|auth|authorization"
    r"|(?:api|app|access|account|auth|client|encryption|license|master|private|secret|service|session|shared|signing|storage)[_.-]?key"
    r"|[_.-]key|(?<=[?&])key|(?:set-)?cookie|x-goog-api-key|connection[_-]?string)"
)
"""The end of a secret's name: no part of it may be repeated, because a search must stay linear."""

_SCHEME = r"(?i:(?:bearer|basic|digest|token|negotiate)[ \t]++)?+"
_QUOTED = r'\\++"([^"\\]*+)|"((?:[^"\\]|\\.)*+)|' r"'((?:[^'\\]|\\.)*+)"
_BARE = r"[^\s\"'\\,;&<>(){}\[\]]"
_PREFIXES = (
    r"sk-[\w-]{12}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"[rs]k_(?:live|test)_\w{10}",  # Stripe
    r"gh[oprsu]_\w{16}|github_pat_\w{16}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[\w-]{12}",  # GitLab
    r"xox[a-z]-[\w-]{8}|xapp-[\w-]{8}",  # Slack
    r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{12}",  # AWS
    r"AIza[\w-]{20}|ya29\.[\w-]{10}|GOCSPX-[\w-]{10}",  # Google
    r"hf_[A-Za-z0-9]{16}|gsk_\w{16}|xai-\w{16}|pplx-\w{16}|r8_\w{16}|tvly-[\w-]{12}|fw_\w{16}|nvapi-[\w-]{16}",
    r"npm_\w{16}|pypi-[\w-]{16}|dckr_pat_[\w-]{12}|dop_v1_\w{16}|shp(?:at|ca|pa|ss)_\w{16}|lin_api_\w{16}|ATATT3\w{16}",
    r"SG\.[\w-]{10}|key-[0-9a-f]{32}|SK[0-9a-f]{32}|glsa_\w{16}|hvs\.[\w-]{16}|doppler_\w{8}",
    r"eyJ[\w-]{6,}+\.(?:eyJ)?[\w-]{4}",  # JWT, JWE
)

# each alternative has one group that takes part: the secret
_SECRET = re.compile(
    "|".join(
        (
            # no possessive group: before 3.11.5, Python keeps what its last, failed repetition has
            # taken (gh-106052)
            r"-----BEGIN[A-Z0-9 ]{0,40}PRIVATE[A-Z ]{0,10}-----((?s:.*?))(?=-----|\Z)",
            # the whole of what follows a prefix, so that nothing within it can be the beginning of
            # another
            rf"(?<![A-Za-z0-9])((?:{'|'.join(_PREFIXES)})[\w.~+/=-]*+)",
            # [\w.~%+-] and not all that RFC 3986 lets a user's name have: `://` would then be
            # searched again from each `:`
            r"://[\w.~%+-]{0,256}+:([^\s/@\"'<>]{1,1024}+)@",
            r"(?<![\w-])(?:-u|--user|--proxy-user)[ =][^\s:\"']{1,256}+:([^\s\"']++)",
            (
                rf"(?<![\w-])--?(?:[a-z0-9]{{1,24}}+-)*+(?i:{_NAME}|key)[ "
                rf"\t]++(?!-)(?:{_QUOTED}|({_BARE}++))"
            ),
            (
                rf"(?i:{_NAME})[\w]{{0,2}}\\{{0,4}}[\"']?[ \t]*+(?:=|:=|=>)[ "
                rf"\t]*+{_SCHEME}(?:{_QUOTED}|({_BARE}++))"
            ),
            rf"(?i:{_NAME})\\{{0,4}}[\"']?[ \t]*+:[ \t]*+{_SCHEME}(?:{_QUOTED}|({_BARE}{{6,}}+))",
            r"(?i:bearer|basic)[ \t]++([\w.~+/=-]{8,}+)",
        )
    )
)

_KEY = re.compile(rf"(?i:{_NAME}|key)\Z")
_OPTION = re.compile(rf"--?(?:[a-z0-9]{{1,24}}+-)*+(?i:{_NAME}|key)\Z")

PASSES = 4
DEPTH = 32
"""Levels of a nested object that are looked at; what is deeper is hidden whole."""


def redacted(text: str) -> str:
    """Return `text` with `***` in place of what looks like a secret: values of names such as
    `API_KEY=`, `--token` and `Authorization:`, passwords in URLs, keys with a known prefix, private
    keys.

    Never longer than `text`, takes linear time, and `redacted(redacted(x)) == redacted(x)`."""
    for _ in range(PASSES):
        found = _SECRET.sub(_hide, text)
        if found == text:
            return text
        text = found
    return HIDDEN  # only a text made for it still has something to find


def secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yield where in `text` what looks like a secret begins and ends."""
    for found in _SECRET.finditer(text):
        assert found.lastindex is not None
        yield found.span(found.lastindex)


def redacted_end(text: str, most: int) -> str:
    """Return about the last `most` characters of `text`, redacted with what comes before them: a
    secret that begins there cannot be found without."""
    before = max(len(text) - most, 0)
    return redacted(text)[len(redacted(text[:before])) :]


def redacted_object(value: Any, depth: int = DEPTH) -> Any:
    """Return a copy of what JSON can hold, its texts redacted; all of a text whose key, or the
    option before it in a list, names a secret."""
    if isinstance(value, str):
        return redacted(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth == 0:
        return HIDDEN
    if isinstance(value, dict):
        return {key: _of_key(key, item, depth - 1) for key, item in value.items()}
    options = [
        False,
        *(isinstance(item, str) and _OPTION.match(item) is not None for item in value),
    ]
    return [
        _short(item)
        if secret and isinstance(item, str) and not item.startswith("-")
        else redacted_object(item, depth - 1)
        for secret, item in zip(options, value, strict=False)
    ]


def _of_key(key: Any, item: Any, depth: int) -> Any:
    if isinstance(item, str) and isinstance(key, str) and _KEY.search(key[-64:]):
        return _short(item)
    return redacted_object(item, depth)


def _short(secret: str) -> str:
    return HIDDEN[: len(secret)]


def _hide(found: re.Match[str]) -> str:
    secret = found.lastindex
    assert secret is not None
    start, end = (at - found.start() for at in found.span(secret))
    return found[0][:start] + _short(found[secret]) + found[0][end:]
