"""The loop identity of commands as people and agents really write them."""

from __future__ import annotations

import hashlib
import shlex
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.core.state.naming import agent_of, derive_name, executes, is_name
from tests.tiers import examples
from tests.together import together

COMMANDS = """
./Übersicht.sh                                        Übersicht
python3 報告.py                                       報告
./a\u200bb.sh                                               a-b
claude -p x                                           claude
/usr/local/bin/gemini -p x                            gemini
codex exec --json hi                                  codex
claude2                                               claude2
./run.sh                                              run
/home/u/bin/agent.bash --x                            agent
npx -y @openai/codex@latest exec                      codex
npx --yes @anthropic-ai/claude-code -p hi             claude-code
npx -p @openai/codex codex                            codex
npx --package=@openai/codex codex exec                codex
npx -c 'codex exec'                                   codex
npx github:foo/bar                                    bar
npx tsx agent.ts                                      agent
bunx @openai/codex                                    codex
npm exec -- @openai/codex exec                        codex
npm run agent                                         agent
npm test                                              npm
pnpm dlx @openai/codex@1                              codex
yarn dlx codex                                        codex
python3.11 -m aider.main                              aider
python -um aider --model x                            aider
python3 -W ignore -X dev -I agent.py -c y             agent
python3.13t x.py                                      x
python -- x.py                                        x
/usr/bin/python3 /usr/local/bin/aider                 aider
python                                                python
python -m                                             python
uv run --with x agent.py                              agent
uv run --project /p --python 3.12 python -m agent     agent
uv --project /p run agent                             agent
uv run -m aider.main                                  aider
uv tool run aider@1.2                                 aider
uv pip install x                                      uv
uvx --from git+https://x/y aider                      aider
uvx --python 3.12 aider-chat==0.5                     aider-chat
uvx 'aider-chat[browser]>=0.5'                        aider-chat
pipx run --spec aider-chat aider                      aider
poetry run python -m agent                            agent
conda run -n env python agent.py                      agent
env A=1 B=2 nice -n 5 claude                          claude
env -u FOO -C /tmp claude                             claude
env -S 'A=1 claude -p x'                              claude
env -i                                                env
nice -10 claude                                       claude
nice --adjustment 5 claude                            claude
timeout -k 5 10 claude                                claude
timeout --signal=INT --kill-after 5 5m claude -p x    claude
timeout 5                                             timeout
ionice -c 3 claude                                    claude
ionice -c2 -n7 claude                                 claude
stdbuf -oL -e L claude                                claude
taskset -c 0-3 claude                                 claude
chrt -f 10 claude                                     claude
time -p claude                                        claude
flock -w 5 /tmp/lock claude                           claude
xvfb-run -a claude                                    claude
strace -f -o /tmp/x claude                            claude
systemd-run --user --scope -p A=1 claude              claude
setsid -w nohup claude                                claude
sudo -u bob claude                                    claude
sudo -iu bob A=1 claude                               claude
sudo -E env A=1 claude                                claude
sudo -- claude                                        claude
node --max-old-space-size=4096 /usr/lib/x/cli.js      cli
node --inspect=9229 --loader ts-node/esm agent.ts     agent
node /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js     claude-code
node /usr/lib/node_modules/@google/gemini-cli/dist/index.js     gemini-cli
node node_modules/a/node_modules/codex/bin/codex.js   codex
node dist/index.js                                    index
bun run agent.ts                                      agent
deno run --config d.json -A agent.ts                  agent
java -Xmx1g -cp a:b com.foo.Main                      com.foo.Main
java -jar /opt/agent.jar                              agent
ruby -I lib agent.rb                                  agent
Rscript a.R                                           a
php -f agent.php                                      agent
sh script.sh                                          script
bash -x ./scripts/agent.bash arg                      agent
bash -o pipefail script.sh                            script
sh -- script.sh                                       script
busybox sh script.sh                                  script
sh -s x                                               sh
bash                                                  bash
'my agent'                                            my-agent
..                                                    agent
/                                                     agent
''                                                    agent
"""


@together("line", COMMANDS.strip().splitlines())
def test_commands_as_people_write_them(line: str) -> None:
    command, expected = line.rsplit(maxsplit=1)
    assert derive_name(shlex.split(command)) == expected


