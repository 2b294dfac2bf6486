"""Verbs with --fleet: over all nodes, or on the node where a run is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import exits, output
from .exits import ExitCode, Quit, UsageError
from .fleet import ANSWER, Fleet, tell_unanswered


def carry_out(verb: str, main: Callable[..., int], values: dict[str, Any]) -> int:
    """Carry out a verb with --fleet."""
    fleet = Fleet(values.pop("socket", None))
    if verb in ("list", "tree"):
        from .fleet_list import shown

        return shown(verb, fleet, values)
    if verb in ("summary", "plans"):
        from . import fleet_reports

        return fleet_reports.summary(fleet, values) if verb == "summary" else fleet_reports.plans(fleet, values)
    if verb == "web":
        return main(**values, fleet=fleet)
    if verb == "top":
        if values.get("root"):
            raise UsageError("--fleet shows the runs of all nodes: leave out RUN, and type / to filter them")
        return main(**values, fleet=fleet)
    if verb == "events":
        return _events(fleet, values)
    if verb == "logs":
        from .fleet_run import logs

        return logs(fleet, values)
    changes: list[str] = []
    if verb == "limit":
        words = values.pop("words", ())
        values["runs"] = [word for word in words if "=" not in word]
        changes = [word for word in words if "=" in word]
    handles = list(values.pop("runs", ())) or ([values.pop("run")] if "run" in values else [])
    if not handles:
        if not (values.get("everything") or values.get("name") or values.get("label")):
            raise UsageError("name runs as NODE/ID, or choose them by --all, --name or --label")
        return _of_each(fleet, main, values | {"runs": []})
    by_node: dict[str, list[str]] = {}
    code: int = ExitCode.DONE
    for handle in handles:
        try:
            node, run = fleet.find(handle, verb)
        except Quit as error:
            output.note(f"sfactl: {handle}: {error.message}")
            code = exits.worst([code, error.code])
        else:
            by_node.setdefault(node, []).append(run)
    single = any(getattr(parameter, "target", "") == "run" for parameter in _parameters(verb))
    for node, runs in by_node.items():
        given: dict[str, Any] = {"run": runs[0]} if single else {"words": [*runs, *changes]} if verb == "limit" else {"runs": runs}
        code = exits.worst([code, main(**values, **given, socket=fleet.place(node))])
    return code


def _parameters(verb: str) -> Sequence[Any]:
    from . import verbs

    parameters: Sequence[Any] = verbs.load(verb).PARAMETERS
    return parameters


def _of_each(fleet: Fleet, main: Callable[..., int], values: Mapping[str, Any]) -> int:
    """Carry out a verb on all nodes at once. Name the nodes that did not answer."""
    codes, unanswered = fleet.each(lambda node: main(**values, socket=fleet.place(node)))
    return exits.worst([*codes.values(), tell_unanswered(unanswered)])


# ---- events of all nodes


def _events(fleet: Fleet, values: Mapping[str, Any]) -> int:
    """Print the events of each node, with its name. They are in the order in which they come."""
    from .commands import events

    lock = threading.Lock()

    def show(node: str) -> int:
        def tell(line: str) -> None:
            with lock:
                print(line, flush=True)

        given = {key: value for key, value in values.items() if key != "run"}
        return events.main(**given, socket=fleet.place(node), tell=tell, node=node)

    if values.get("run"):
        raise UsageError("--fleet and --run exclude each other: events of a run are on its node (sfactl info NODE/ID)")
    codes, unanswered = fleet.each(show, within=None if values.get("follow_") else ANSWER)
    return exits.worst([*codes.values(), tell_unanswered(unanswered)])
