"""Peak memory and speed of `convert` on a synthetic drafter: `python benchmarks/convert.py --folder FOLDER`.

Makes a bfloat16 checkpoint of about 2 GB there (unless it is there), converts it in a process of its own and
prints that process's peak resident memory beside the bound: 3 x the largest tensor + 500 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx

from dflash_mlx import device
from dflash_mlx.config import parse_config
from dflash_mlx.weights import read_folder
from dflash_mlx.weights_convert.layout import drafter_layout
from dflash_mlx.weights_convert.plan import Output, size
from dflash_mlx.weights_convert.writer import Writer

BLOCK = 16_000_000  # elements that are made at a time
ALLOWED = 500_000_000

# The child reports its own peak (kB on Linux, bytes on a Mac) and what it computed with.
CHILD = """
import resource, sys
import dflash_mlx
from dflash_mlx.cli.app import main
try:
    main()
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"peak {peak} {dflash_mlx.blas.preload().name}", file=sys.stderr)
"""


def config(layers: int) -> dict[str, object]:
    """About 0.44 GB a layer, and 0.32 GB beside them; the largest tensor is `fc`, 168 MB."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "num_target_layers": 36,
        "sliding_window": 2048,
        "layer_types": ["sliding_attention"] * layers,
        "dflash_config": {
            "mask_token_id": 151669,
            "target_layer_ids": [1, 9, 17, 25, 33],
            "block_size": 8,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
        },
    }


def make(folder: Path, layers: int) -> None:
    folder.mkdir(parents=True)
    raw = config(layers)
    (folder / "config.json").write_text(json.dumps(raw))
    shapes = drafter_layout(parse_config(raw)).shapes
    outputs = [Output(name, "BF16", shape) for name, shape in shapes.items()]
    with Writer(folder, [[output] for output in outputs], 0) as writer:
        for output in outputs:
            rows, width = output.shape[0], output.nbytes // 2 // output.shape[0]
            for start in range(0, rows, max(1, BLOCK // width)):
                count = min(max(1, BLOCK // width), rows - start)
                spread = 0.02 if len(output.shape) == 2 else 1.0
                writer.append(output.name, (spread * mx.random.normal((count, width))).astype(mx.bfloat16))
        writer.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("options", nargs="*", help="for `convert`, after `--`")
    args = parser.parse_args()
    source, out = args.folder / "source", args.folder / "result"
    if not source.exists():
        make(source, args.layers)
    tensors = read_folder(source).values()
    total, largest = sum(info.nbytes for info in tensors), max(info.nbytes for info in tensors)
    bound = 3 * largest + ALLOWED
    arguments = ["convert", str(source), "--out", str(out), "--overwrite", *args.options]
    started = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    print(result.stdout)
    if result.returncode:
        sys.exit(result.stderr)
    _, number, blas = result.stderr.splitlines()[-1].split(maxsplit=2)
    peak = int(number)
    print(f"{device.current().name}, {blas}, mlx {mx.__version__}")
    print(f"source {size(total)}, largest tensor {size(largest)}, options {args.options or 'none'}")
    print(f"{seconds:.1f} s, {total / seconds / 1e6:.0f} MB/s of source")
    print(f"peak resident memory {size(peak)}, bound {size(bound)}")
    sys.exit(peak > bound)


if __name__ == "__main__":
    main()
