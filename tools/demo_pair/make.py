"""Makes the demo pair again, from nothing to `dflash_mlx/demo/`: `make demo-pair`, or

    python -m demo_pair.make WORK

in the folder above, with PyTorch installed. Every step leaves its result in WORK and is not done twice;
interrupted, the same command goes on. The times of the steps are printed at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from dflash_mlx import demo
from dflash_mlx.blas import preload

from . import prompts, recipe

TIMES = "seconds.json"
# Sampled answers take the ways of a story that greedy ones never take.
DRAFTER = ["--temperature", "0", "--temperature", "1", "--max-tokens", "160"]
DRAFTER += ["--layers", "3", "--taps", "0,2,7", "--epochs", "2", "--batch-size", "16", "--anchors", "32"]
DRAFTER += ["--optimizer", "muon", "--lr", "4e-3", "--floor", "0.02"]


class Steps:
    """Runs what is not done yet, and keeps the time that it took."""

    def __init__(self, work: Path) -> None:
        self._path = work / TIMES
        self.seconds: dict[str, float] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def run(self, name: str, done: Path, *command: str | Path) -> None:
        """A command whose result is `done`; its time adds up over interruptions."""
        if done.exists():
            return
        print(f"==> {name}", flush=True)
        began = time.monotonic()
        try:
            subprocess.run([str(part) for part in command], check=True)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
            self._path.write_text(json.dumps(self.seconds, indent=1) + "\n")


def make(work: Path) -> None:
    """Target, then drafter, then the package's folder."""
    work.mkdir(parents=True, exist_ok=True)
    steps, program = Steps(work), (Path(sys.executable).with_name("dflash-mlx"),)
    trained, target = work / "target", work / "target-mlx"
    answered, drafter = work / "drafter", work / "drafter-mlx"
    steps.run("target", trained / "model.safetensors", sys.executable, "-m", "demo_pair.target", trained)
    half = ("--bits", "16", "--dtype", "bfloat16")
    steps.run(
        "target converted", target, *program, "convert", trained, "--kind", "target", *half, "--out", target
    )
    listed = work / "prompts.jsonl"
    if not listed.exists():
        prompts.write(listed, prompts.drafter_prompts(recipe.DRAFTER_PROMPTS))
    told = ("--target", target, "--prompts", listed, "--out", answered)
    steps.run("drafter", answered, *program, "train", *told, *DRAFTER)
    steps.run("drafter converted", drafter, *program, "convert", answered, *half, "--out", drafter)
    for source, name in ((target, "target"), (drafter, "drafter")):
        shutil.rmtree(demo.FOLDER / name, ignore_errors=True)
        # The pair has one card, beside these folders.
        shutil.copytree(source, demo.FOLDER / name, ignore=shutil.ignore_patterns("README.md"))
    demo.write_list()
    for name, seconds in steps.seconds.items():
        print(f"{name}: {seconds / 60:.1f} min")
    print(f"with {preload().name} behind mlx")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    make(parser.parse_args().work.resolve())


if __name__ == "__main__":
    main()
