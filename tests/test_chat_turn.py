"""One turn: what is asked of the engine, what is kept of its reply, however it ends."""

from __future__ import annotations

import pytest
from chat_fakes import ScriptedSession, Watcher, chat_of

from dflash_mlx.cli.conversation import Exchange
from dflash_mlx.cli.turn import MEMORY, PLAIN_SHARE, Window, window_of
from dflash_mlx.errors import UserError
from dflash_mlx.types import SamplingParams

THOUGHT = ["Hm.", "</thi", "nk>\n\n", "Yes", "."]


def test_thinking_and_answer_are_told_apart_and_kept_apart() -> None:
    session, view = ScriptedSession([THOUGHT]), Watcher()
    chat = chat_of(session)
    reply = chat.reply("Why?", view, view.pressed)
    assert (view.text("thinking"), view.text("answer")) == ("Hm.", "Yes.")
    assert chat.conversation.exchanges == [Exchange("Why?", "Yes.", "Hm.")]
    assert (reply.kept, reply.reason, reply.cut, reply.empty) == (True, "stop", False, False)
    assert len(chat.replies) == 1
    assert view.ended == chat.replies


def test_what_the_engine_is_asked() -> None:
    session, view = ScriptedSession([["a"], ["b"]]), Watcher()
    chat = chat_of(session, sampling=SamplingParams(temperature=0.5), max_tokens=7, width=4)
    chat.conversation.system = "S"
    chat.reply("Why?", view, view.pressed)
    asked = session.asked[0]
    assert asked["prompt"] == "[system]S[user]Why?[assistant]<think>\n"
    assert asked["snapshot_at"] == [len("[system]S[user]Why?")]
    assert (asked["max_tokens"], asked["width"], asked["plain_share"]) == (7, 4, PLAIN_SHARE)
    assert asked["sampling"] == SamplingParams(temperature=0.5)
    chat.settings.plain, chat.settings.show_stats, chat.settings.reasoning = True, False, "off"
    chat.reply("So?", view, view.pressed)
    asked = session.asked[1]
    assert asked["prompt"] == "[system]S[user]Why?[assistant][user]So?[assistant]"
    assert (asked["width"], asked["plain_share"]) == (1, 0.0)


def test_a_seed_repeats_a_reply_so_nothing_is_measured_then() -> None:
    session, view = ScriptedSession([["a"], ["b"]]), Watcher()
    chat = chat_of(session, sampling=SamplingParams(temperature=1.0, seed=3))
    chat.reply("Why?", view, view.pressed)
    chat.settings.sampling = SamplingParams(seed=3)  # greedy: nothing is drawn
    chat.reply("Why?", view, view.pressed)
    assert [asked["plain_share"] for asked in session.asked] == [0.0, PLAIN_SHARE]


def test_the_numbers_are_the_engines() -> None:
    session, view = ScriptedSession([["ab", "cd", "ef"]]), Watcher()
    chat_of(session).reply("Why?", view, view.pressed)
    # The first block is the first token's; then 3 and 5 tokens after the first in 0.5 and 1 s.
    assert view.rates[:3] == [None, 6.0, 5.0]


def test_an_interrupted_reply_is_kept_as_far_as_it_came() -> None:
    session, view = ScriptedSession([["Hm.</think>", "Yes", ", but", " no"]]), Watcher(press_after=2)
    chat = chat_of(session)
    reply = chat.reply("Why?", view, view.pressed)
    assert (reply.kept, reply.reason) == (True, "interrupted")
    assert chat.conversation.exchanges == [Exchange("Why?", "Yes", "Hm.")]
    assert view.ended == chat.replies


def test_a_second_ctrl_c_keeps_it_too() -> None:
    session, view = ScriptedSession([["</think>Ye"]], fails=KeyboardInterrupt()), Watcher()
    chat = chat_of(session)
    reply = chat.reply("Why?", view, view.pressed)
    assert (reply.kept, reply.reason) == (True, "interrupted")
    assert chat.conversation.exchanges == [Exchange("Why?", "Ye")]
    assert view.ended == [None]


def test_a_failure_keeps_it_too_and_is_raised() -> None:
    session, view = ScriptedSession([["</think>Ye", "s</thi"]], fails=RuntimeError("no memory")), Watcher()
    chat = chat_of(session)
    with pytest.raises(RuntimeError):
        chat.reply("Why?", view, view.pressed)
    assert chat.conversation.exchanges == [Exchange("Why?", "Yes</thi")]  # the beginning of a mark was none


def test_stopped_before_anything_was_said_nothing_is_kept() -> None:
    session, view = ScriptedSession([["a"]], chunks=4), Watcher(press_after=0)
    chat = chat_of(session)
    reply = chat.reply("Why?", view, view.pressed)
    assert (reply.kept, reply.reason) == (False, "interrupted")
    assert chat.conversation.exchanges == []
    assert chat.replies == []


