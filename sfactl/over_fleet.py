"""Verbs with --fleet: over all nodes, or on the node where a run is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sfad.protocol.types import Limit

from . import exits, output
from .exits import ExitCode, Quit, UsageError
from .fleet import ANSWER, Fleet, tell_unanswered


def carry_out(verb: str, function: Callable[..., int], values: dict[str, Any]) -> int:
    """Carry out a verb with --fleet."""
    fleet = Fleet(values.pop("socket", None))
    if verb in _AS_ONE:
        return _AS_ONE[verb](fleet, values)
    limits: list[Limit] = []
    if verb == "limit":
        words = values.pop("words")
        values["runs"] = [word for word in words if isinstance(word, str)]
        limits = [word for word in words if isinstance(word, Limit)]
    single = "run" in values
    handles = [values.pop("run")] if single else values.pop("runs", [])
    if not handles:
        if not (values.get("everything") or values.get("name") or values.get("label")):
            raise UsageError("name runs as NODE/ID, or choose them by --all, --name or --label")
        return _of_each(
            fleet, function, values | ({"words": limits} if verb == "limit" else {"runs": []})
        )
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
    for node, runs in by_node.items():
        given: dict[str, Any] = (
            {"run": runs[0]}
            if single
            else {"words": [*runs, *limits]}
            if verb == "limit"
            else {"runs": runs}
        )
        code = exits.worst([code, function(**values, **given, socket=fleet.place(node))])
    return code


def _of_each(fleet: Fleet, function: Callable[..., int], values: Mapping[str, Any]) -> int:
    """Carry out a verb on all nodes at once. Name the nodes that did not answer."""
    codes, unanswered = fleet.each(lambda node: function(**values, socket=fleet.place(node)))
    return exits.worst([*codes.values(), tell_unanswered(unanswered)])


# ---- events of all nodes


def _events(fleet: Fleet, values: Mapping[str, Any]) -> int:
    """Print the events of each node, with its name. They are in the order in which they come."""
    from .commands import events

    if values["run"]:
        raise UsageError(
            "--fleet and --run exclude each other: "
            "events of a run are on its node (sfactl info NODE/ID)"
        )
    wanted = {name: value for name, value in values.items() if name != "json"}
    json, lock = values["json"], threading.Lock()

    def show(node: str) -> int:
        def tell(line: str) -> None:
            with lock:
                print(line, flush=True)

        return events.show(
            events.wanted_by(**wanted), fleet.place(node), json=json, tell=tell, node=node
        )

    codes, unanswered = fleet.each(show, within=None if values["follow_"] else ANSWER)
    return exits.worst([*codes.values(), tell_unanswered(unanswered)])


# ---- verbs that show all nodes as one


def _listed(verb: str) -> Callable[[Fleet, dict[str, Any]], int]:
    def show(fleet: Fleet, values: dict[str, Any]) -> int:
        from .fleet_list import shown

        return shown(verb, fleet, values)

    return show


def _summary(fleet: Fleet, values: dict[str, Any]) -> int:
    from . import fleet_reports

    return fleet_reports.summary(fleet, values)


def _plans(fleet: Fleet, values: dict[str, Any]) -> int:
    from . import fleet_reports

    return fleet_reports.plans(fleet, values)


def _logs(fleet: Fleet, values: dict[str, Any]) -> int:
    from .fleet_run import logs

    return logs(fleet, values)


def _web(fleet: Fleet, values: dict[str, Any]) -> int:
    from .commands.web import serve

    return serve(**values, fleet=fleet)


def _top(fleet: Fleet, values: dict[str, Any]) -> int:
    from .commands.top import show

    if values["root"]:
        raise UsageError(
            "--fleet shows the runs of all nodes: leave out RUN, and type / to filter them"
        )
    return show(**values, fleet=fleet)


_AS_ONE: dict[str, Callable[[Fleet, dict[str, Any]], int]] = {
    "list": _listed("list"),
    "tree": _listed("tree"),
    "summary": _summary,
    "plans": _plans,
    "web": _web,
    "top": _top,
    "events": _events,
    "logs": _logs,
}
