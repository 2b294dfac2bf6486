"""Verbs with --fleet: over all nodes, or on the node where a run is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sfad.protocol.types import Limit

from . import exits, fleet_list, fleet_reports, fleet_run, output
from .commands import events, top, web
from .exits import ExitCode, Quit, UsageError
from .fleet import ANSWER, Fleet, tell_unanswered
from .web.options import WebOptions


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


# ---- verbs that show all nodes as one


def _events(fleet: Fleet, values: dict[str, Any]) -> int:
    """Print the events of each node, with its name. They are in the order in which they come."""
    options = events.EventOptions(**values)
    if options.run:
        raise UsageError(
            "--fleet and --run exclude each other: events of a run are on its node (sfactl info "
            "NODE/ID)"
        )
    lock = threading.Lock()

    def tell(line: str) -> None:
        with lock:
            print(line, flush=True)

    def show(node: str) -> int:
        return events.show(
            options.request(), fleet.place(node), json=options.json, tell=tell, node=node
        )

    codes, unanswered = fleet.each(show, within=None if options.follow_ else ANSWER)
    return exits.worst([*codes.values(), tell_unanswered(unanswered)])


def _top(fleet: Fleet, values: dict[str, Any]) -> int:
    if values["root"]:
        raise UsageError(
            "--fleet shows the runs of all nodes: leave out RUN, and type / to filter them"
        )
    return top.show(top.TopOptions(**values), fleet)


_AS_ONE: dict[str, Callable[[Fleet, dict[str, Any]], int]] = {
    "list": partial(fleet_list.shown, "list"),
    "tree": partial(fleet_list.shown, "tree"),
    "summary": fleet_reports.summary,
    "plans": fleet_reports.plans,
    "web": lambda fleet, values: web.serve(WebOptions(**values), fleet),
    "top": _top,
    "events": _events,
    "logs": fleet_run.logs,
}
