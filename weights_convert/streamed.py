"""A drafter in float32 whose matrices stay on disk: its own code, a bounded number of rows in memory.

Serves as the reference that a conversion is compared with, and for the conversion's own weights alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from dflash_mlx.config import DrafterConfig
from dflash_mlx.drafters import drafter_class
from dflash_mlx.drafters.dflash import DFlashDrafter

from .reader import Reader
from .tensors import Tensor

Note = Callable[[int], None]  # told how many bytes were used


class StreamedLinear(nn.Module):
    """A linear layer that reads its rows when it is called; holds its bias only."""

    def __init__(self, reader: Reader, tensor: Tensor, note: Note) -> None:
        super().__init__()
        self._reader, self._tensor, self._note = reader, tensor, note

    def __call__(self, x: mx.array) -> mx.array:
        parts = []
        for rows in self._reader.blocks(self._tensor):
            part = x @ self._reader.values(self._tensor, rows).astype(mx.float32).T
            mx.eval(part)  # so that the rows go before the next ones come
            parts.append(part)
            self._note(self._tensor.nbytes * (rows.stop - rows.start) // self._tensor.shape[0])
        mx.clear_cache()
        out = mx.concatenate(parts, axis=-1)
        return out + self.bias if "bias" in self else out


class StreamedEmbedding(nn.Module):
    """A table that reads the rows it is asked for."""

    def __init__(self, reader: Reader, tensor: Tensor) -> None:
        super().__init__()
        self._reader, self._tensor = reader, tensor

    def __call__(self, ids: mx.array) -> mx.array:
        wanted: Any = ids.reshape(-1).tolist()
        rows = [self._reader.values(self._tensor, slice(row, row + 1)) for row in wanted]
        return mx.concatenate(rows).astype(mx.float32).reshape(*ids.shape, -1)


def streamed_drafter(
    config: DrafterConfig, tensors: Sequence[Tensor], reader: Reader, note: Note = lambda amount: None
) -> DFlashDrafter:
    """A drafter of these tensors, float32.

    Args:
        config: As for any drafter.
        tensors: Plain or quantized, all of its parameters.
        reader: Open for as long as the drafter is used.
        note: Called with the bytes of the matrix rows that were used, as they are.
    """
    drafter = drafter_class(config)(config)
    matrices: dict[str, nn.Module] = {}
    by_parameter = {tensor.parameter: tensor for tensor in tensors}
    for path, module in drafter.named_modules():
        if isinstance(module, nn.Linear):
            matrices[path] = StreamedLinear(reader, by_parameter[f"{path}.weight"], note)
        elif isinstance(module, nn.Embedding):
            matrices[path] = StreamedEmbedding(reader, by_parameter[f"{path}.weight"])
    drafter.update_modules(tree_unflatten(list(matrices.items())))
    small = {
        name: reader.whole(tensor)
        for name, tensor in by_parameter.items()
        if name.rpartition(".")[0] not in matrices or name.endswith(".bias")
    }
    biases = {name: value for name, value in small.items() if name.endswith(".bias")}
    for name, value in biases.items():
        matrices[name.removesuffix(".bias")].bias = value
    drafter.load_weights(list(small.items()), strict=False)
    drafter.eval()
    return drafter
