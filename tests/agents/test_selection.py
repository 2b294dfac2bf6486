"""The meter that is chosen for a command."""

from __future__ import annotations

import shlex

import pytest

from sfad.agents import AGENT_PROGRAMS, AgentProgram, chosen, named
from sfad.protocol.known import METERED_PROGRAMS
from tests.together import together

COMMANDS = """
claude -p hi --output-format stream-json --verbose                     claude
claude -p hi --output-format=stream-json                               claude
/usr/local/bin/claude --output-format stream-json -p hi                claude
npx -y @anthropic-ai/claude-code@latest -p --output-format stream-json claude
node /x/claude -p --output-format stream-json                          claude
node /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js -p --output-format stream-json claude
env A=b nice -n 5 claude -p --output-format stream-json                claude
timeout -k 5 60 claude -p --output-format stream-json                  claude
claude -p --output-format json                                         -
claude -p hi                                                           -
claude -p --input-format stream-json                                   -
claude -p -- --output-format stream-json                               -
claude --output-format                                                 -
codex exec --json hi                                                   codex
codex exec hi --json                                                   codex
codex exec --experimental-json hi                                      codex
codex -m gpt-5 exec --json                                             codex
codex e --json hi                                                      codex
codex exec resume --last --json                                        codex
npx codex exec --json                                                  codex
npx -y @openai/codex exec --json                                       codex
npm exec -- @openai/codex exec --json                                  codex
codex exec hi                                                          -
codex exec -- --json                                                   -
codex --json                                                           -
codex --json exec hi                                                   -
gemini --output-format stream-json -p hi                               gemini
gemini --output-format=stream-json -p hi                               gemini
gemini -o stream-json hi                                               gemini
npx @google/gemini-cli -o stream-json                                  gemini
node /usr/lib/node_modules/@google/gemini-cli/dist/index.js -o stream-json gemini
gemini -o json hi                                                      -
gemini hi                                                              -
opencode run --format json hi                                          opencode
opencode run hi --format=json                                          opencode
bunx opencode-ai run --format json hi                                  opencode
opencode run hi                                                        -
opencode --format json                                                 -
sh -c 'claude -p --output-format stream-json'                          -
aider --output-format stream-json                                      -
python agent.py --json exec                                            -
echo claude --output-format stream-json                                -
true                                                                   -
"""


@together("line", COMMANDS.strip().splitlines())
def test_the_meter_of_a_command(line: str) -> None:
    command, meter = line.rsplit(None, 1)
    found = chosen(shlex.split(command))
    assert (found.name if found else "-") == meter


def test_no_command_has_no_meter() -> None:
    assert chosen([]) is None
    assert chosen([""]) is None


def test_every_program_has_a_name_of_its_own() -> None:
    assert [program.name for program in AGENT_PROGRAMS] == [*METERED_PROGRAMS, "jsonl"]
    assert [named(program.name) for program in AGENT_PROGRAMS] == list(AGENT_PROGRAMS)
    assert named("aider") is None


@pytest.mark.parametrize("program", AGENT_PROGRAMS, ids=lambda program: program.name)
def test_a_meter_may_be_named_for_any_command(program: AgentProgram) -> None:
    for argv in ([], ["sh", "agent.sh"], ["\udcff"], ["claude"], ["codex", "-m"]):
        program.meter(argv).feed(b"x\n")


def test_a_command_may_contain_words_that_are_not_utf_8() -> None:
    assert chosen(["claude", "-p", "\udcff\ud800", "--output-format", "stream-json"]) is named(
        "claude"
    )
