"""What the live readout costs: `python benchmarks/readout.py --target FOLDER --drafter FOLDER`.

Whole chat turns by the wall clock, painted to nowhere: with the readout and its plain steps, and with
`--no-stats`, in turns. Without arguments it takes the demo pair, whose tokens come so fast that painting
weighs most; a pair that writes a hundred tokens a second pays a fraction of it.

Measured on two cores of an AMD EPYC with OpenBLAS 0.3.21, `--tokens 150 --rounds 11`, twice in a row: seconds
with it / without 1.020 and 0.995. Painting takes 0.4% of a reply there, by a profile. It was 1.058 while
OpenBLAS's idle threads slowed the plain steps down: see dflash_mlx/blas.py.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

# isort: off
from common import Laps, endless, machine  # before anything that imports mlx

# isort: on
from dflash_mlx import SamplingParams, Session, demo, load_pair
from dflash_mlx.cli.conversation import Conversation, Settings
from dflash_mlx.cli.readout import Opening
from dflash_mlx.cli.screen import Screen
from dflash_mlx.cli.terminal_front import TerminalView
from dflash_mlx.cli.turn import Chat

LIMIT = 1.03  # seconds with it / without
QUESTION = "Tell me a story about Zelda the fox and a map."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=demo.NAME)
    parser.add_argument("--drafter")
    parser.add_argument("--prompt", default=QUESTION)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    pair = endless(load_pair(args.target, args.drafter))
    opening = Opening(target=pair.target_name, method=pair.method)

    def turns(*, show: bool) -> Callable[[], float]:
        """One session, as in a chat: its plain steps are paid from what it saved up."""
        settings = Settings(SamplingParams(), args.tokens, show_stats=show)
        state = Chat(pair, Session(pair), settings, Conversation(), None, opening)

        def reply() -> float:
            state.reset()
            began = time.perf_counter()
            with open(os.devnull, "w") as nowhere, Screen(nowhere.write, lambda: (90, 40)) as screen:
                view = TerminalView(screen, settings)
                state.reply(args.prompt, view, lambda: False)
                view.close()
            return (time.perf_counter() - began) / args.tokens

        return reply

    laps = Laps()
    laps.in_turns({"with": turns(show=True), "without": turns(show=False)}, args.rounds)
    ratio = laps.median("with") / laps.median("without")
    print(machine())
    print(f"{args.target}, {pair.dtype}: median of {args.rounds} interleaved replies of {args.tokens} tokens")
    rates = (1 / laps.median(name) for name in ("with", "without"))
    print("with the readout {:.1f} tok/s  without {:.1f} tok/s".format(*rates))
    print(f"seconds with / without {ratio:.3f}, limit {LIMIT}")
    raise SystemExit(ratio > LIMIT)


if __name__ == "__main__":
    main()
