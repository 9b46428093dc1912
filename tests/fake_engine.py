"""An engine without a model, for tests of the command line.

`install` puts it where `generate` looks; `python tests/fake_engine.py SCENARIO ARGUMENT...` runs the program
with it in a process of its own. Scenarios: `hello`, `note`, `bug`, `endless` (until cancelled), `deaf` (for
ever, asks nobody); all but `hello` and `bug` begin with a note.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dflash_mlx.errors import UserError
from dflash_mlx.types import Block, Event, Finished, FinishReason, Prefilled, SamplingParams, Stats

CONFIG_FOLDER = Path(__file__).parent / "data" / "golden" / "01_dflash1_full"

STATS = Stats(
    method="dflash2",
    target="target",
    drafter="drafter",
    width=4,
    prompt_tokens=3,
    reused_tokens=0,
    generated_tokens=5,
    cycles=1,
    plain_steps=0,
    acceptance_length=4.0,
    accepted_histogram=(0, 0, 0, 1),
    prefill_seconds=0.1,
    first_token_seconds=0.12,
    decode_seconds=0.05,
    tokens_per_second=80.0,
    plain_tokens_per_second=None,
    peak_memory_bytes=1_230_000_000,
    device="cpu",
    dtype="float32",
    blas="OpenBLAS 0.3.21",
)


class Tokenizer:
    """Characters; a chat template that marks roles."""

    has_chat_template = True
    bos_token = "^"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"
        return [ord(character) for character in text]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in ("^" if add_special_tokens else "") + text]


def resolved(name: str) -> SimpleNamespace:
    """A local folder."""
    return SimpleNamespace(name=name, folder=CONFIG_FOLDER, commit=None, complete=True)


@dataclass(frozen=True)
class Found:
    """What stands for `dflash_mlx.sources.Sources`."""

    target: SimpleNamespace
    drafter: SimpleNamespace | None
    entry: None = None

    def fetch(self, hub: Any) -> Found:
        return self


@dataclass
class Engine:
    """What was asked of it, and what it answers."""

    scenario: str = "hello"
    loaded: tuple[str, str | None] | None = None
    looked: dict[str, Any] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""
    sampling: SamplingParams | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def look(self, target: str, drafter: str | None = None, **options: Any) -> SimpleNamespace:
        if target == "missing":
            raise UserError("there is no folder `missing`", "check the path")
        self.looked = options
        return Found(resolved(target), None if drafter is None else resolved(drafter))

    def check_download(self, target: SimpleNamespace, hub: Any) -> None:
        """Everything fits."""

    def load_pair(self, target: Any, drafter: Any, **options: Any) -> SimpleNamespace:
        self.loaded = (target.name, None if drafter is None else drafter.name)
        self.load = options
        return SimpleNamespace(tokenizer=Tokenizer())

    def stream_generate(
        self,
        pair: SimpleNamespace,
        prompt: list[int],
        sampling: SamplingParams,
        *,
        cancelled: Callable[[], bool],
        **arguments: Any,
    ) -> Iterator[Event]:
        self.prompt = "".join(map(chr, prompt))
        self.sampling = sampling
        self.arguments = arguments
        return self._events(cancelled)

    def _events(self, cancelled: Callable[[], bool]) -> Iterator[Event]:
        yield Prefilled(3, 0, 0.1, None if self.scenario in ("hello", "bug") else "a note")
        if self.scenario == "bug":
            raise RuntimeError("[fake] bad\nshape")
        yield Block((1,), "Hel", 1, 0, 0.02)
        yield Block((2, 3, 4, 5), "lo τ", 4, 3, 0.05)
        reason: FinishReason = "stop"
        while self.scenario in ("endless", "deaf"):
            time.sleep(0.01)
            if self.scenario == "endless" and cancelled():
                reason = "interrupted"
                break
            yield Block((6,), " more", 1, 0, 0.01)
        yield Finished(reason, STATS)


def install(engine: Engine, modules: MutableMapping[str, Any]) -> None:
    """Put the engine into `sys.modules` or what stands for it."""
    modules["dflash_mlx.load"] = SimpleNamespace(
        load_pair=engine.load_pair, check_download=engine.check_download
    )
    modules["dflash_mlx.sources"] = SimpleNamespace(look=engine.look)
    modules["dflash_mlx.generate"] = SimpleNamespace(stream_generate=engine.stream_generate)


if __name__ == "__main__":
    from dflash_mlx.cli.app import main

    install(Engine(sys.argv.pop(1)), sys.modules)
    main()
