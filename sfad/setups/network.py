"""Proxies and certificates: whether calls through the gateway reach an upstream in the way in which a program would.

The gateway asks upstreams with the proxy of its own environment, and trusts the authorities that this names. It also trusts those
that a person's environment names, if it is a process of this person: for others, a file could stand for any authority.
"""

from collections.abc import Iterator, Mapping

from .setup import Surroundings

_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_OF_THE_SYSTEM = {
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
}
"""What all users trust."""
_SET_IT = "set it in the daemon's environment, and restart the daemon"


def obstacle(surroundings: Surroundings, env: Mapping[str, str]) -> str | None:
    """Return why the gateway cannot make a call as a program with these variables does; `None` if it can."""
    for name in _PROXIES:
        own = _proxy(env, name)
        if own and own != _proxy(surroundings.daemon_env, name):  # it may hold a password
            return f"the gateway would use another proxy than {name.upper()} here names: {_SET_IT}"
    if env.get("NODE_TLS_REJECT_UNAUTHORIZED") == "0":
        return "the gateway checks certificates, and NODE_TLS_REJECT_UNAUTHORIZED is 0 here"
    if surroundings.own_daemon:
        return None
    for variable, path in _named(env):
        if path != surroundings.daemon_env.get("SSL_CERT_FILE") and path not in _OF_THE_SYSTEM:
            return f"the gateway does not trust the certificates in {path} ({variable}): put them into SSL_CERT_FILE of the daemon"
    return None


def certificates(surroundings: Surroundings, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files of certificates that the gateway must trust for calls of a program with these variables."""
    found = (path for _, path in _named(env) if path != surroundings.daemon_env.get("SSL_CERT_FILE"))
    return tuple(dict.fromkeys(found))


def _named(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable in _CERTIFICATES:
        if path := env.get(variable):
            yield variable, path


def _proxy(env: Mapping[str, str], name: str) -> str:
    if (env.get("no_proxy") or env.get("NO_PROXY") or "").strip() == "*":
        return ""
    return env.get(name) or env.get(name.upper()) or ""
