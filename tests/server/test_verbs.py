"""Each kind of request is declared once, and answered by a function that is named like its verb."""

from __future__ import annotations

from pathlib import Path

from sfad.core.state.access import TABLE, VERBS
from sfad.daemon.loop.policy import ACCESS
from sfad.daemon.server import verbs
from sfad.daemon.server.asker import REGISTRY
from sfad.protocol import messages as m
from tests.all_messages import REQUESTS, is_of_feature
from tests.together import together

ELSEWHERE: set[type[m.Request]] = {m.AdmitCall, m.EndCall, m.SeeWindows}
"""The heart knows these, and a feature answers them."""
OF_HEART = [kind for kind in REQUESTS if not is_of_feature(kind) and kind not in ELSEWHERE]


@together("kind", [kind for kind in OF_HEART if kind is not m.Hello])
def test_each_request_is_answered_by_a_function_that_is_named_like_its_verb(
    kind: type[m.Request],
) -> None:
    answer = REGISTRY[kind].answer
    assert (answer.__module__.rpartition(".")[0], answer.__name__.rstrip("_")) == (
        "sfad.daemon.server.verbs",
        m.tag(kind),
    )


def test_each_file_answers_a_request() -> None:
    files = {path.stem for path in Path(verbs.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {verb.answer.__module__.rpartition(".")[2] for verb in REGISTRY.values()}


def test_few_requests_leave_the_permission_to_what_answers_them() -> None:
    """The guard refuses `spawn`, and records it; a field of `select` says which verb."""
    unchecked = {kind for kind, verb in REGISTRY.items() if verb.permission is None}
    assert unchecked == {m.Spawn, m.Select}


def test_every_verb_has_a_row() -> None:
    assert TABLE.keys() == {m.tag(kind) for kind in OF_HEART}
    of_features = {m.tag(kind) for kind in REQUESTS if is_of_feature(kind)}
    assert of_features <= ACCESS.keys() <= of_features | set(map(m.tag, ELSEWHERE))


def test_no_option_names_the_verb_of_a_feature() -> None:
    """`--allow` and `--deny` know those of the heart."""
    assert all(row.narrowed_by in {None, *VERBS} for row in ACCESS.values())


def test_the_dispatcher_checks_each_row() -> None:
    for kind, verb in REGISTRY.items():
        row = TABLE[m.tag(kind)]
        assert verb.permission in {None, m.tag(kind)}
        assert verb.about_run <= (row.scope == "one"), "a run is looked up in the scope"
