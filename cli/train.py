"""`dflash-mlx train`: a file of prompts → a drafter for a target."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dflash_mlx.errors import UserError
from dflash_mlx.train.report import (
    Answered,
    Evaluated,
    Event,
    Note,
    Read,
    Saved,
    Started,
    Stepped,
    Stopped,
    Timed,
)
from dflash_mlx.train.settings import Answering, Optimisation, Settings, Shape

from . import console, interrupt, models, options, paths, train_view

if TYPE_CHECKING:
    pass

EXAMPLE = """Example:

\b
  dflash-mlx train -t ./Qwen3-8B-4bit --prompts prompts.jsonl \\
    --out ./Qwen3-8B-DFlash2
"""

INTERRUPTED = 130  # what a shell says of a program that SIGINT ended
LINES = 20  # step lines of a run where there is no terminal
_DATA, _SHAPE, _TRAINING = "Data", "Drafter", "Training"
_A, _S, _O, _R = Answering(), Shape(), Optimisation(), Settings()


def train(
    target: options.Target,
    prompts: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="A prompt per line; or, named .jsonl, JSON lines with `prompt`, `messages` or `text`.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="The drafter's folder to make.")],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Go on from a drafter, instead of making a new one."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="X", help="Stop in time, save, and say how to go on.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget an earlier run with this `--out`.")
    ] = False,
    temperature: Annotated[
        list[float],
        typer.Option(
            "--temperature",
            "--temp",
            metavar="X",
            help="The target answers every prompt at it; 0 is greedy; may be repeated.",
            rich_help_panel=_DATA,
        ),
    ] = [0.0],  # noqa: B006 (Typer's way to say: one)
    top_p: Annotated[
        float, typer.Option(metavar="X", help="Of sampled answers.", rich_help_panel=_DATA)
    ] = _A.top_p,
    top_k: Annotated[
        int, typer.Option(metavar="N", help="Of sampled answers; 0: all.", rich_help_panel=_DATA)
    ] = _A.top_k,
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", "-n", metavar="N", help="Longest answer.", rich_help_panel=_DATA),
    ] = _A.max_tokens,
    system: options.System = None,
    reasoning: options.Reasoning = None,
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where answers are kept for later runs.",
            show_default="the user's cache folder",
            rich_help_panel=_DATA,
        ),
    ] = None,
    held_out: Annotated[
        int,
        typer.Option(
            metavar="N", help="At most so many prompts are only measured on.", rich_help_panel=_DATA
        ),
    ] = _R.held_out,
    generation: Annotated[
        Literal["1", "2"],
        typer.Option(help="2 has convolutions and a path selector.", rich_help_panel=_SHAPE),
    ] = "2",
    layers: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="by target", help="Its layers.", rich_help_panel=_SHAPE),
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            metavar="I,J,...",
            show_default="spread evenly",
            help="Target layers that it reads, from 0.",
            rich_help_panel=_SHAPE,
        ),
    ] = None,
    block_size: Annotated[
        int, typer.Option(metavar="N", help="Largest width.", rich_help_panel=_SHAPE)
    ] = _S.block_size,
    mask_token: Annotated[
        int | None,
        typer.Option(metavar="ID", show_default="a reserved one", help="Unused id.", rich_help_panel=_SHAPE),
    ] = None,
    intermediate_size: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="by target", help="Of its MLPs.", rich_help_panel=_SHAPE),
    ] = None,
    selector_rank: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="by target", help="Of its tables.", rich_help_panel=_SHAPE),
    ] = None,
    sliding_window: Annotated[
        int, typer.Option(metavar="N", help="How far it sees; 0: everything.", rich_help_panel=_SHAPE)
    ] = _S.sliding_window,
    causal: Annotated[
        bool,
        typer.Option("--causal", help="Rows see their block up to themselves only.", rich_help_panel=_SHAPE),
    ] = False,
    epochs: Annotated[
        int, typer.Option(metavar="N", help="Times over the data.", rich_help_panel=_TRAINING)
    ] = _R.epochs,
    batch_size: Annotated[
        int, typer.Option(metavar="N", help="Sequences per pass.", rich_help_panel=_TRAINING)
    ] = _R.batch_size,
    accumulate: Annotated[
        int, typer.Option(metavar="N", help="Passes per update.", rich_help_panel=_TRAINING)
    ] = _R.accumulate,
    anchors: Annotated[
        int, typer.Option(metavar="N", help="Blocks per sequence.", rich_help_panel=_TRAINING)
    ] = _R.anchors,
    max_length: Annotated[
        int, typer.Option(metavar="N", help="Longer sequences are cut.", rich_help_panel=_TRAINING)
    ] = _R.max_length,
    optimizer: Annotated[
        Literal["adamw", "muon"],
        typer.Option(help="Muon is for matrices; the rest stays with AdamW.", rich_help_panel=_TRAINING),
    ] = _O.optimizer,
    learning_rate: Annotated[
        float,
        typer.Option("--learning-rate", "--lr", metavar="X", help="AdamW's.", rich_help_panel=_TRAINING),
    ] = _O.learning_rate,
    muon_rate: Annotated[
        float | None,
        typer.Option(
            "--muon-lr",
            metavar="X",
            help="Muon's.",
            show_default=str(_O.muon_rate),
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    floor: Annotated[
        float,
        typer.Option(metavar="X", help="Share of the rates at the end.", rich_help_panel=_TRAINING),
    ] = _O.floor,
    dtype: Annotated[
        Literal["bfloat16", "float32"] | None,
        typer.Option(
            help="Of the computation; weights and optimizer are float32.",
            show_default="by device",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    eval_every: Annotated[
        int,
        typer.Option(
            metavar="N",
            show_default="ten times",
            help="Steps between evaluations.",
            rich_help_panel=_TRAINING,
        ),
    ] = 0,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of weights, order, anchors, samples.", rich_help_panel=_TRAINING)
    ] = _R.seed,
    revision: options.Revision = None,
    force: options.Force = False,
    debug: options.Debug = False,
) -> None:
    """Train a DFlash drafter for a target, on this machine, on answers that the target writes itself.

    Ctrl-C saves; the same command again goes on.
    """
    settings = Settings(
        answering=Answering(tuple(temperature), top_p, top_k, max_tokens, seed, reasoning, system),
        shape=Shape(
            generation=1 if generation == "1" else 2,
            layers=layers,
            taps=_taps(taps),
            block_size=block_size,
            mask_token=mask_token,
            intermediate_size=intermediate_size,
            selector_rank=selector_rank,
            sliding_window=sliding_window,
            causal=causal,
        ),
        optimisation=_optimisation(optimizer, learning_rate, muon_rate, floor),
        epochs=epochs,
        batch_size=batch_size,
        accumulate=accumulate,
        anchors=anchors,
        max_length=max_length,
        dtype=dtype,
        held_out=held_out,
        eval_every=eval_every,
        seed=seed,
        minutes=minutes,
    )
    if source is not None and settings.shape != _S:
        raise UserError(
            "`--from` and options of the drafter's shape contradict each other", "leave the latter out"
        )
    pair = models.load(models.Wanted(target, plain=True, revision=revision, force=force), max_length)
    from dflash_mlx.hub import resolve
    from dflash_mlx.train.loop import train as run
    from dflash_mlx.train.run import Job

    job = Job(
        target=resolve(target, revision).folder,
        prompts=Path(prompts),
        out=Path(out),
        answers=paths.cache_folder() / "answers" if answers is None else Path(answers),
        settings=settings,
        source=None if source is None else resolve(source).folder,
        restart=restart,
    )
    with interrupt.deferred() as pressed, Teller() as teller:
        stopped = run(pair, job, teller.tell, pressed)
    if stopped.reason == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _optimisation(
    optimizer: Literal["adamw", "muon"], learning_rate: float, muon_rate: float | None, floor: float
) -> Optimisation:
    if optimizer != "muon" and muon_rate is not None:
        raise UserError("`--muon-lr` is of no use without Muon", "add `--optimizer muon`")
    muon_rate = _O.muon_rate if muon_rate is None else muon_rate
    return Optimisation(optimizer, learning_rate, muon_rate, floor=floor)


def _taps(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"`{text}` is not a list as in `1,9,17`", param_hint="--taps") from None


class Teller:
    """Shows events: bars on a terminal, some lines elsewhere; a context manager."""

    def __init__(self) -> None:
        self._bar = ExitStack()
        self._counter: Callable[[int, int, str], None] | None = None
        self._title = ""

    def __enter__(self) -> Teller:
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.close()

    def tell(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Note():
                console.note(event.text)
            case Answered():
                self._count("the target answers", event.done, event.total, f"{event.tokens:,} tokens")
            case Read():
                self._count("the target reads", event.done, event.total, "")
            case Started():
                console.note(train_view.started(event))
            case Stepped():
                self._step(event)
            case Timed():
                console.note(train_view.timed(event))
            case Evaluated():
                console.note(train_view.evaluated(event))
            case Saved():
                pass
            case Stopped():
                self._bar.close()
                console.note(train_view.stopped(event))

    def _step(self, event: Stepped) -> None:
        short = console.columns() < console.NARROW
        self._count("training", event.step, event.steps, train_view.stepped(event, short=short))
        if not console.live() and event.step % max(1, event.steps // LINES) == 0:
            console.note(f"step {event.step} of {event.steps}   {train_view.stepped(event)}")

    def _count(self, title: str, done: int, total: int, said: str) -> None:
        if title != self._title or self._counter is None:
            self._bar.close()
            self._counter = self._bar.enter_context(console.counting(title))
            self._title = title
        self._counter(done, total, said)
