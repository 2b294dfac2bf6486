"""The text in an agent's events: shown as it comes, the final answer once, other lines
unchanged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sfad.agents import AGENT_PROGRAMS, AgentProgram, named
from sfad.agents.text import MAX_EVENT, READ_SIZE, Cursor, TextReader, answer
from tests.agents.recordings import STREAMS


def program(name: str) -> AgentProgram:
    """Return the program of that name."""
    found = named(name)
    assert found is not None
    return found


CLAUDE = program("claude")


class Stream:
    """A growing file and its reader, whose cursor travels as bytes between any two steps."""

    def __init__(self, speaker: AgentProgram = CLAUDE) -> None:
        self.speaker = speaker
        self.data = b""
        self.freed = 0
        self.cursor = b""
        self.text = b""
        self.tools: list[str] = []
        self.notes: list[str] = []

    def write(self, data: bytes, *, ended: bool = False) -> Stream:
        """Add to the file, and show what there is."""
        self.data += data
        more = True
        while more:
            cursor = msgspec.msgpack.decode(self.cursor, type=Cursor) if self.cursor else Cursor()
            shown = TextReader(self.speaker, cursor, self._read, len(self.data)).step(ended=ended)
            self.cursor, more = msgspec.msgpack.encode(cursor), shown.more
            self.text += shown.text
            self.tools += shown.tools
            self.notes += shown.notes
        return self

    def _read(self, offset: int, length: int) -> tuple[int, bytes]:
        start = max(offset, self.freed)
        return start, self.data[start : start + length]


def lines(*events: Any) -> bytes:
    """Return events as a program prints them."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def said(text: str, **more: Any) -> dict[str, Any]:
    """Return a message of Claude."""
    return {
        "type": "assistant",
        "message": {"id": "m", "model": "x", "content": [{"type": "text", "text": text}]},
        **more,
    }


def delta(text: str) -> dict[str, Any]:
    """Return a part of a message of Claude, with `--include-partial-messages`."""
    return {
        "type": "stream_event",
        "event": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}},
    }


START = {"type": "stream_event", "event": {"type": "content_block_start"}}


def result(text: str, **more: Any) -> dict[str, Any]:
    """Return the last event of Claude."""
    return {"type": "result", "subtype": "success", "is_error": False, "result": text, **more}


