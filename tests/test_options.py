"""The sampling options of the command line are the fields of `SamplingParams`."""

from __future__ import annotations

from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from dflash_mlx.cli import options
from dflash_mlx.errors import UserError
from dflash_mlx.types import SamplingParams


@pytest.fixture
def seen() -> list[SamplingParams]:
    return []


@pytest.fixture
def app(seen: list[SamplingParams]) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @options.with_sampling
    def command(*, sampling: SamplingParams) -> None:
        seen.append(sampling)

    return app


def test_names_and_order_are_those_of_the_fields() -> None:
    assert list(options.SAMPLING) == [field.name for field in fields(SamplingParams)]


def test_defaults_are_those_of_the_fields(app: typer.Typer, seen: list[SamplingParams]) -> None:
    assert CliRunner().invoke(app, []).exit_code == 0
    assert seen == [SamplingParams()]


def test_every_option_reaches_its_field(app: typer.Typer, seen: list[SamplingParams]) -> None:
    words = (
        "--temperature 0.7 --top-p 0.9 --min-p 0.05 --top-k 40 --repetition-penalty 1.1"
        " --presence-penalty 0.2 --frequency-penalty -0.3 --penalty-context 64"
        " --logit-bias 5=-2.5 --logit-bias 7=1e2 --seed 11"
    )
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    assert seen == [SamplingParams(0.7, 0.9, 0.05, 40, 1.1, 0.2, -0.3, 64, {5: -2.5, 7: 100.0}, 11)]


def test_the_short_name_of_the_temperature(app: typer.Typer, seen: list[SamplingParams]) -> None:
    assert CliRunner().invoke(app, ["--temp", "0.5"]).exit_code == 0
    assert seen[0].temperature == 0.5


@pytest.mark.parametrize("entries", [["5"], ["=1"], ["a=1"], ["5=x"], ["5=1", "5=2"]])
def test_a_bias_that_cannot_be_read_is_wrong_usage(app: typer.Typer, entries: list[str]) -> None:
    words = [word for entry in entries for word in ("--logit-bias", entry)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "--logit-bias" in result.output


@pytest.mark.parametrize("words", [{"temperature": -1.0}, {"top_p": float("nan")}, {"seed": -1}])
def test_values_outside_their_range(words: dict[str, float]) -> None:
    with pytest.raises(UserError):
        options.sampling_params(**words)
