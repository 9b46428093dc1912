"""Options that commands share, each declared once.

The sampling options have the names of `SamplingParams`' fields; a new one is a field there and a line in
`SAMPLING` here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal

import typer

from dflash_mlx.errors import UserError
from dflash_mlx.types import SamplingParams

DEBUG = "dflash_mlx.debug"  # key of a context's `meta`

_PANEL, _MODELS = "Sampling", "Models"


def _remember_debug(context: typer.Context, value: bool) -> bool:
    # `meta` is shared by the contexts of all commands of one call: either place of the option will do.
    context.meta[DEBUG] = value or context.meta.get(DEBUG, False)
    return value


Target = Annotated[
    str,
    typer.Option(
        "--target", "-t", metavar="MODEL", help="The model whose text you want: folder or repository."
    ),
]
ChatTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="MODEL",
        help="The model to chat with: folder or repository.",
        show_default="the demo pair",
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        "-d",
        metavar="MODEL",
        help="A DFlash drafter that fits the target: folder or repository.",
        show_default="the published one",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision",
        metavar="REV",
        help="Branch, tag or commit of the target's repository.",
        rich_help_panel=_MODELS,
    ),
]
DrafterRevision = Annotated[
    str | None,
    typer.Option(
        "--drafter-revision",
        metavar="REV",
        help="Branch, tag or commit of the drafter's repository.",
        rich_help_panel=_MODELS,
    ),
]
DrafterBits = Annotated[
    Literal["16", "8", "4"] | None,
    typer.Option(
        "--drafter-bits",
        help="Quantize a published drafter once, and keep the copy; 16: take it as it is.",
        show_default="4",
        rich_help_panel=_MODELS,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Load even what does not seem to fit into memory.", rich_help_panel=_MODELS),
]
Reasoning = Annotated[
    str | None,
    typer.Option(
        "--reasoning",
        metavar="LEVEL",
        help="How much the model thinks first: off, on, or a level that its chat template has.",
        show_default="the model's own",
    ),
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message.")]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", metavar="N", min=1, help="Stop after N tokens.")
]
Width = Annotated[
    int | None,
    typer.Option(
        "--width",
        metavar="N",
        min=1,
        help="Rows of a verify pass, up to the drafter's block size; 1 decodes plainly.",
        show_default="by target",
    ),
]
Stop = Annotated[
    list[str],
    typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated.", show_default=False),
]
Plain = Annotated[bool, typer.Option("--plain", help="Decode without a drafter.")]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as text: no chat template.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON with text, tokens and statistics.")
]
Debug = Annotated[bool, typer.Option("--debug", callback=_remember_debug, help="Show tracebacks of errors.")]

SAMPLING: dict[str, Any] = {
    "temperature": Annotated[
        float,
        typer.Option("--temperature", "--temp", metavar="X", help="0 is greedy.", rich_help_panel=_PANEL),
    ],
    "top_p": Annotated[
        float,
        typer.Option(metavar="X", help="Keep the likeliest tokens up to this mass.", rich_help_panel=_PANEL),
    ],
    "min_p": Annotated[
        float,
        typer.Option(
            metavar="X", help="Least probability, relative to the likeliest token's.", rich_help_panel=_PANEL
        ),
    ],
    "top_k": Annotated[
        int, typer.Option(metavar="N", help="Keep the N likeliest tokens; 0: all.", rich_help_panel=_PANEL)
    ],
    "repetition_penalty": Annotated[
        float, typer.Option(metavar="X", help="Divides logits of recent tokens.", rich_help_panel=_PANEL)
    ],
    "presence_penalty": Annotated[
        float,
        typer.Option(metavar="X", help="Subtracted from logits of recent tokens.", rich_help_panel=_PANEL),
    ],
    "frequency_penalty": Annotated[
        float, typer.Option(metavar="X", help="The same, per occurrence.", rich_help_panel=_PANEL)
    ],
    "penalty_context": Annotated[
        int, typer.Option(metavar="N", help="How many tokens are recent.", rich_help_panel=_PANEL)
    ],
    "logit_bias": Annotated[
        list[str],
        typer.Option(
            metavar="ID=X",
            help="Added to the logit of a token id; may be repeated.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "seed": Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Makes sampling repeatable.", show_default=False, rich_help_panel=_PANEL
        ),
    ],
}


def debugging(context: typer.Context) -> bool:
    """True if tracebacks are wanted."""
    return bool(context.meta.get(DEBUG))


def check_plain(
    plain: bool,
    *,
    drafter: str | None,
    drafter_revision: str | None,
    drafter_bits: str | None,
    width: int | None,
) -> None:
    """Refuse options of a drafter beside `--plain`.

    Raises:
        UserError: They contradict each other.
    """
    drafting = {
        "--drafter": drafter,
        "--drafter-revision": drafter_revision,
        "--drafter-bits": drafter_bits,
        "--width": None if width == 1 else width,
    }
    for option, value in drafting.items():
        if plain and value is not None:
            raise UserError(
                f"`--plain` and `{option} {value}` contradict each other",
                "plain decoding has no drafter and width 1; leave one of them out",
            )


def sampling_params(*, logit_bias: Sequence[str] = (), **options: Any) -> SamplingParams:
    """The options of `SAMPLING`, as the command line gave them.

    Raises:
        UserError: A value is outside its range.
        typer.BadParameter: A `--logit-bias` cannot be read.
    """
    return SamplingParams(logit_bias=_bias(logit_bias), **options)


def with_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the options of `SAMPLING` in place of its parameter `sampling: SamplingParams`."""
    signature = inspect.signature(command, eval_str=True)
    defaults = {f.name: f.default for f in fields(SamplingParams)}
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if defaults[name] is MISSING else defaults[name],
            annotation=annotation,
        )
        for name, annotation in SAMPLING.items()
    ]
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != "sampling"
    ]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        options = {name: given.pop(name) for name in SAMPLING}
        command(**given, sampling=sampling_params(**options))

    parameters = [*kept, *added]
    # Typer reads both.
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _bias(entries: Sequence[str]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            key, amount = int(token), float(value)
        except ValueError:
            raise typer.BadParameter(
                f"`{entry}` is not ID=X, as in `42=-5`", param_hint="--logit-bias"
            ) from None
        if key in bias:
            raise typer.BadParameter(f"token {key} is given twice", param_hint="--logit-bias")
        bias[key] = amount
    return bias
