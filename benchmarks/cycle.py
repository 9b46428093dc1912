"""What a cycle costs beyond its parts: `python benchmarks/cycle.py`.

A tiny Gated DeltaNet hybrid and a random DFlash 2 drafter, whose tokens are replaced by scripted ones of
which exactly n = W/2 are right. In turns: a whole cycle as the engine runs it, and its parts one by one, each
evaluated: draft, verify (accept included), extend by n + 1 rows, replay of n + 1 rows.
"""

from __future__ import annotations

import argparse
from typing import Any

# isort: off
from common import Laps, machine, mx  # before anything that imports mlx

# isort: on
import fakes
import tiny
from mlx_lm.generate import generate_step

from dflash_mlx.accept import accept
from dflash_mlx.decode import Decoder, Line
from dflash_mlx.drafters.base import Proposal
from dflash_mlx.sampling import Sampler
from dflash_mlx.types import SamplingParams

PROMPT = list(range(3, 40))
LIMIT = 1.15  # cycle / sum of its parts


class HalfRight:
    """A real drafter's work, a script's tokens."""

    window = None

    def __init__(self, drafter: Any, script: fakes.ScriptedDrafter) -> None:
        self.config, self._drafter, self._script = drafter.config, drafter, script
        self.new_context, self.extend, self.check_finite = (
            drafter.new_context,
            drafter.extend,
            drafter.check_finite,
        )

    def draft(
        self,
        anchor: mx.array,
        width: int,
        context: Any,
        target: Any,
        temperature: float,
        key: Any = None,
        noise: Any = None,
    ) -> Proposal:
        real = self._drafter.draft(anchor, width, context, target, temperature, key)
        scripted = self._script.draft(anchor, width, context, target, temperature, key)
        # The drafter's tokens are part of the graph, and worth nothing.
        return Proposal(mx.where(real.tokens < 0, real.tokens, scripted.tokens), None, None)


def parts(pair: Any, line: Line, width: int, laps: Laps, sampler: Sampler) -> None:
    """One cycle by hand, every part evaluated on its own."""
    anchor = mx.array([line.tokens[-1:]])
    with laps.lap("draft"):
        proposal = pair.drafter.draft(anchor, width, line.context, pair.target, 0.0, None)
        mx.eval(proposal.tokens)
    with laps.lap("verify"):
        block = mx.concatenate([anchor, proposal.tokens], axis=1)
        verified = pair.target.forward(block, line.state, pair.drafter.config.target_layer_ids, rollback=True)
        accepted, *tokens = accept(verified.logits, proposal, sampler, None).tolist()
    rows = accepted + 1
    mx.eval(verified.features)
    with laps.lap("extend"):
        pair.drafter.extend(verified.features[:, :rows], line.context)
        mx.eval(line.context.arrays())
    with laps.lap("replay"):
        pair.target.commit(line.state, rows)
        mx.eval(line.state.arrays())
    line.tokens += tokens[:rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--hidden", type=int, default=256)
    args = parser.parse_args()
    size = {"hidden_size": args.hidden, "intermediate_size": 2 * args.hidden}
    text = tiny.config_of("qwen3_5")["text_config"] | size
    target = tiny.build("qwen3_5", text_config=text)
    count = (args.rounds + 5) * (args.width // 2 + 1) + args.width
    right = [token for token, _ in generate_step(mx.array(PROMPT), target.model, max_tokens=count)]
    script = fakes.ScriptedDrafter([*PROMPT, *right], lambda _: args.width // 2, tiny.VOCAB)
    drafter = tiny.build_drafter(2, **size)
    pair = fakes.pair_of(target, HalfRight(drafter, script))
    lines = [fakes.line_at(pair, [*PROMPT, right[0]]) for _ in range(2)]
    laps = Laps()
    sampler = Sampler(SamplingParams(), target.vocab_size)
    decoder = Decoder(pair, lines[0], sampler)
    for round_ in range(args.rounds + 5):
        if round_ == 5:  # warm now
            laps = Laps()
        with laps.lap("cycle"):
            cycle = decoder.cycle(args.width, len, lambda _: args.width)  # the next draft is begun in it
        assert cycle.accepted == args.width // 2
        parts(pair, lines[1], args.width, laps, sampler)
    names = ("draft", "verify", "extend", "replay")
    total = sum(laps.median(name) for name in names)
    print(machine())
    print(f"width {args.width}: {args.width // 2} kept, hidden {args.hidden}, median of {args.rounds} rounds")
    print("  ".join(f"{name} {1e3 * laps.median(name):.2f} ms" for name in names))
    ratio = laps.median("cycle") / total
    print(
        f"cycle {1e3 * laps.median('cycle'):.2f} ms / parts {1e3 * total:.2f} ms = {ratio:.2f}, limit {LIMIT}"
    )
    raise SystemExit(ratio > LIMIT)


if __name__ == "__main__":
    main()
