"""Show the daemon's settings and where each comes from, or the schema of --limits.

Precedence: flag, environment, user's file, /etc/sfad/user.toml, built-in. The system's daemon reads only /etc/sfad/sfad.toml.
`sfactl config schema` prints the JSON Schema of --limits, and needs no daemon.
"""

from sfad.protocol.encoding import to_json
from sfad.protocol.requests.daemon import Config, ConfigReply

from .. import output, table
from ..connection import call
from ..exits import ExitCode, UsageError
from ..options import COMMON, Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Argument("what", "schema", "Print the JSON Schema of --limits instead", required=False),
)


def main(*, what: str | None = None, socket: str | None = None, json: bool = False) -> int:
    if what not in (None, "schema"):
        raise UsageError(f"unknown argument {what!r}; config takes only: schema")
    if what is not None:
        from sfad.protocol.limits_object import schema

        output.write(schema())
        return ExitCode.DONE
    found = call(socket, Config(id=0), ConfigReply).settings
    if json:
        output.print_json({"settings": found})
    else:
        rows = ((s.key, to_json(s.value).decode(), s.source) for s in found)
        print(table.drawn(("KEY", "VALUE", "FROM"), rows))
    return ExitCode.DONE
