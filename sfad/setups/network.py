"""Proxies and certificates: whether calls through the gateway reach an upstream in the way in which a program would.

The gateway asks upstreams with the proxy of its own environment, and trusts the authorities that this names. It also trusts those
that a person's environment names, because it is a process of this person.
"""

from collections.abc import Mapping

from .setup import Surroundings

_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_SET_IT = "set it in the daemon's environment, and restart the daemon"


def obstacle(surroundings: Surroundings, env: Mapping[str, str]) -> str | None:
    """Return why the gateway cannot make a call as a program with these variables does; `None` if it can."""
    for name in _PROXIES:
        own = _proxy(env, name)
        if own and own != _proxy(surroundings.daemon_env, name):  # it may hold a password
            return f"the gateway would use another proxy than {name.upper()} here names: {_SET_IT}"
    if env.get("NODE_TLS_REJECT_UNAUTHORIZED") == "0":
        return "the gateway checks certificates, and NODE_TLS_REJECT_UNAUTHORIZED is 0 here"
    return None


def certificates(surroundings: Surroundings, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files of certificates that the gateway must trust for calls of a program with these variables."""
    found = (path for variable in _CERTIFICATES if (path := env.get(variable)))
    return tuple(dict.fromkeys(path for path in found if path != surroundings.daemon_env.get("SSL_CERT_FILE")))


def _proxy(env: Mapping[str, str], name: str) -> str:
    if (env.get("no_proxy") or env.get("NO_PROXY") or "").strip() == "*":
        return ""
    return env.get(name) or env.get(name.upper()) or ""
