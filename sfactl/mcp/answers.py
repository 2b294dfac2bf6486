"""What a model is told: results of tools, and sessions in words."""

from __future__ import annotations

from sfad.protocol.types import ErrorCode

from .. import output
from ..connection import DaemonError
from . import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..exits import Quit
    from ..sessions import SessionView

    Json = dict[str, Any]

_LISTED = ("run_id", "name", "status", "elapsed_s", "turns", "tokens", "cost_usd", "partial", "at_most", "reason")


def text(words: str, *, failed: bool = False) -> Json:
    """Return the result of a tool that says this."""
    return {"content": [{"type": "text", "text": words}], "isError": failed}


def with_news(result: Json, news: Sequence[str]) -> Json:
    """Return a result that also says these sentences, where each client looks: Claude Code shows the model only the object of one
    that has it, and Codex lets newer models write scripts, which take the first text."""
    if not news:
        return result
    if "structuredContent" in result:
        return _structured(result["structuredContent"] | {"news": news})
    return text("\n".join((result["content"][0]["text"], *news)), failed=result["isError"])


def accepted(view: SessionView) -> Json:
    """Return the answer to a start in the background."""
    if view.ended:
        return told(view)  # it could not be started
    known = _known(view, ("run_id", "name", "lowered"))
    return _structured({"status": "accepted"} | known | {"advice": _waiting(view)})


def listed(views: Sequence[SessionView]) -> Json:
    return _structured({"sessions": [_known(view, _LISTED) for view in views]})


def told(view: SessionView) -> Json:
    """Return the state of a session, with its answer: only as text, because in an object it would be quoted."""
    return text(whole(view), failed=view.ended and view.status != "completed")


def whole(view: SessionView) -> str:
    """Return what is known of a session, with its answer."""
    advice = view.advice if view.ended else _waiting(view)
    return "\n".join(filter(None, (line(view), view.reason, *view.lowered, advice, view.result)))


def line(view: SessionView) -> str:
    """Return a session in one line: `a5 (reviewer): running, 42s, 3 turns, 0.31 USD`."""
    cost = f"{output.bound(partial=view.partial, at_most=view.at_most)}{output.usd(view.cost_usd)} USD"
    shown = (
        view.status,
        None if view.elapsed_s is None else output.seconds(view.elapsed_s),
        None if view.turns is None else f"{view.turns} turns",
        None if view.cost_usd is None else cost,
    )
    return f"{view.run_id} ({view.name}): {', '.join(filter(None, shown))}"


def in_words_of_tools(error: Quit) -> str:
    """Return the message of an error without the commands that a person would use."""
    if isinstance(error, DaemonError) and error.error in (ErrorCode.NO_SUCH_RUN, ErrorCode.AMBIGUOUS_RUN):
        return f"{error.message.partition('; ')[0]}; sessions_list shows the ids"
    return error.message


def _known(view: SessionView, fields: Sequence[str]) -> Json:
    """Return those fields of a session that say something: each word of an answer costs the model tokens."""
    return {field: value for field in fields if (value := getattr(view, field)) not in (None, False, [])}


def _structured(value: Json) -> Json:
    """Return an object. Clients show the model either the object or the text, so both say the same."""
    return text(json_text.readable(value)) | {"structuredContent": value}


def _waiting(view: SessionView) -> str:
    return f"sessions_info with run_id '{view.run_id}' and wait_seconds waits for its end, so do not poll with sleep"
