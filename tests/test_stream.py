"""Text is shown once: no half characters, no part of a stop string, whatever the block borders."""

from __future__ import annotations

import fakes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.stream import Ending, TextStream


def feed(tokens: bytes, stop: list[str], borders: list[int]) -> tuple[list[str], Ending]:
    """All pieces shown when the tokens arrive in blocks of the given sizes."""
    text = TextStream(fakes.ByteTokenizer().detokenizer, stop)
    ending = Ending({0}, text, len(tokens))
    shown, rest = [], list(tokens)
    while ending.reason is None:
        size = borders.pop(0) if borders else 1
        block, rest = rest[:size], rest[size:]
        ending.keep(block)
        shown.append(text.take() if ending.reason is None else text.finish())
    return shown, ending


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="abcé🙂 \n", max_size=30),
    st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 9), max_size=20),
)
def test_any_text_in_any_blocks(text: str, stop: list[str], borders: list[int]) -> None:
    shown, ending = feed(text.encode() + b"\0", stop, borders)
    ends = [(text.index(string) + len(string), -len(string)) for string in stop if string in text]
    if ends:
        end, length = min(ends)  # the first to be complete; of those, the longest
        assert "".join(shown) == text[: end + length]
    else:
        assert "".join(shown) == text
    assert "\ufffd" not in "".join(shown)
    assert ending.reason == "stop"


def test_an_unfinished_character_is_never_shown() -> None:
    shown, ending = feed("a🙂".encode()[:-1], [], [2, 2])
    assert "".join(shown) == "a"
    assert ending.reason == "length"


def test_what_might_be_a_stop_string_is_held_back_and_then_shown() -> None:
    shown, _ = feed(b"one<en\0", ["<end>"], [1] * 20)
    assert shown == ["o", "n", "e", "", "", "", "<en"]
    shown, ending = feed(b"one<end>two\0", ["<end>"], [4, 3, 3])
    assert shown == ["one", "", ""]
    assert ending.reason == "stop"


@pytest.mark.parametrize(
    ("tokens", "kept", "reason"), [(b"ab\0cd", 3, "stop"), (b"abcdefg", 5, "length"), (b"abc", 3, None)]
)
def test_keep(tokens: bytes, kept: int, reason: str | None) -> None:
    ending = Ending({0}, TextStream(fakes.ByteTokenizer().detokenizer), 5)
    assert ending.keep(list(tokens)) == kept
    assert ending.reason == reason


def test_stop_at_the_last_token_is_a_stop() -> None:
    ending = Ending({0}, TextStream(fakes.ByteTokenizer().detokenizer), 2)
    assert ending.keep([65, 0]) == 2
    assert ending.reason == "stop"
