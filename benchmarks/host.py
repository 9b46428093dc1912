"""What the host needs to build a cycle, while the device may wait: `python benchmarks/host.py`.

A hybrid of 64 layers, 48 of them Gated DeltaNet, and a drafter of 5 layers, so small that computing is
nearly free; the graphs are as long as those of a 27B target. The recurrence, on Metal one kernel, is one
cheap operation here: what is timed is how long a graph takes to build, not to compute. Each part is built,
timed, and only then computed. `gap` is the time from the host read to the first work that is handed over.
The clock is that of the one thread that builds, so other work on the machine hardly shows.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

# isort: off
from common import Laps, machine, mx  # before anything that imports mlx

# isort: on
import fakes
import tiny
from mlx_lm.models import gated_delta

from dflash_mlx.accept import accept
from dflash_mlx.sampling import Sampler
from dflash_mlx.targets.gated_delta import Replay
from dflash_mlx.types import SamplingParams

LAYERS = 64
LIMIT, GAP_LIMIT = 6e-3, 2e-3  # seconds


def one_operation(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, mask: Any = None
) -> tuple[mx.array, mx.array]:
    """In the place of the recurrence: the same inputs and shapes, hardly any work."""
    return v * beta[..., None], state * g[:, -1, :, None, None] + k[:, -1, :1, None, :1] * q[
        :, -1, :1, None, :1
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--kept", type=int, default=2, help="rows that are kept of each block")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--uncompiled", action="store_true", help="the replay as on a CPU")
    args = parser.parse_args()
    gated_delta.gated_delta_ops = one_operation
    text = tiny.config_of("qwen3_5")["text_config"] | {"num_hidden_layers": LAYERS}
    target = tiny.build("qwen3_5", text_config=text)
    target.replay = Replay(compiled=not args.uncompiled)
    taps = [1, 16, 31, 46, 61]
    drafter = tiny.build_drafter(2, num_hidden_layers=5, num_target_layers=LAYERS, target_layer_ids=taps)
    line = fakes.line_at(fakes.pair_of(target, drafter), list(range(3, 40)))
    sampler, laps = Sampler(SamplingParams(), target.vocab_size), Laps(time.thread_time)
    for round_ in range(args.rounds + 5):
        if round_ == 5:  # warm now
            laps = Laps(time.thread_time)
        anchor = mx.array([line.tokens[-1:]], mx.int32)
        with laps.lap("draft"):
            proposal = drafter.draft(anchor, args.width, line.context, target, 0.0)
        mx.eval(proposal.tokens)
        with laps.lap("verify"):
            block = mx.concatenate([anchor, proposal.tokens], axis=1)
            verified = target.forward(block, line.state, tuple(taps), rollback=True)
        with laps.lap("accept"):
            outcome = accept(sampler.process(verified.logits, None, proposal.tokens), proposal, sampler, None)
        mx.eval(outcome)
        read = time.thread_time()
        with laps.lap("extend"):
            drafter.extend(verified.tapped[:, : args.kept], line.context)
        mx.async_eval(line.context.arrays())
        laps.seconds["gap"].append(time.thread_time() - read)
        ahead = drafter.draft(anchor, args.width, line.context, target, 0.0)
        mx.async_eval(ahead.tokens)
        with laps.lap("replay"):
            target.commit(line.state, args.kept)
        with laps.lap("hand over"):
            mx.async_eval(line.arrays())
        mx.eval(line.arrays())
        line.tokens += [1] * args.kept
    print(machine())
    names = ("draft", "verify", "accept", "extend", "replay")
    total = sum(laps.median(name) for name in names)
    print("  ".join(f"{name} {1e3 * laps.median(name):.2f}" for name in (*names, "hand over")), "ms")
    print(
        f"host {1e3 * total:.2f} ms a cycle at {LAYERS} layers, width {args.width}, {args.kept} kept "
        f"(limit {1e3 * LIMIT:.0f})   gap {1e3 * laps.median('gap'):.2f} ms (limit {1e3 * GAP_LIMIT:.0f})"
    )
    raise SystemExit(total > LIMIT or laps.median("gap") > GAP_LIMIT)


if __name__ == "__main__":
    main()
