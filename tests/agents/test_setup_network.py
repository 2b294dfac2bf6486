"""Proxies and certificates of a person's environment, which the gateway's process may not have."""

from __future__ import annotations

import json

import pytest

from sfad.agents import Person, Setup
from sfad.agents.programs import claude
from sfad.agents.setup_reader import all_setups, tree_setups

Env = dict[str, str] | None
PROXY = "http://me:secret@proxy.example:3128"


def at(env: Env = None, *, daemon: Env = None, settings: Env = None) -> Person:
    """A person with variables in the environment and in the settings of Claude Code."""
    files = {"/home/me/.claude/settings.json": json.dumps({"env": settings or {}}).encode()}
    return Person({"HOME": "/home/me"} | (env or {}), "/home/me/project", files.get, daemon or {})


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "http_proxy"])
def test_a_proxy_that_the_daemon_does_not_have_leads_around_the_gateway(variable: str) -> None:
    for found in all_setups(at({variable: PROXY})).values():
        assert variable.upper() in str(found.direct)
        assert "secret" not in str(found.direct)
        assert (found.env, found.words) == ((), ())
    assert (
        all_setups(at({variable: PROXY}, daemon={variable: "http://other.example"}))[""].direct
        is not None
    )


def without_qwen(found: dict[str, Setup]) -> dict[str, Setup]:
    """Leave out the program that a proxy leads around the gateway whoever has it."""
    return {name: setup for name, setup in found.items() if name != "qwen"}


def test_the_daemons_proxy_is_as_good() -> None:
    usual = all_setups(at())
    shared = all_setups(at({"HTTPS_PROXY": PROXY}, daemon={"https_proxy": PROXY}))
    assert without_qwen(shared) == without_qwen(usual)
    assert "proxy" in str(shared["qwen"].direct)
    assert all_setups(at(daemon={"https_proxy": PROXY})) == usual
    assert without_qwen(all_setups(at({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}))) == without_qwen(
        usual
    )
    assert all_setups(at({"HTTPS_PROXY": ""})) == usual


def test_a_proxy_in_the_settings_of_claude_leads_only_claude_around() -> None:
    person = at(settings={"HTTPS_PROXY": PROXY})
    assert "HTTPS_PROXY" in str(claude.setup(person).direct)
    assert all_setups(person)[""].direct is None


def test_the_gateway_trusts_what_the_person_trusts() -> None:
    env = {"SSL_CERT_FILE": "/d.pem", "CURL_CA_BUNDLE": "/b.pem"}
    person = at(env, daemon={"SSL_CERT_FILE": "/d.pem"}, settings={"NODE_EXTRA_CA_CERTS": "/c.pem"})
    assert tree_setups(person, ()).certificates == ["/b.pem", "/c.pem"]
    assert tree_setups(at(), ()).certificates == []


def test_a_program_that_checks_no_certificates_is_left_as_it_is() -> None:
    assert "NODE_TLS_REJECT_UNAUTHORIZED" in str(
        all_setups(at({"NODE_TLS_REJECT_UNAUTHORIZED": "0"}))["codex"].direct
    )
