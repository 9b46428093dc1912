"""A drafter made for shorter texts than its target: said once, and it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fakes
import folders
import pytest
import tiny
from typer.testing import CliRunner

from dflash_mlx.cli.app import app
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Finished, Prefilled

LIMIT = 40
PROMPT = list(range(3, 23))


def pair(family: str = "llama", **config: Any) -> Pair:
    layers = {"layer_types": ["full_attention"] * 2, "max_position_embeddings": LIMIT}
    drafter = tiny.build_drafter(2, num_target_layers=4, **{**layers, **config})
    return fakes.pair_of(tiny.build(family), drafter, context_length=4096)


def reply(session: Session, prompt: list[int] = PROMPT, **options: Any) -> tuple[str | None, list[int]]:
    """The note, and the tokens."""
    note, tokens = None, []
    for event in session.generate(prompt, **options):
        if isinstance(event, Prefilled):
            note = event.note
        elif not isinstance(event, Finished):
            tokens += event.tokens
    return note, tokens


def test_it_is_said_once_and_the_text_is_the_targets() -> None:
    session = Session(pair())
    note, tokens = reply(session, max_tokens=60)
    assert note is not None
    assert note.startswith("the drafter was made for 40 tokens: beyond them it may draft worse")
    assert tokens == reply(Session(pair()), max_tokens=60, width=1)[1]
    assert len(PROMPT) + len(tokens) > LIMIT
    assert reply(session, [*PROMPT, *tokens, 7], max_tokens=20)[0] is None
    assert reply(Session(pair()), max_tokens=60)[0] == note  # another conversation


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {"max_tokens": 20}),  # 20 + 20 tokens
        ({}, {"max_tokens": 60, "width": 1}),  # nothing is drafted
        ({"max_position_embeddings": None}, {"max_tokens": 60}),
        # Positions further apart than the window are never compared.
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 40}, {"max_tokens": 60}),
    ],
)
def test_where_there_is_nothing_to_say(config: dict[str, Any], options: dict[str, Any]) -> None:
    assert reply(Session(pair(**config)), **options)[0] is None


def test_it_is_said_as_soon_as_it_can_be() -> None:
    assert reply(Session(pair()), max_tokens=21)[0] is not None
    wide = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 41}
    assert reply(Session(pair(**wide)), max_tokens=60)[0] is not None
    session = Session(pair())
    assert reply(session, max_tokens=1)[0] is None
    assert reply(session, [*PROMPT, 5], max_tokens=60)[0] is not None


def test_it_stands_beside_other_notes() -> None:
    drafter = tiny.build_drafter(
        2, num_target_layers=4, layer_types=["full_attention"] * 2, max_position_embeddings=LIMIT
    )
    both = fakes.pair_of(tiny.build("llama"), drafter, context_length=64)
    note, _ = reply(Session(both), max_tokens=60)
    assert note is not None
    assert note.startswith("only 44 more tokens fit into the model's context of 64; the drafter was made for")


def test_the_program_says_it(tmp_path: Path) -> None:
    folders.write_checkpoints(tmp_path)
    file = tmp_path / "dflash" / "config.json"
    raw = json.loads(file.read_text())
    raw |= {"max_position_embeddings": 16, "layer_types": ["full_attention"] * raw["num_hidden_layers"]}
    file.write_text(json.dumps(raw))
    names = [
        "--target",
        str(tmp_path / "target"),
        "--drafter",
        str(tmp_path / "dflash"),
        "--max-tokens",
        "24",
    ]
    said = "the drafter was made for 16 tokens: beyond them it may draft worse"
    result = CliRunner().invoke(app, ["generate", *names, "--prompt", "w10 w20"])
    assert result.exit_code == 0
    assert result.stderr.count(said) == 1
    result = CliRunner().invoke(app, ["chat", *names], input="w10 w20\nw11\n")
    assert result.exit_code == 0
    assert result.stderr.count("tok/s") == 2
    assert result.stderr.count(said) == 1
