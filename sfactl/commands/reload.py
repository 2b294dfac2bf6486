from sfad.protocol.encoding import to_json
from sfad.protocol.requests.daemon import Change, Reload, Reloaded
from sfad.protocol.texts.units import counted

from .. import output
from ..app import app
from ..connecting.connection import call
from ..options.shared import Json, Socket


@app.command()
def reload(socket: Socket = None, json: Json = False) -> None:
    """Make the daemon read its config again, as SIGHUP does, and show what changed.

    If another version of sfad has been installed, the daemon becomes it, and every run goes on.
    Live runs keep their limits. If the config has an error, the old one stays in force.

    Exit codes: 0 read; 2 the config has an error, and nothing changed; 77 not permitted inside
    a run.
    """
    found = call(socket, Reload(id=0), Reloaded)
    if json:
        output.print_json(output.content(found))
        return
    for change in found.changed:
        print(_line(change))
    if found.becomes is not None:
        output.note(f"the daemon becomes sfad {found.becomes}; its log tells if it cannot")
    elif any(change.waits for change in found.changed):
        output.note(
            "to apply what waits and keep the runs: "
            "kill -USR2 with the daemon's pid (sfactl status)"
        )
    files = ", ".join(found.files) or "there is no config file, so all settings are built-in"
    output.note(f"{counted(len(found.changed), 'setting')} changed ({output.plain(files)})")


def _line(change: Change) -> str:
    old, new = (to_json(value).decode() for value in (change.old, change.new))
    later = "; waits for the next start or re-execution" if change.waits else ""
    return output.plain(f"{change.key}: {old} → {new} ({change.source}{later})")
