"""`sfactl config`

The daemon's effective settings. Order: flag, environment, user's file, system's file, built-in.
"""

from __future__ import annotations

import msgspec

from sfad.protocol.messages import Config, ConfigReply

from .. import output
from ..client import connect
from ..exits import Exit
from ..options import COMMON, Parameter

PARAMETERS: tuple[Parameter, ...] = COMMON


def main(*, socket: str | None = None, json: bool = False) -> int:
    """Shows the configuration."""
    with connect(socket) as client:
        found = client.call(Config(id=client.next_id()), ConfigReply).settings
    if json:
        output.print_json({"settings": found})
    else:
        rows = ((s.key, msgspec.json.encode(s.value).decode(), s.source) for s in found)
        print(output.table(("KEY", "VALUE", "FROM"), rows))
    return Exit.DONE