RECORDED = {
    "claude-success": (
        b"All done.\n",
        b"All done.",
        ["Bash: echo hello-from-tool; date", "Bash: ls -la"],
    ),
    "claude-shared-message-ids": (b"Let me run it.\n" * 3 + b"All done.\n", b"All done.", None),
    "claude-error-max-turns": (b"Let me run it.\n" * 2, None, None),
    "claude-api-failure": (b"", b"The agent failed: API Error: 400 scripted failure", []),
    "codex-success": (b"All done: the tool ran.\n", b"All done: the tool ran.", None),
    "codex-turn-failed": (b"", None, []),
    "gemini-success": (
        b"All done.\n",
        b"All done.",
        ["run_shell_command: echo hello-from-tool; date", "run_shell_command: ls -la"],
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_text_and_answer_of_each_recording(name: str) -> None:
    data = (STREAMS / f"{name}.jsonl").read_bytes()
    text, final, tools = RECORDED[name]
    speaker = program(name.partition("-")[0])
    shown = Stream(speaker).write(data, ended=True)
    assert shown.text == text
    assert tools is None or shown.tools == tools
    assert final is None or answer(speaker, data) == final
    in_pieces = Stream(speaker)
    for at in range(0, len(data), 97):
        in_pieces.write(data[at : at + 97])
    assert in_pieces.write(b"", ended=True).text == text


def test_opencode_and_jsonl() -> None:
    events = lines(
        {"type": "text", "part": {"text": "Let me look."}},
        {"type": "tool_use", "part": {"tool": "bash", "state": {"input": {"command": "ls"}}}},
        {"type": "text", "part": {"text": "Two files."}},
    )
    shown = Stream(program("opencode")).write(events, ended=True)
    assert (shown.text, shown.tools) == (b"Let me look.\nTwo files.\n", ["bash: ls"])
    assert answer(program("opencode"), events) == b"Two files."
    generic = b'{"type": "turn", "tool": "search"}\nfound 3\n{"answer": 3}\n{"type": "usage"}\n'
    assert Stream(program("jsonl")).write(generic, ended=True).text == b'found 3\n{"answer": 3}\n'
    assert answer(program("jsonl"), generic) == b'found 3\n{"answer": 3}'
    assert (
        answer(program("jsonl"), generic + lines({"type": "result", "text": "three"})) == b"three"
    )


def test_deltas_are_shown_at_once_and_their_message_is_not_repeated() -> None:
    stream = Stream().write(lines(START, delta("One, ")))
    assert stream.text == b"One, "
    stream.write(lines(delta("two."), said("One, two."), START, delta("Three."), said("Three.")))
    assert stream.write(lines(result("Three.")), ended=True).text == b"One, two.\nThree.\n"


def test_a_message_that_differs_from_its_deltas_is_shown_whole() -> None:
    stream = Stream().write(
        lines(START, delta("Onl"), said("Something else."), result("Something else.")), ended=True
    )
    assert stream.text == b"Onl\nSomething else.\n"


def test_the_final_answer_is_shown_once_even_if_no_message_had_it() -> None:
    assert (
        Stream().write(lines(said("Same."), said("Same."), result("Same.")), ended=True).text
        == b"Same.\nSame.\n"
    )
    assert (
        Stream().write(lines(said("Working."), result("Answer.\n")), ended=True).text
        == b"Working.\nAnswer.\n"
    )
    assert (
        Stream().write(lines(said("a"), result("a"), said("b"), result("b")), ended=True).text
        == b"a\nb\n"
    )


def test_subagents_are_not_shown() -> None:
    assert (
        Stream()
        .write(lines(said("inner", parent_tool_use_id="t1"), result("outer")), ended=True)
        .text
        == b"outer\n"
    )


def test_a_line_that_is_not_an_event_passes_unchanged() -> None:
    text = (
        b'warm up {"type": "no"}\n{"a": 1}\n{broken\n[1]\n\xff\xfe\r\n{"type": '
        b'3}\n\xef\xbb\xbfx\n{"type": "x", "messa\nprompt> '
    )
    stream = Stream().write(text)
    assert stream.text == text
    stream = Stream().write(lines(delta("half")) + b"note\n" + b'{"type": "x"', ended=True)
    assert stream.text == b'half\nnote\n{"type": "x"'


def test_a_last_event_needs_no_newline() -> None:
    stream = Stream().write(lines(result("Done."))[:-1])
    assert stream.text == b""
    assert stream.write(b"", ended=True).text == b"Done.\n"


def test_an_agent_s_words_do_not_steer_a_terminal() -> None:
    words = "\x1b[31mred\r\n\x9b2J\tend"
    shown = Stream().write(
        lines(START, delta(words), said(words), result(words)) + b"\x1b[1m\n", ended=True
    )
    assert shown.text == b"[31mred\n2J\tend\n\x1b[1m\n", "what is no event passes as it is"


def test_a_lone_surrogate_loses_no_text() -> None:
    assert (
        Stream().write(b'{"type": "result", "result": "cut \\ud83d"}\n', ended=True).text
        == "cut \ufffd\n".encode()
    )


def test_long_lines() -> None:
    """An event of a megabyte is read; a longer event is left out with a note; longer text
    passes."""
    tool = {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "content": "x" * 10_000_000}]},
    }
    stream = Stream()
    data = lines(tool, result("y" * 1_000_000))
    assert answer(CLAUDE, data) == b"y" * 1_000_000
    assert answer(CLAUDE, lines(tool)) == b"", "10 MB of an event are no answer"
    for at in range(0, len(data), 1 << 20):
        stream.write(data[at : at + (1 << 20)])
    assert (stream.text, len(stream.notes)) == (b"y" * 1_000_000 + b"\n", 1)
    huge = Stream().write(
        b'{"type": "user", "text": "' + b"x" * MAX_EVENT + b'"}\n' + lines(result("Done.")),
        ended=True,
    )
    assert (huge.text, len(huge.notes)) == (b"Done.\n", 1)
    assert "left out" in huge.notes[0]
    text = b"{" + b"x" * (MAX_EVENT + READ_SIZE) + b"\nnext\n"
    assert Stream().write(text, ended=True).text == text


def test_truncated_and_freed_output() -> None:
    stream = Stream().write(lines(said("one")))
    stream.data = b""
    stream.write(lines(result("two")))
    assert stream.text == b"one\ntwo\n"
    assert "truncated" in stream.notes[0]
    stream = Stream()
    stream.freed = 10
    stream.write(lines(said("lost"), said("kept")), ended=True)
    assert stream.text == b"kept\n"
    assert "10 bytes were freed" in stream.notes[0]


def test_answer_of_a_stream_without_its_beginning() -> None:
    data = lines(said("lost"), said("kept"))
    assert answer(CLAUDE, data[20:], begins_inside=True) == b"kept"
    assert answer(CLAUDE, b"only text\n") == b"only text"
    assert (
        answer(CLAUDE, lines(said("so far"), result("no", is_error=True)))
        == b"so far\nThe agent failed: no"
    )


@pytest.mark.parametrize("speaker", AGENT_PROGRAMS, ids=lambda each: each.name)
def test_no_event_of_wrong_types_breaks_a_reader(speaker: AgentProgram) -> None:
    odd: list[Any] = [None, 1, "x", [], {}, [None], {"type": 1}]
    for path in STREAMS.glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            event = json.loads(line)
            for key, value in list(event.items()):
                for other in odd if key != "type" else ():
                    list(speaker.speech(event | {key: other}))
                if isinstance(value, dict):
                    for inner in value:
                        for other in odd:
                            list(speaker.speech(event | {key: value | {inner: other}}))
