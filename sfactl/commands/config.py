from typing import Annotated

from sfad.protocol.encoding import to_json
from sfad.protocol.limits_object import schema
from sfad.protocol.requests.daemon import Config, ConfigReply

from .. import output
from ..app import app
from ..connecting.connection import call
from ..options.shared import Json, Socket, Value
from ..showing import table


def _what(text: str) -> str:
    if text != "schema":
        raise ValueError(f"unknown argument {text!r}; choose from: schema")
    return text


@app.command()
def config(
    what: Annotated[
        str | None, Value("schema", _what).argument("Print the JSON Schema of --limits instead")
    ] = None,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show the daemon's settings and where each comes from, or the schema of --limits.

    Precedence: flag, environment, user's file, /etc/sfad/user.toml, built-in. The system's
    daemon reads only /etc/sfad/sfad.toml. `sfactl config schema` prints the JSON Schema of
    --limits, and needs no daemon.
    """
    if what is not None:
        output.write(schema())
        return
    found = call(socket, Config(id=0), ConfigReply).settings
    rows = ((s.key, to_json(s.value).decode(), s.source) for s in found)
    output.answer(json, {"settings": found}, table.drawn(("KEY", "VALUE", "FROM"), rows))
