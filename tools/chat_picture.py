"""A picture of a real chat, docs/chat.svg: what it leaves on a terminal, with the numbers as measured.

Run: python tools/chat_picture.py --target FOLDER --drafter FOLDER "A question" "The next one"

It prints the caption that belongs to the picture.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dflash_mlx import SamplingParams
from dflash_mlx.cli import chat, grid, models, theme
from dflash_mlx.cli.conversation import Settings
from dflash_mlx.cli.screen import Live, Screen
from dflash_mlx.cli.terminal_front import TerminalView

OUT = Path(__file__).parent.parent / "docs" / "chat.svg"
ROWS = 1000  # nothing scrolls away


class Paper(Screen):
    """A terminal on which only what stays is seen."""

    def __init__(self, columns: int) -> None:
        super().__init__(lambda text: None, lambda: (columns, ROWS))
        self.lines: list[Text] = []

    def update(self, finished_lines: Sequence[Text], live_lines: Live) -> None:
        """What is live is drawn, so that it costs what it does on a terminal, and thrown away."""
        self.lines += finished_lines
        super().update([], live_lines)

    def close(self, last_lines: Sequence[Text] = ()) -> None:
        """The reply is whole."""
        self.lines += last_lines
        super().close()


class Recorder:
    """Stands where a person and a terminal do.

    Args:
        questions: Typed one after the other.
        settings: Of the chat.
        columns: Of the terminal.
        unseen: So many first questions and replies are left out of the picture.
    """

    interactive = True
    first_run = False

    def __init__(self, questions: Sequence[str], settings: Settings, columns: int, unseen: int = 0) -> None:
        self._questions, self._settings, self._columns = iter(questions), settings, columns
        self._unseen, self._above = unseen, 0  # lines above the first question
        self.lines: list[Text] = []

    def read(self) -> str | None:
        question = next(self._questions, None)
        self._above = self._above or len(self.lines)
        if self._unseen >= 0:
            del self.lines[self._above :]
            self._unseen -= 1
        if question is not None:
            self.lines += [*grid.wrap(Text(f"> {question}"), self._columns), Text()]
        return question

    def say(self, what: str | Callable[[int], Text]) -> None:
        text = Text(what, style=theme.DIM) if isinstance(what, str) else what(self._columns)
        self.lines += grid.wrap(text, self._columns)

    def error(self, message: str, hint: str | None) -> None:
        sys.exit(message)

    @contextmanager
    def view(self) -> Iterator[TerminalView]:
        with Paper(self._columns) as paper:
            yield TerminalView(paper, self._settings)
        self.lines += [*paper.lines, Text()]


def picture(lines: Sequence[Text], title: str, columns: int) -> str:
    """Lines of a terminal as SVG, without the addresses of fonts."""
    console = Console(file=io.StringIO(), record=True, width=columns, force_terminal=True, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    svg = console.export_svg(title=title, unique_id="chat")
    return re.sub(r"@font-face\s*{[^}]*}\s*", "", svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--width", type=int, help="rows of a verify pass")
    parser.add_argument("--columns", type=int, default=90)
    parser.add_argument("--unseen", type=int, default=0, help="leave the first replies out of the picture")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    settings = Settings(SamplingParams(), options.max_tokens, options.width)
    state = chat.load(models.Wanted(options.target, options.drafter), settings, None)
    recorder = Recorder(options.questions, settings, options.columns, options.unseen)
    chat.welcome(state, recorder, with_demo=False)
    chat.talk(state, recorder, debug=True)
    if len(state.replies) != len(options.questions):
        sys.exit("not every question was answered")
    options.out.write_text(picture(recorder.lines, "dflash-mlx chat", options.columns), encoding="utf-8")
    command = shlex.join(["python", "tools/chat_picture.py", *sys.argv[1:]])
    print(f"{options.out}: {state.opening.target}, {state.opening.device}; greedy. Recorded by `{command}`.")


if __name__ == "__main__":
    main()
