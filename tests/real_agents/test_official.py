"""Programs that a script leads to the official address of their model. In a mount namespace of the
test, the names of these hosts lead to the scripted model."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.conftest import Start
from tests.real_agents.clis import CLAUDE, CODEX, GEMINI_CLI, OPENCODE, QWEN, Cli, environment
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.model import OFFICIAL, serving
from tests.real_agents.script import Reply
from tests.real_agents.test_around import HOW, LIMIT, assert_ended, cleared, script, writing
from tests.real_agents.test_bill import CONFIG
from tests.real_agents.test_gateway import CODEX_QUIET
from tests.real_agents.test_setups_codex import API_KEY, chatgpt_login

WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'
TRUSTS = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
"""Variables with which the programs trust a certificate."""


@pytest.fixture
def official(commands: Path, start: Start, tmp_path: Path) -> Iterator[MakeDesk]:
    """Makes the desk of a person whose programs have no other address."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*OFFICIAL).configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    host = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.2"  # port 443 of its own
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{host} {name}\n" for name in OFFICIAL))
    wrap = ["unshare", "--mount", "--propagation", "private", "sh", "-c", WITH_HOSTS, str(hosts)]
    with ExitStack() as stack:

        def make(*, config: str, **scripts: Iterable[Reply]) -> Desk:
            model = stack.enter_context(serving(scripts, tls, (host, 443)))
            daemon = start(config=config, wrap=wrap)
            own = environment(tmp_path / "home", model.url)
            led = ("_BASE_URL", "OPENCODE_CONFIG_CONTENT")
            env = {name: value for name, value in own.items() if not name.endswith(led)}
            kept = {name: value for name, value in daemon.env.items() if name.startswith("SFAD_")}
            path = {"PATH": f"{commands}:{os.environ['PATH']}"}
            trusts = dict.fromkeys(TRUSTS, str(tmp_path / "ca.pem"))
            return Desk(daemon, model, kept | env | path | trusts)

        yield make


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("program", "host"),
    [
        (CLAUDE, "api.anthropic.com"),
        (CODEX, "api.openai.com"),
        (CODEX, "chatgpt.com"),
        (GEMINI_CLI, "generativelanguage.googleapis.com"),
        (OPENCODE, "api.anthropic.com"),
        (QWEN, "dashscope.aliyuncs.com"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_run_ends_before_the_second_call_to_the_official_address(
    official: MakeDesk, program: Cli, host: str
) -> None:
    at = official(config=CONFIG, **{program.name: writing()})
    settings = Path(at.env["CODEX_HOME"], "config.toml")
    settings.write_text(CODEX_QUIET)
    login = chatgpt_login() if host == "chatgpt.com" else API_KEY
    settings.with_name("auth.json").write_text(login)
    command = script(at, HOW["exec"].format(cleared(at, program.as_text)))
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "5m", *command)
    (run,) = at.listed()
    # its connection is seen at once
    assert_ended(run, at.talk(program).bills, program, unknown=program is OPENCODE)
    assert hosts(at, program) == {host}


def hosts(at: Desk, program: Cli) -> set[str]:
    """Return where the program has called its model."""
    asks = at.talk(program).dialect.asks
    return {each.headers["host"] for each in at.model.seen if asks(each.target.partition("?")[0])}
