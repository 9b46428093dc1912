"""Drafters, targets and checkpoint folders for the tests of config, weights and drafters."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.config import parse_config
from dflash_mlx.drafters import drafter_class
from dflash_mlx.drafters.dflash import DFlashDrafter

DATA = Path(__file__).parent / "data"
GOLDEN = DATA / "golden"
CHECKPOINTS = DATA / "checkpoints"
GOLDEN_CASES = sorted(path.name for path in GOLDEN.glob("0*"))
TOLERANCE = 2e-4

VOCAB, HIDDEN, TAPS, MASK = 50, 32, 2, 49
LAYOUTS = {
    "full": ["full_attention", "full_attention"],
    "sliding": ["sliding_attention", "sliding_attention"],
    "mixed": ["sliding_attention", "full_attention", "sliding_attention"],
}


def raw_config(
    generation: int = 2, layers: Sequence[str] = LAYOUTS["mixed"], **changes: Any
) -> dict[str, Any]:
    """A tiny drafter's config.json; `changes` go to where the key already is, else to the top level."""
    method: dict[str, Any] = {"mask_token_id": MASK, "target_layer_ids": [1, 3], "block_size": 6}
    if generation == 2:
        method |= {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 8, "selector_top_k": 4}
    raw: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if generation == 2 else "DFlashDraftModel"],
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_hidden_layers": len(layers),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "num_target_layers": 5,
        "rms_norm_eps": 1e-6,
        "layer_types": list(layers),
        "sliding_window": 5 if "sliding_attention" in layers else None,
        "dflash_config": method,
    }
    for key, value in changes.items():
        (method if key in method else raw)[key] = value
    return raw


def random_drafter(raw: Mapping[str, Any], seed: int = 0) -> DFlashDrafter:
    """A float32 drafter with random weights."""
    mx.random.seed(seed)
    config = parse_config(raw)
    drafter = drafter_class(config)(config)
    drafter.update(
        tree_unflatten([(name, _random(value)) for name, value in tree_flatten(drafter.parameters())])
    )
    mx.eval(drafter.parameters())
    return drafter


def _random(value: mx.array) -> mx.array:
    if value.ndim == 1:  # norms
        return 1 + 0.1 * mx.random.normal(value.shape)
    return mx.random.normal(value.shape) * (0.3 if value.ndim == 3 else value.shape[-1] ** -0.5)


def features(rows: int, seed: int = 1) -> mx.array:
    return mx.random.normal((1, rows, TAPS * HIDDEN), key=mx.random.key(seed))


class TableTarget:
    """Only what a drafter asks of a target: an embedding table and an output head."""

    def __init__(self, embedding: mx.array, head: mx.array) -> None:
        self.embedding, self.head = embedding, head

    def embed(self, ids: mx.array) -> mx.array:
        return self.embedding[ids]

    def unembed(self, hidden: mx.array) -> mx.array:
        return hidden @ self.head.T


def random_target(seed: int = 2, dtype: mx.Dtype = mx.float32) -> TableTarget:
    keys = mx.random.split(mx.random.key(seed))
    tables = [mx.random.normal((VOCAB, HIDDEN), key=key).astype(dtype) for key in keys]
    mx.eval(tables)
    return TableTarget(*tables)


ANCHOR = mx.array([[7]], dtype=mx.int32)


def hidden(drafter: DFlashDrafter, context: Any, target: TableTarget, width: int = 6) -> mx.array:
    """What the block after this context becomes, `[1, W-1, D]`."""
    return drafter.block_hidden(ANCHOR, width, context, target)[0]


def close(found: mx.array, wanted: mx.array, tolerance: float = TOLERANCE) -> bool:
    return found.shape == wanted.shape and mx.abs(found - wanted).max().item() <= tolerance


def write_folder(folder: Path, raw: Mapping[str, Any], weights: Mapping[str, mx.array]) -> Path:
    """A checkpoint folder with one weights file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), metadata={"format": "mlx"})
    return folder


def checkpoint_weights(drafter: DFlashDrafter) -> dict[str, mx.array]:
    """The drafter's weights under the names of original checkpoints."""
    return {
        name.removesuffix(".weight") if name.endswith("_codebook.weight") else name: value
        for name, value in tree_flatten(drafter.parameters())
    }


def safetensors_bytes(tensors: Mapping[str, tuple[str, Sequence[int], int]]) -> bytes:
    """A file with zeros in it, made without MLX: name -> dtype, shape, bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    return with_header(json.dumps(header).encode(), b"\0" * place)


def with_header(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data
