"""DFlash, first generation: one parallel pass drafts a block; also the frame of the second.

| name | shape | |
| --- | --- | --- |
| features | `[1, L, N*D]` | outputs of the target's tapped layers, concatenated |
| context | `[1, L, D]` | `hidden_norm(fc(features))`; only its keys and values are kept |
| block | `[1, W, D]` | target embeddings of the anchor and `W - 1` mask tokens |
| hidden | `[1, W-1, D]` | after the final norm, the anchor's row left out |
| logits | `[1, W-1, V]` | float32, of the target's output head |

Nothing here reads an array on the host, except `check_finite`.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.config import DrafterConfig
from dflash_mlx.drafters.base import Context, Proposal
from dflash_mlx.drafters.context import DrafterContext, own_context
from dflash_mlx.drafters.layers import DraftLayer, Mask, block_mask
from dflash_mlx.drafters.precision import dtype_name
from dflash_mlx.errors import UserError
from dflash_mlx.targets.base import Target


class DFlashDrafter(nn.Module):
    """A first-generation drafter; holds no sequence.

    Args:
        config: Completed with `for_target` where the checkpoint leaves something to the target.
    """

    layer_class: type[DraftLayer] = DraftLayer
    renamed = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}  # Muse Glimmer's names

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.num_taps * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [self.layer_class(config) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    @classmethod
    def sanitize(cls, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Tensor names of a checkpoint -> names of this module's parameters."""
        return {cls.parameter_name(name): value for name, value in weights.items()}

    @classmethod
    def parameter_name(cls, name: str) -> str:
        """One tensor's name in this module."""
        for old, new in cls.renamed.items():
            if name.startswith(old):
                return new + name[len(old) :]
        return name

    @property
    def dtype(self) -> mx.Dtype:
        """Of the activations, and of all weights that are not quantized."""
        return self.norm.weight.dtype

    @property
    def window(self) -> int | None:
        """How many last context rows a draft can see; None if all of them."""
        return self.config.window

    def new_context(self) -> DrafterContext:
        """An empty context."""
        windows = [self.config.layer_window(layer) for layer in range(self.config.num_layers)]
        return DrafterContext([None if window is None else window - 1 for window in windows])

    def encode(self, features: mx.array) -> mx.array:
        """Features `[1, L, N*D]` -> what the layers make keys and values of, `[1, L, D]`."""
        return self.hidden_norm(self.fc(features.astype(self.dtype)))

    def extend(self, features: mx.array, context: Context) -> None:
        """Add the features `[1, L, N*D]` of the next L committed tokens; they are not kept."""
        context = own_context(context)
        rows = features.shape[1]
        if self.window is not None and rows > self.window:
            features = features[:, -self.window :]  # no later draft sees the rest
        encoded = self.encode(features)
        end = context.length + rows
        for layer, layer_context in zip(self.layers, context.layers, strict=True):
            visible = encoded if layer_context.window is None else encoded[:, -layer_context.window :]
            layer_context.append(*layer.self_attn.keys_values(visible, end - visible.shape[1]))
        context.advance(rows)

    def draft(
        self,
        anchor: mx.array,
        width: int,
        context: Context,
        target: Target,
        temperature: float,
        key: mx.array | None = None,
        noise: mx.array | None = None,
    ) -> Proposal:
        """Propose `width - 1` tokens after `anchor`: see `base.Drafter.draft`."""
        hidden, head_dtype = self.block_hidden(anchor, width, own_context(context), target)
        logits = self.logits(hidden, head_dtype, target)
        return self.propose(hidden, logits, anchor, temperature, key, noise)

    def propose(
        self,
        hidden: mx.array,
        logits: mx.array,
        anchor: mx.array,
        temperature: float,
        key: mx.array | None,
        noise: mx.array | None = None,
    ) -> Proposal:
        """Choose a path, `[1, W-1]`, from the rows' hidden states and logits.

        Sampling without a seed takes the argmax too, as a one-hot q: positions drawn independently of each
        other are accepted far less often (published: 1.16 against 2.96 tokens a cycle).
        """
        if noise is not None:
            logits = logits / temperature + noise
        return Proposal(mx.argmax(logits, axis=-1).astype(mx.int32), None, None)

    def logits(self, hidden: mx.array, head_dtype: mx.Dtype, target: Target) -> mx.array:
        """Hidden states `[1, L, D]` -> float32 logits `[1, L, V]` by the target's head."""
        logits = target.unembed(hidden.astype(head_dtype)).astype(mx.float32)
        if self.config.output_multiplier != 1:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else mx.tanh(logits / cap) * cap

    def block_hidden(
        self, anchor: mx.array, width: int, context: DrafterContext, target: Target
    ) -> tuple[mx.array, mx.Dtype]:
        """Run the block.

        Returns:
            After the final norm, the anchor's row left out, `[1, W-1, D]`; and the dtype of the target's
            own hidden states, which its head expects.
        """
        block, head_dtype = self.embed_block(anchor, width, target)
        *_, block = self.block_layers(block, context)
        return self.norm(block[:, 1:]), head_dtype

    def embed_block(self, anchors: mx.array, width: int, target: Target) -> tuple[mx.array, mx.Dtype]:
        """The target's raw rows for B anchors and their masks, scaled, `[B, W, D]`; and their dtype."""
        if not 2 <= width <= self.config.block_size:
            raise ValueError(f"width {width} is outside 2..{self.config.block_size}")
        anchors = anchors.reshape(-1, 1).astype(mx.int32)
        masks = mx.full((anchors.shape[0], width - 1), self.config.mask_token_id, dtype=mx.int32)
        rows = target.embed(mx.concatenate([anchors, masks], axis=1))
        block = rows.astype(self.dtype)
        if self.config.embedding_scale != 1:
            block = block * self.config.embedding_scale
        return block, rows.dtype

    def block_layers(self, block: mx.array, context: DrafterContext) -> Iterator[mx.array]:
        """The block `[1, W, D]` after each layer."""
        context.check_complete()
        context.before_write()
        masks: dict[tuple[bool, int | None, int], Mask] = {}
        for index, (layer, layer_context) in enumerate(zip(self.layers, context.layers, strict=True)):
            kind = self.config.causal[index], self.config.layer_window(index), layer_context.rows
            if kind not in masks:
                masks[kind] = block_mask(kind[2], block.shape[1], kind[0], kind[1])
            block = layer(block, layer_context, context.length, masks[kind])
            yield block

    def check_finite(self, anchor: mx.array, width: int, context: Context, target: Target) -> None:
        """Draft once, stage by stage, looking at each on the host: for the first draft of a session.

        Args:
            anchor: `[1, 1]` int32, at position `context.length`.
            width: 2..`config.block_size`.
            context: Read only.
            target: Lends its embedding table and output head.

        Raises:
            UserError: A value is not finite; it names the dtype and the layer.
        """
        for place, values in self.stages(anchor, width, own_context(context), target):
            if not mx.isfinite(values).all().item():
                raise UserError(
                    f"the drafter's values in {dtype_name(self.dtype)} are not finite in {place}",
                    "load the drafter in float32, or download it again",
                )

    def stages(
        self, anchor: mx.array, width: int, context: DrafterContext, target: Target
    ) -> Iterator[tuple[str, mx.array]]:
        """What `draft` computes, in order, each with its name."""
        for index, layer_context in enumerate(context.layers):
            # Every layer's keys come from the one encoded context, so the first shows whether that is sound.
            place = f"the context of layer {index}" if index else "the context (`fc`, `hidden_norm`)"
            yield from ((place, rows) for rows in layer_context.visible())
        block, head_dtype = self.embed_block(anchor, width, target)
        yield "the target's embeddings", block
        for index, output in enumerate(self.block_layers(block, context)):
            yield f"layer {index}", output
            block = output
        hidden = self.norm(block[:, 1:])
        yield "the final norm", hidden
        logits = self.logits(hidden, head_dtype, target)
        yield "the target's output head", logits
        yield from self.choice_stages(hidden, logits, anchor)

    def choice_stages(
        self, hidden: mx.array, logits: mx.array, anchor: mx.array
    ) -> Iterator[tuple[str, mx.array]]:
        """What `propose` computes beyond the logits: nothing here."""
        yield from ()
