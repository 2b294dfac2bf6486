"""What real verbs print with `--json` is what docs/json.schema.json says."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from sfactl import app, verbs
from tests.docs.json_schemas import VERBS, WITHOUT, schema
from tests.harness import Daemon


def strict() -> dict[str, Any]:
    """Return the schema without room for fields that it does not name."""
    whole = schema()
    for each in whole["$defs"].values():
        if "properties" in each:
            each["additionalProperties"] = False
    return whole


WHOLE = strict()


def validate(verb: str, printed: str) -> None:
    """Raise if one of the lines is not what the verb may print, or there is none."""
    lines = printed.splitlines()
    assert lines, verb
    for line in lines:
        jsonschema.validate(
            json.loads(line),
            {"$ref": f"#/verbs/{verb}", "verbs": WHOLE["verbs"], "$defs": WHOLE["$defs"]},
            jsonschema.Draft202012Validator,
        )


def test_each_verb_with_json_has_a_schema() -> None:
    takes = [
        verb
        for verb in verbs.everything()
        if any("--json" in getattr(each, "opts", ()) for each in app.load(verb).params)
    ]
    assert sorted([*VERBS, *WITHOUT]) == sorted(takes)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_field_that_the_schema_does_not_name_is_noticed() -> None:
    validate("fleet drain", '{"node": "a", "drained": true}')
    for wrong in ('{"node": "a"}', '{"node": "a", "drained": true, "more": 1}'):
        with pytest.raises(jsonschema.ValidationError):
            validate("fleet drain", wrong)


CONFIG = """
[agents.reviewer]
command = ["echo", "{task}: looks good"]
[[hooks]]
name = "hook"
on = ["run_failed"]
command = ["true"]
"""


@pytest.mark.alone
def test_what_verbs_print_is_valid(start: Any) -> None:
    daemon: Daemon = start(config=CONFIG)
    seen: set[str] = set()

    def told(verb: str, *words: str, code: int | None = 0, **options: Any) -> Any:
        done = daemon.sfactl(*verb.split(), "--json", *words, **options)
        assert code is None or done.returncode == code, (verb, done)
        validate(verb, done.stdout)
        seen.add(verb)
        return json.loads(done.stdout.splitlines()[-1])

    told("run", "--label", "team=blue", "--", "true")
    told("run", "--max-depth", "5", "--", "sh", "-c", "exit 3", code=3)
    long = told("spawn", "--name", "long", "--limit", "cost=1", "--stdin", "--", "cat")["id"]
    told("spawn", "--after", long, "--", "true")
    told("send", long, "hello")
    told("pause", long)
    told("resume", long)
    told("limit", long, "time=1h")
    told("report", long, "--input-tokens", "5", "--output-tokens", "5")
    reserved = told(
        "reserve", long, "--model", "claude-sonnet-4-5", "--input-tokens", "5",
        "--max-output-tokens", "5",
    )["reserved"]  # fmt: skip
    told("settle", reserved["reservation"], "--input-tokens", "5",
         "--output-tokens", "5")  # fmt: skip
    for verb in ("list", "tree", "summary", "status", "config", "events", "agents", "plans",
                 "hooks list", "session list", "recommend", "reload"):  # fmt: skip
        told(verb)
    told("list", "--sum")
    told("agents", "reviewer")
    told("doctor", code=None)
    told("doctor", "--report")
    told("shim", "list")
    told("rerun", told("spawn", "--", "true")["id"])
    told("info", "--timeline", long)
    told("why", long)
    told("session delegate", "server.py", "--agent", "reviewer")
    session = told("session spawn", "server.py", "--agent", "reviewer")["run_id"]
    told("session info", session)
    told("session log", session)
    told("session stop", session, code=None)
    told("hooks try", "hook")
    told("stop", long)
    told("wait", long, code=None)
    told("logs", long)
    told("result", long)
    told("prune", "--older-than", "1h", "--dry-run")
    told("stop", "--all")
    # the rest needs git, a gateway's calls, a person, an agent's session or a fleet
    assert set(VERBS) - seen == {
        "approve", "calls", "continue", "deny", "diff", "fetch", "fleet drain", "fleet forget",
        "fleet nodes", "fleet status", "land", "session send",
    }  # fmt: skip
