"""What chat keeps: exchanges, settings, and conversations in files that nobody has to trust."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.cli import saved
from dflash_mlx.cli.conversation import Conversation, Exchange, Settings
from dflash_mlx.errors import UserError


def talk() -> Conversation:
    return Conversation("Be brief.", [Exchange("Why?", "Because.", "Hm."), Exchange("Really?", "Yes.")])


def test_the_template_gets_everything_and_the_question_last() -> None:
    assert talk().messages("So?") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because.", "reasoning_content": "Hm."},
        {"role": "user", "content": "Really?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "So?"},
    ]
    assert Conversation().messages("Hi") == [{"role": "user", "content": "Hi"}]


def test_asking_changes_nothing_until_there_is_an_answer() -> None:
    conversation = talk()
    conversation.messages("So?")
    conversation.messages("Really?", again=True)
    assert conversation == talk()


def test_a_retry_takes_the_place_of_the_last_exchange() -> None:
    conversation = talk()
    question = conversation.last_question
    assert conversation.messages(question, again=True) == talk().messages("")[:-3] + [
        {"role": "user", "content": "Really?"}
    ]
    conversation.add(Exchange(question, "No."), again=True)
    assert conversation.exchanges == [talk().exchanges[0], Exchange("Really?", "No.")]


def test_a_retry_needs_a_question() -> None:
    with pytest.raises(UserError, match="no reply yet"):
        _ = Conversation().last_question


def test_a_reset_keeps_the_system_message_and_forgets_the_file(tmp_path: Path) -> None:
    conversation = talk()
    saved.save(conversation, tmp_path / "a", "T")
    conversation.reset()
    assert conversation == Conversation("Be brief.")
    conversation.add(Exchange("x", "y"))
    with pytest.raises(UserError, match="exists already"):
        saved.save(conversation, tmp_path / "a", "T")


def test_plain_beats_a_width() -> None:
    assert Settings(width=4, plain=True).asked_width == 1
    assert Settings(width=4).asked_width == 4
    assert Settings().asked_width is None


# ---- files -----------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.none() | TEXT, st.lists(st.builds(Exchange, TEXT, TEXT, TEXT)))
def test_what_is_saved_is_loaded(
    tmp_path_factory: Any, system: str | None, exchanges: list[Exchange]
) -> None:
    path = tmp_path_factory.mktemp("saved") / "talk.json"
    conversation = Conversation(system, exchanges)
    saved.save(conversation, path, "some/target")
    found = saved.load(path)
    assert found.target == "some/target"
    assert found.conversation == Conversation(system, exchanges, path)
    assert [entry.name for entry in path.parent.iterdir()] == ["talk.json"]


def test_a_file_that_this_conversation_was_saved_to_or_loaded_from_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    saved.save(talk(), path, "T")
    loaded = saved.load(path).conversation
    loaded.add(Exchange("More?", "No."))
    saved.save(loaded, path, "T")
    saved.save(loaded, path, "T")
    assert len(saved.load(path).conversation.exchanges) == 3


def test_another_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        saved.save(talk(), path, "T")
    assert path.read_text() == "mine"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: Any) -> None:
    conversation = talk()
    saved.save(conversation, tmp_path / "a", "T")
    before = (tmp_path / "a").read_bytes()
    conversation.add(Exchange("x", "y"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        saved.save(conversation, tmp_path / "a", "T")
    assert (tmp_path / "a").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["nowhere/talk.json", "x" * 300, "nul\0", "."])
def test_places_where_nothing_can_be_written(tmp_path: Path, name: str) -> None:
    conversation = talk()
    with pytest.raises(UserError):
        saved.save(conversation, tmp_path / name, "T")
    assert conversation.file is None
    with pytest.raises(UserError):
        saved.load(tmp_path / name)


def document(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"version": 1, "target": "T", "messages": list(messages), **fields}


USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
        ("[]", "no JSON object"),
        ({}, "version None"),
        (document(version=2), "version 2"),
        (document(target=1), "no `target`"),
        (document(messages={}), "no `messages`"),
        (document(USER), "no answer"),
        (document(ASSISTANT, USER), "message 1 is not one of `user`"),
        (document(USER, USER), "message 2 is not one of `assistant`"),
        (document({"role": "system", "content": "s"}, ASSISTANT, USER), "message 2 is not one of `user`"),
        (document({"role": "system", "content": 3}), "`content` of message 1 is no text"),
        (document(USER, {"role": "assistant"}), "`content` of message 2 is no text"),
        (
            document(USER, {**ASSISTANT, "reasoning_content": []}),
            "`reasoning_content` of message 2 is no text",
        ),
        (document(USER, {**ASSISTANT, "content": "\ud800"}), "no text"),
        (document(USER, "b"), "message 2 is not one of `assistant`"),
    ],
)
def test_files_that_hold_no_conversation(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "talk.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=words) as raised:
        saved.load(path)
    assert raised.value.hint


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is no file"):
        saved.load(tmp_path / "pipe")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(saved.LARGEST_BYTES + 1)
    with pytest.raises(UserError, match="larger"):
        saved.load(tmp_path / "huge")
