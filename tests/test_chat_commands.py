"""The slash commands: each does what its line of help says, and a mistake is one sentence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import jinja2
import pytest
from chat_fakes import ScriptedSession, Watcher, chat_of

from dflash_mlx.cli import commands
from dflash_mlx.cli.commands import COMMANDS, Outcome, message_of
from dflash_mlx.cli.conversation import Exchange
from dflash_mlx.cli.turn import Chat
from dflash_mlx.errors import UserError


@pytest.fixture
def chat() -> Chat:
    return chat_of(ScriptedSession([["</think>Because."]]))


@pytest.fixture
def talked(chat: Chat) -> Chat:
    view = Watcher()
    chat.reply("Why?", view, view.pressed)
    return chat


def run(chat: Chat, line: str) -> str:
    """What a command shows."""
    outcome = commands.run(chat, line)
    return shown(outcome)


def shown(outcome: Outcome, width: int = 80) -> str:
    if outcome.show is None:
        return ""
    return outcome.show if isinstance(outcome.show, str) else outcome.show(width).plain


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Hi", "Hi"),
        (" /x", " /x"),
        ("//help", "/help"),
        ("///", "//"),
        ("/help", None),
        ("/", None),
        ("a/b", "a/b"),
    ],
)
def test_what_is_a_message(line: str, message: str | None) -> None:
    assert message_of(line) == message


def test_the_table_is_whole() -> None:
    names = [command.name for command in COMMANDS]
    wanted = "/help /reset /system /retry /width /plain /reasoning /temp /stats /model /save /load /exit"
    assert names == wanted.split()
    assert all(command.help and not command.help.endswith(".") for command in COMMANDS)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_help_has_every_command_and_fits(chat: Chat, width: int) -> None:
    text = shown(commands.run(chat, "/help"), width)
    assert max(map(len, text.splitlines())) <= width
    for command in COMMANDS:
        assert re.search(rf"^{command.name} {command.argument}", text, re.MULTILINE)
    assert "//text" in text


@pytest.mark.parametrize("line", ["/nope", "/", "/ help", "/helpme x"])
def test_an_unknown_one_lists_them(chat: Chat, line: str) -> None:
    with pytest.raises(UserError, match="there is no command") as raised:
        commands.run(chat, line)
    for command in COMMANDS:
        assert command.name in str(raised.value.hint)


def test_names_in_capitals_are_known(chat: Chat) -> None:
    assert commands.run(chat, "/EXIT").leave


def test_reset(talked: Chat) -> None:
    run(talked, "/system Be brief.")
    assert "system message stays" in run(talked, "/reset")
    assert talked.conversation.exchanges == []
    assert talked.conversation.system == "Be brief."
    assert len(talked.replies) == 1  # the table of this chat goes on


def test_system(chat: Chat) -> None:
    assert "no system message" in run(chat, "/system")
    run(chat, "/system Be brief.\nBe kind.")
    assert chat.conversation.system == "Be brief.\nBe kind."
    assert run(chat, "/system") == "Be brief.\nBe kind."
    run(chat, "/system -")
    assert chat.conversation.system is None


def test_a_system_message_that_the_template_refuses_changes_nothing(
    talked: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"

    def refuse(messages: Any, **_: Any) -> list[int]:
        jinja2.Template(template).render(messages=messages, raise_exception=raise_exception)
        return [1]

    def raise_exception(words: str) -> None:
        raise jinja2.TemplateError(words)

    monkeypatch.setattr(talked.pair.tokenizer, "apply_chat_template", refuse)
    with pytest.raises(UserError, match="refuses the conversation: no system"):
        commands.run(talked, "/system Be brief.")
    assert talked.conversation.system is None


def test_retry_asks_the_last_question_again(talked: Chat) -> None:
    outcome = commands.run(talked, "/retry")
    assert (outcome.ask, outcome.again) == ("Why?", True)
    assert "greedy" in shown(outcome)
    run(talked, "/temp 0.5")
    assert commands.run(talked, "/retry").show is None
    talked.settings.sampling = replace(talked.settings.sampling, seed=1)
    assert "a fixed seed" in run(talked, "/retry")


def test_retry_asks_what_was_not_answered_and_leaves_the_last_reply(talked: Chat) -> None:
    never = Watcher(press_after=0)
    talked.session.scripts.append(["a"])
    talked.reply("And?", never, never.pressed)
    outcome = commands.run(talked, "/retry")
    assert (outcome.ask, outcome.again, outcome.show) == ("And?", False, None)
    talked.session.scripts.append(["</think>So."])
    view = Watcher()
    talked.reply("And?", view, view.pressed)
    assert [exchange.answer for exchange in talked.conversation.exchanges] == ["Because.", "So."]
    assert commands.run(talked, "/retry").again
    talked.reset()
    with pytest.raises(UserError, match="no reply yet"):
        commands.run(talked, "/retry")


def test_width_and_plain(chat: Chat) -> None:
    assert "width 8" in run(chat, "/width")
    assert "width 3" in run(chat, "/width 3")
    assert chat.settings.asked_width == 3
    assert run(chat, "/plain") == "plain decoding"
    assert chat.settings.asked_width == 1
    assert "width 3" in run(chat, "/plain")
    run(chat, "/plain")
    run(chat, "/width 5")  # who asks for a width wants to draft
    assert chat.settings.asked_width == 5
    run(chat, "/width 1")
    assert run(chat, "/plain") == "drafting again, width 8"  # width 1 was plain already
    assert chat.settings.asked_width is None


def test_without_a_drafter_there_is_nothing_to_switch() -> None:
    chat = chat_of(ScriptedSession([]), plain=True)
    chat.pair = fakes.pair_of(None)
    assert "there is no drafter" in run(chat, "/width")
    run(chat, "/width 1")
    for line in ("/plain", "/width 2"):
        with pytest.raises(UserError, match="drafter"):
            commands.run(chat, line)
    assert chat.settings.asked_width == 1


def test_reasoning(chat: Chat) -> None:
    assert run(chat, "/reasoning") == "reasoning default; choices: off, on, default"
    run(chat, "/reasoning off")
    assert chat.settings.reasoning == "off"
    run(chat, "/reasoning default")
    assert chat.settings.reasoning is None


def test_a_template_without_a_switch_for_reasoning(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat.pair.tokenizer, "get_chat_template", lambda: "{{ messages }}", raising=False)
    with pytest.raises(UserError, match="no switch for reasoning"):
        commands.run(chat, "/reasoning off")


def test_temp(chat: Chat) -> None:
    assert run(chat, "/temp") == "temperature 0, greedy"
    assert run(chat, "/temp 0.7") == "temperature 0.7"
    assert chat.settings.sampling.temperature == 0.7


def test_stats_and_model(talked: Chat) -> None:
    assert "tok/s" in run(talked, "/stats")
    assert "DFlash 2   width 8" in run(talked, "/model")
    run(talked, "/plain")
    assert "plain decoding   width 1" in run(talked, "/model")


def test_save_and_load(talked: Chat, tmp_path: Path) -> None:
    path = tmp_path / "my talk.json"
    assert str(path) in run(talked, f"/save {path}")
    run(talked, "/save")  # the same file again
    run(talked, "/reset")
    assert "1 question" in run(talked, f"/load {path}")
    assert talked.conversation.exchanges == [Exchange("Why?", "Because.")]


def test_another_targets_conversation_is_told(talked: Chat, tmp_path: Path) -> None:
    run(talked, f"/save {tmp_path / 'talk'}")
    talked.pair = fakes.pair_of(None, target_name="another")
    assert "held with tiny" in run(talked, f"/load {tmp_path / 'talk'}")


def test_home_is_known(talked: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run(talked, "/save ~/talk")
    assert (tmp_path / "talk").exists()


@pytest.mark.parametrize(
    "line",
    [
        "/retry",
        "/width x",
        "/width 0",
        "/width 9",
        "/width 2.5",
        "/reasoning much",
        "/temp hot",
        "/temp -1",
        "/temp nan",
        "/temp inf",
        "/stats",
        "/save",
        "/save talk",
        "/load",
        "/load nowhere",
        "/load ~nobody-of-this-name/x",
        "/exit now",
        "/reset all",
        "/model x",
    ],
)
def test_mistakes_are_a_sentence_and_change_nothing(
    chat: Chat, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before: Any = (repr(chat.settings), repr(chat.conversation))
    with pytest.raises(UserError) as raised:
        commands.run(chat, line)
    assert not raised.value.message.endswith(".")
    assert raised.value.hint
    assert (repr(chat.settings), repr(chat.conversation)) == before
    assert list(tmp_path.iterdir()) == []


def test_a_load_that_fails_keeps_the_present_conversation(talked: Chat, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{}")
    with pytest.raises(UserError):
        commands.run(talked, f"/load {tmp_path / 'bad'}")
    assert talked.conversation.exchanges == [Exchange("Why?", "Because.")]
