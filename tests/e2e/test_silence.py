"""An API that takes a call and does not answer is seen while the call waits, between real
processes."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import PATIENCE, ended, spawn, wait_until

from .agents import info

CALLER = Path(__file__).with_name("caller.py")
IMPATIENT = """
import sys
if "sfad.features.gateway.program" in sys.orig_argv:
    from sfad.protocol import types
    types.SILENT_AFTER = 0.1
"""


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each gateway tell of a silence after 0.1 s."""
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")


@pytest.mark.usefixtures("impatient")
def test_a_call_without_an_answer_is_shown_until_its_first_byte(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as api:
        api.settimeout(PATIENCE)
        upstream = (
            "[gateway.upstreams.anthropic]\nurl = "
            f'"http://127.0.0.1:{api.getsockname()[1]}"\napi = "anthropic"\nfree = false\n'
        )
        daemon = start(config=f"[gateway]\nenabled = true\n{upstream}")
        with daemon.client() as client:
            reply = spawn(client, [sys.executable, CALLER, json.dumps({"output": 100})])
            assert isinstance(reply, m.RunReply), reply
            run = reply.run.id
            call, _ = api.accept()
            with call:
                silence = wait_until(lambda: info(client, run).api_silence, "the silence is known")
                assert (silence.host, silence.calls) == ("127.0.0.1", 1)
                assert "running (waiting " in daemon.sfactl("list").stdout
                why = daemon.sfactl("why", run).stdout
                assert f"{run} ({reply.run.name}) has been waiting " in why
                assert " for 127.0.0.1's first byte, since " in why
                call.sendall(b"HTTP/1.1 529 Overloaded\r\nContent-Length: 0\r\n\r\n")
                over = ended(client, run)
            events = client.call(m.Events(id=0, runs=[run], milestones=False), m.EventPage).events
    assert (over.status, over.api_silence) == (Status.FAILED, None)
    assert over.reason is not None
    assert "the API answered 529 once" in over.reason.message
    told = [event.message for event in events if event.type == "run_progress"]
    assert told == [
        "the API is silent: no byte has come from 127.0.0.1",
        "the API has begun to answer",
        "the API answered 529 once",
    ]
