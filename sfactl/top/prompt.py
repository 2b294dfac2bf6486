"""Questions to the person: a line in which limits or words are typed, and a question that one key
answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.widgets import Input, Static

Answer = Callable[[str], Awaitable[bool]]
"""Takes what was typed. Returns whether it is right: then the prompt is closed."""

Changed = Callable[[str], None]


class PromptInput(Input):
    """The line. Its keys have priority, as those of `RunTree`."""

    DEFAULT_CSS = (
        "PromptInput, PromptInput:focus { width: 1fr; min-width: 6; background: ansi_default; "
        "color: ansi_default; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.cancel", "cancel", key_display="Esc", priority=True),
        Binding("enter", "app.submit", "submit", key_display="Enter", priority=True),
        *(replace(each, priority=True) for each in Input.BINDINGS if isinstance(each, Binding)),
        Binding("ctrl+h", "delete_left", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=False, max_length=500)
        self.cursor_blink = False
        self.offered = ""
        """The beginning of an answer, as `cost=`. Typing a digit continues it, typing a letter
        replaces it."""

    def insert_text_at_cursor(self, text: str) -> None:
        if self.value == self.offered and text[:1].isalpha():
            self.value = ""
        self.offered = ""
        super().insert_text_at_cursor("".join(c if c.isprintable() else " " for c in text))


class Prompt(Horizontal):
    """A question, and the line with the answer. It stays until the answer is right: a mistake can
    be corrected in it."""

    DEFAULT_CSS = """
    Prompt { height: 1; display: none; }
    Prompt Static { width: auto; max-width: 85%; height: 1; text-style: bold; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.input, self._question = PromptInput(), Static(markup=False)
        self._answer: Answer | None = None
        self._changed: Changed | None = None
        self._asking: asyncio.Future[bool] | None = None

    def compose(self) -> ComposeResult:
        yield from (self._question, self.input)

    def ask(
        self,
        question: str,
        answer: Answer,
        text: str = "",
        *,
        kind: str | None = None,
        changed: Changed | None = None,
    ) -> None:
        """`kind`: of a limit, offered as the beginning of the answer. `changed` is called with the
        text after each key, and with none if the prompt is cancelled."""
        self._answer, self._changed = answer, changed
        self.input.offered = f"{kind}=" if kind else ""
        self.input.value = text or self.input.offered
        self.input.cursor_position = len(self.input.value)
        self._question.update(f"{question}: ")
        self.display = True
        self.screen.set_focus(self.input)  # at once: focus() would let the next key pass by

    async def submit(self) -> bool:
        """Wait for what comes of the answer. Return whether the prompt is closed: the answer was
        right, or is not waited for."""
        if self._answer is not None:
            self._asking = asyncio.ensure_future(self._answer(self.input.value.strip()))
            await asyncio.wait([self._asking])
            if self._asking.cancelled() or self._asking.result():
                self.display = False
            self._asking = None
        return not self.display

    def interrupt(self) -> bool:
        """Do not wait for the answer any longer. Return whether it was waited for."""
        return self._asking is not None and self._asking.cancel()

    def cancel(self) -> None:
        self.display = False
        if self._changed is not None:
            self._changed("")

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._changed is not None and self.display:
            self._changed(event.value)


class Confirm(ModalScreen[bool]):
    """A question that one key answers: y, or anything else for no."""

    DEFAULT_CSS = """
    Confirm { align: left bottom; }
    Confirm Static {
        width: 100%; height: auto; margin-bottom: 1;
        background: ansi_default; color: ansi_default; text-style: bold;
    }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(f"{self._question}? y/N", markup=False)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss(event.character in ("y", "Y"))