@pytest.mark.parametrize(
    ("command", "prefix", "text"),
    [
        ("sh -c 'a; b'", "sh", "a; b"),
        ("env -i A=1 bash -lc 'x'", "sh", "x"),
        ("bash -euo pipefail -c 'x' arg", "sh", "x"),
        ("bash -c -e 'x'", "sh", "x"),
        ("zsh -ic x", "sh", "x"),
        ("fish --command x", "sh", "x"),
        ("busybox sh -c x", "sh", "x"),
        ("python -c 'print(1)'", "code", "print(1)"),
        ("python -c'print(1)'", "code", "print(1)"),
        ("python3 -Ic 'print(1)' -m x", "code", "print(1)"),
        ("uv run python -c 1", "code", "1"),
        ("node -e 1", "code", "1"),
        ("node --eval 1", "code", "1"),
        ("perl -ne 1", "code", "1"),
        ("ruby -e 1", "code", "1"),
        ("php -r 1", "code", "1"),
    ],
)
def test_inline_text_is_known_by_its_hash(command: str, prefix: str, text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert derive_name(shlex.split(command)) == f"{prefix}-{digest}"


def test_no_command() -> None:
    assert derive_name([]) == "agent"


WORDS = st.one_of(
    st.sampled_from([word for line in COMMANDS.splitlines() for word in line.split()]),
    st.sampled_from(
        [
            "-",
            "--",
            "-c",
            "-m",
            "--with",
            "-S",
            "@",
            "a/@b",
            "-e",
            "exec",
            "run",
            "tool",
            "=",
            "java",
            "x\udcff",
        ]
    ),
    st.text(max_size=80),
)


@settings(max_examples=examples(120), deadline=None, database=None)
@given(st.lists(WORDS, max_size=8))
def test_always_a_name(argv: list[str]) -> None:
    assert is_name(derive_name(argv))


@pytest.mark.parametrize(
    "argv",
    [
        ["1" * 2_000_000 + "x"],
        ["/node_modules/@a" * 200_000 + "/cli.js"],
        ["env"] * 300_000,
        ["env", "-S", "env " * 500_000],
        ["bash", *["-e"] * 300_000],
        ["python3", "-" + "I" * 2_000_000],
        ["env", *["A=1"] * 300_000, "claude"],
    ],
    ids=["digits", "path", "launchers", "string", "options", "cluster", "assignments"],
)
def test_what_a_stranger_sends_cannot_hold_up_the_daemon(argv: list[str]) -> None:
    """Quadratic work on 4 MiB takes hours; a second is far from both."""
    began = time.process_time()
    assert is_name(derive_name(argv))
    assert time.process_time() - began < 2


PROCESSES = """
claude -p x                                                             claude
/home/u/.local/bin/claude                                               claude
/p/node_modules/@anthropic-ai/claude-code/bin/claude.exe -p x           claude
node /p/node_modules/@anthropic-ai/claude-code/cli.js -p x              claude
node --max-old-space-size=4096 /usr/bin/gemini -p x                     gemini
/usr/bin/node /p/node_modules/@google/gemini-cli/dist/index.js          gemini
/p/node_modules/@openai/codex-linux-x64/vendor/x/bin/codex exec x       codex
python -m aider                                                         aider
/v/bin/python3.12 /v/bin/aider --model x                                aider
/bin/sh /usr/local/bin/claude -p x                                      claude
mine --go                                                               mine
claude -p 'tell me --version of it'                                     claude
vim claude.md                                                           -
grep -r codex .                                                         -
bash -c 'claude -p x'                                                   -
/bin/bash -lc 'codex exec x'                                            -
npx @anthropic-ai/claude-code                                           -
node /usr/bin/npx @openai/codex                                         -
'npm exec @anthropic-ai/claude-code'                                    -
env X=1 timeout 5 claude                                                -
/usr/bin/env node /usr/bin/codex exec                                   -
uvx aider                                                               -
sfactl run claude hi                                                    -
/v/bin/python3 /v/bin/sfactl run -- claude -p x                         -
/v/bin/python3 -I /s/shims/claude -p x                                  -
/home/u/.local/share/mise/shims/codex exec                              -
/p/bin/codex-code-mode-host --listen x                                  -
/p/bin/codex --codex-run-as-process-setup 62 /bin/bash -c x             -
rg claude                                                               -
claude-monitor                                                          -
cat /etc/claude                                                         -
python -c 'import claude'                                               -
claude --version                                                        -
node /usr/bin/codex --help                                              -
node --no-warnings /usr/bin/codex exec --help                           -
/v/bin/python3 -m aider --version                                       -
/bin/sh /usr/local/bin/claude mcp add -h                                -
claude -- --version                                                     claude
claude -p 'explain this' --append-system-prompt --help                  claude
codex exec -- --help                                                    codex
node /usr/bin/codex exec 'tell me' -- -v                                codex
/v/bin/python3 -m aider --message --version                             aider
/v/bin/python3 /v/bin/aider -v                                          aider
mine 'what is this?' --help                                             mine
'' claude                                                               -
goose run                                                               -
"""


@together("line", PROCESSES.strip().splitlines())
def test_which_agent_a_process_is(line: str) -> None:
    *argv, expected = shlex.split(line)
    programs = frozenset({"claude", "codex", "gemini", "opencode", "aider", "mine"})
    assert agent_of(argv, programs) == (None if expected == "-" else expected)


@given(st.lists(st.text()))
def test_any_command_line_of_a_process(argv: list[str]) -> None:
    assert agent_of(argv, frozenset({"claude"})) in (None, "claude")


@pytest.mark.parametrize(
    ("command", "is_claude"),
    [
        ("claude -p hi", True),
        ("/opt/bin/claude", True),
        ("node --no-warnings /lib/node_modules/@anthropic-ai/claude-code/cli.js -p", True),
        ("/bin/sh /home/ann/bin/claude -p", True),
        ("timeout 60 claude", False),
        ("sh -c claude", False),
        ("codex", False),
        ("", False),
    ],
)
def test_a_launcher_of_a_program_is_not_the_program(command: str, is_claude: bool) -> None:
    assert executes(command.split(), "claude") is is_claude