def test_a_reply_without_a_word_is_one() -> None:
    session, view = ScriptedSession([["</think>"]]), Watcher()
    chat = chat_of(session)
    reply = chat.reply("Why?", view, view.pressed)
    assert (reply.kept, reply.empty) == (True, True)
    assert chat.conversation.exchanges == [Exchange("Why?", "")]


def test_a_retry_loses_the_old_reply_only_when_there_is_a_new_one() -> None:
    session, view = ScriptedSession([["</think>one"], ["</think>two"], ["</think>three"]]), Watcher()
    chat = chat_of(session)
    chat.reply("Why?", view, view.pressed)
    never = Watcher(press_after=0)
    chat.reply("Why?", never, never.pressed, again=True)
    assert chat.conversation.exchanges == [Exchange("Why?", "one")]
    chat.reply("Why?", view, view.pressed, again=True)
    assert chat.conversation.exchanges == [Exchange("Why?", "three")]
    assert session.asked[2]["prompt"] == session.asked[0]["prompt"]


def test_a_long_prompt_tells_how_far_it_is_read() -> None:
    session, view = ScriptedSession([["a"]], chunks=4), Watcher()
    chat_of(session).reply("Why?" * 25, view, view.pressed)
    total = len(session.asked[0]["prompt"])
    assert view.read == [(done, total) for done in (0, total // 4, total // 2, 3 * total // 4)]


# ---- the window ------------------------------------------------------------------------------------------


def test_a_reply_never_goes_beyond_the_window() -> None:
    session, view = ScriptedSession([["a"]], reason="length"), Watcher()
    chat = chat_of(session, Window(100, "the model's context"), max_tokens=500)
    reply = chat.reply("Why?", view, view.pressed)
    assert session.asked[0]["max_tokens"] == 100 - len(session.asked[0]["prompt"])
    assert not reply.cut  # it is the window's end, not that of `max_tokens`
    chat.settings.max_tokens = 1
    session.scripts.append(["a"])
    assert chat.reply("Why?", view, view.pressed, again=True).cut


def test_each_mark_of_the_window_is_told_once() -> None:
    session, view = ScriptedSession([["</think>" + "x" * 12], ["x"], ["x"], ["x" * 20]]), Watcher()
    chat = chat_of(session, Window(75, "the model's context"))
    told = []
    for question in ("Why?" * 5, "a", "a", "a"):
        chat.reply(question, view, view.pressed, again=question == "a")
        warning = chat.warning()
        told.append(None if warning is None else warning.plain)
        assert chat.warning() is None
    assert told[0] is not None
    assert told[0].startswith("86% of the context window is used: 65 of 75 tokens")
    assert told[1] is None
    chat.reset()
    session.scripts.append(["</think>" + "x" * 30])
    chat.reply("Why?" * 5, view, view.pressed)
    full = chat.warning()
    assert full is not None
    assert "is full" in full.plain
    assert "/reset" in full.plain
    session.scripts.append(["</think>" + "x" * 30])
    chat.reply("Why?" * 5, view, view.pressed, again=True)
    again = chat.warning()  # this one was cut as well
    assert again is not None
    assert again.plain == full.plain


def test_memory_is_named_where_it_is_what_ends() -> None:
    session, view = ScriptedSession([["</think>" + "x" * 12]]), Watcher()
    chat = chat_of(session, Window(75, MEMORY))
    chat.reply("Why?" * 5, view, view.pressed)
    warning = chat.warning()
    assert warning is not None
    assert warning.plain.endswith(f"{MEMORY} sets the limit")


@pytest.mark.parametrize("said_before", [True, False])
def test_a_prompt_that_fills_the_window_is_refused_and_nothing_is_lost(said_before: bool) -> None:
    session, view = ScriptedSession([["a"], ["b"]]), Watcher()
    chat = chat_of(session, Window(60, "the model's context"))
    if said_before:
        chat.reply("Why?", view, view.pressed)
    before = list(chat.conversation.exchanges)
    with pytest.raises(UserError, match=r"context is full: .* 60 fit") as raised:
        chat.reply("x" * 60, view, view.pressed)
    assert ("/reset" in str(raised.value.hint)) == said_before
    assert chat.conversation.unanswered == "x" * 60
    assert chat.conversation.exchanges == before
    assert len(session.asked) == said_before


def test_the_window_is_the_smaller_of_context_and_memory() -> None:
    import fakes

    assert window_of(fakes.pair_of(None, context_length=None), force=False) is None
    assert window_of(fakes.pair_of(None), force=False) == Window(4096, "the model's context")
    tight = fakes.pair_of(None, memory_context=1024)
    assert window_of(tight, force=False) == Window(1024, MEMORY)
    assert window_of(tight, force=True) == Window(4096, "the model's context")
