"""What a run that uses the gateway gets in place of keys, and what one that leaves it out must not inherit."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence

from ..config import UpstreamConfig
from ..protocol.known import BASE_URLS, KEYS, TOKENS

PLACEHOLDER = "the-gateway-has-the-key"
SHORTEST = 8
"""Characters of a key. What is shorter may be a part of anything."""


def keyless(env: Sequence[bytes], program: str, upstreams: Mapping[str, UpstreamConfig], own: Collection[str] = ()) -> list[bytes]:
    """Return the environment of a run that uses the gateway: without the keys that the gateway has, and with placeholders, because
    programs do not start without a key. `own`: the upstreams that the run's root has chosen, where the gateway uses no key."""
    keyed = {name: each for name, each in upstreams.items() if name not in own and (each.key_file or each.key_env)}
    if not keyed:
        return list(env)
    secrets = {os.environb.get(each.key_env.encode(), b"") for each in keyed.values() if each.key_env is not None}
    secrets = {secret for secret in secrets if len(secret) >= SHORTEST}
    replaced = {variable for name in keyed for variable in KEYS.get(name, ())}
    kept = [
        item
        for item in env
        if item.partition(b"=")[0].decode(errors="replace") not in replaced and not any(secret in item for secret in secrets)
    ]
    variables = [TOKENS.get(program, {}).get(name, KEYS[name][0]) for name in keyed if name in KEYS]
    return kept + [f"{variable}={PLACEHOLDER}".encode() for variable in variables]


def direct(env: Sequence[bytes], is_gateway: Callable[[str], bool], own: Mapping[str, str]) -> list[bytes]:
    """Return the environment of a run that leaves out the gateway, which the run above it may use: without placeholders, and with
    the upstreams `own` that the root has chosen in place of the gateway's address."""
    kept = []
    for item in env:
        variable, _, value = item.partition(b"=")
        name = BASE_URLS.get(variable.decode(errors="replace"))
        if name is not None and is_gateway(value.decode(errors="replace")):
            kept += [variable + b"=" + own[name].encode()] if name in own else []
        elif value != PLACEHOLDER.encode():
            kept.append(item)
    return kept
