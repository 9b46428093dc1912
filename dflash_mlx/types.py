"""The words of this package: options that go in, events that come out.

| word | meaning |
| --- | --- |
| target | the large model whose output is wanted; also runs the verify pass |
| drafter | the small block model; shares the target's embedding table and output head |
| anchor | the last committed token, not yet in the target's cache; slot 0 of a block |
| block, width `W` | anchor + `W-1` drafted tokens = rows of one verify pass; `W = 1` is plain decoding |
| context features | hidden states after the tapped target layers, concatenated: `[1, L, N*D]` |
| tap | a target layer whose output is recorded |
| candidates, path | top-K tokens per drafted position; one of each |
| accepted `n` | drafted tokens that the target keeps (0..W-1); a cycle commits `n + 1` |
| acceptance length τ | mean tokens committed per verify pass, bonus included, over cycles with W >= 2 |
| rollback | dropping the rejected rows from the target's state |

Letters for shapes: `L` length of this call, `S` context length, `W` width, `K` candidates, `D` hidden,
`H` heads, `N` taps, `V` vocabulary, `R` selector rank.

This module knows nothing of MLX: importing it is instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dflash_mlx.errors import UserError

_INFINITY = float("inf")
_LARGEST = 1e4  # added to logits: far beyond any of them, and far from what float32 cannot hold
_RANGES = (
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("top_k", 0, 2**31 - 1),
    ("repetition_penalty", 1e-3, 1e3),
    ("presence_penalty", -_LARGEST, _LARGEST),
    ("frequency_penalty", -_LARGEST, _LARGEST),
    ("penalty_context", 1, 2**31 - 1),
)

FinishReason = Literal["stop", "length", "interrupted"]
Method = Literal["dflash2", "dflash", "plain"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen: mlx-lm's options under mlx-lm's names, in its order.

    Attributes:
        temperature: 0 is greedy: the argmax after bias and penalties; the filters are ignored.
        top_p: Nucleus mass in (0, 1]; 1 (or 0) is off.
        min_p: Least probability relative to the most likely token, in [0, 1]; 0 is off.
        top_k: Number of most likely tokens to keep; 0 is off.
        repetition_penalty: Divides positive and multiplies negative logits of recent tokens; 1 is off.
        presence_penalty: Subtracted once from the logit of each recent token; 0 is off.
        frequency_penalty: Subtracted from the logit of a recent token per occurrence; 0 is off.
        penalty_context: How many last tokens (prompt included) count as recent.
        logit_bias: Added to the raw logits, by token id; -inf bans a token.
        seed: Makes the reply a function of seed, prompt and target: the same at every width, with another
            drafter, or plain (but for rounding). None: fresh randomness, and a little more drafts accepted.

    Raises:
        UserError: A value is outside its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_context: int = 20
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature and not 1e-6 <= self.temperature <= _LARGEST:  # below, 1 / T overflows float32
            raise UserError(f"`temperature` is {self.temperature}, not 0 (greedy) and not in [1e-06, 10000]")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # a NaN compares false
                raise UserError(f"`{name}` is {value}, outside [{low:g}, {high:g}]")
        for name in ("top_k", "penalty_context", "seed"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UserError(f"`{name}` is {value!r}, not a whole number")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UserError(f"`seed` is {self.seed}, outside [0, 2**64)")
        for token, bias in self.logit_bias.items():
            if not isinstance(token, int) or isinstance(token, bool):
                raise UserError(f"`logit_bias` names {token!r}, which is no token id")
            if not bias <= _LARGEST:  # -inf bans a token, which is fine
                raise UserError(f"`logit_bias` of token {token} is {bias}", f"use at most {_LARGEST:g}")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # the caller's may change

    @property
    def greedy(self) -> bool:
        """True if no random number is ever drawn."""
        return self.temperature == 0


@dataclass(frozen=True)
class Stats:
    """What really ran, measured. Field names are those of the `--json` line.

    Attributes:
        method: "plain" if no verify pass of width 2 or more was run.
        width: The width asked for; cycles near `max_tokens` may be narrower.
        prompt_tokens: Tokens of the prompt; `reused_tokens` of them were not computed again.
        generated_tokens: First token + tokens of all cycles + plain steps.
        cycles: Verify passes with width >= 2.
        plain_steps: Pipelined one-row steps after the first token.
        acceptance_length: τ, bonus token included, over `cycles`; None without any.
        accepted_histogram: How many cycles kept n drafted tokens, index n.
        prefill_seconds: Prompt pass without its last token.
        first_token_seconds: From the start to the first token on the host.
        decode_seconds: From the first token on. Of the time that the consumer of the events takes, only what
            the device needed meanwhile counts (`metrics.Overlap`).
        tokens_per_second: Tokens after the first one per `decode_seconds`; 0 if there are none.
        plain_tokens_per_second: Plain decoding, at the context length of the end: with width 1 that is
            `tokens_per_second`, else what plain steps between cycles have shown, in this run or earlier in
            its session; None if it was not measured.
        dtype: Of the target's activations, with a note where the weights were changed at load.
        blas: On a CPU, the library behind float32 products; None on a GPU.
    """

    method: Method
    target: str
    drafter: str | None
    width: int | Literal["auto"]
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    cycles: int
    plain_steps: int
    acceptance_length: float | None
    accepted_histogram: tuple[int, ...]
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    tokens_per_second: float
    plain_tokens_per_second: float | None
    peak_memory_bytes: int
    device: str
    dtype: str
    blas: str | None


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in the caches; `note` says in words what a user should know of it."""

    prompt_tokens: int
    reused_tokens: int
    seconds: float
    note: str | None


@dataclass(frozen=True)
class Block:
    """Tokens committed by one verify pass, or by plain steps (`width` 1).

    Plain steps are one token each; several are in one block where they were measured together.
    `text` is what became readable with these tokens: it may lag behind them (half a character, the
    beginning of a stop string) and never has to be taken back.
    """

    tokens: tuple[int, ...]
    text: str
    width: int
    accepted: int
    seconds: float


@dataclass(frozen=True)
class Finished:
    """The last event of a generation that was not closed early."""

    reason: FinishReason
    stats: Stats


Event = Prefilled | Block | Finished
