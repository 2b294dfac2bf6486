"""What `sfactl doctor` asks the gateway: whether upstreams answer, their keys can be read, and the kernel tells who calls."""

import json
from collections.abc import Mapping
from typing import Any

import httpx2
import trio

from .callers import Caller
from .upstreams import Upstream

PATIENCE = 5.0
"""Seconds that an upstream may take to answer."""


async def checkup(client: httpx2.AsyncClient, upstreams: Mapping[str, Upstream], caller: Caller | None) -> bytes:
    """Return what was found, as JSON. Upstreams that another gateway calls are left out."""
    own = {name: upstream for name, upstream in upstreams.items() if upstream.through is None}
    found: dict[str, dict[str, Any]] = {name: {} for name in own}
    async with trio.open_nursery() as nursery:
        for name, upstream in own.items():
            nursery.start_soon(_look_at, client, upstream, found[name])
    return json.dumps({"cgroup": caller.cgroup if caller is not None else None, "upstreams": found}).encode()


async def _look_at(client: httpx2.AsyncClient, upstream: Upstream, found: dict[str, Any]) -> None:
    found |= {"url": upstream.shown, "status": None, "error": None, "keyed": None, "key_error": None, "exposed": None}
    try:
        found["keyed"] = upstream.key() is not None
        found["exposed"] = upstream.exposed()
    except (OSError, LookupError) as error:
        found["key_error"] = str(error)
    with trio.move_on_after(PATIENCE) as waiting:
        try:
            found["status"] = (await client.head(upstream.url)).status_code
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            found["error"] = str(error) or type(error).__name__
    if waiting.cancelled_caught:
        found["error"] = f"no answer within {PATIENCE:g} s"
