"""One update of the drafter's weights, compiled.

Weights and optimizer are float32 whatever the computation runs in: in bfloat16 the small updates at the end
of the schedule would be rounded away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx import optimizers
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from dflash_mlx.drafters.dflash import DFlashDrafter
from dflash_mlx.targets.base import Target
from dflash_mlx.train.batches import Batch
from dflash_mlx.train.forward import blocks_hidden
from dflash_mlx.train.loss import TINY, BlockLoss, Sums, labels_of
from dflash_mlx.train.settings import Optimisation, Settings, gamma

Tree = dict[str, Any]


def schedule(optimisation: Optimisation, rate: float, steps: int) -> Callable[[mx.array], mx.array]:
    """Learning rate by step: a linear warm-up to `rate`, then half a cosine down to the floor."""
    warmup = max(1, round(optimisation.warmup * steps))
    return optimizers.join_schedules(
        [
            # Not from 0: the first step would change nothing.
            optimizers.linear_schedule(rate / warmup, rate, warmup),
            optimizers.cosine_decay(rate, max(1, steps - warmup), rate * optimisation.floor),
        ],
        [warmup],
    )


def optimizer(rule: Optimisation, steps: int) -> optimizers.Optimizer:
    """AdamW; or Muon for the matrices between activations and AdamW for the rest."""
    adamw = optimizers.AdamW(
        schedule(rule, rule.learning_rate, steps),
        betas=list(rule.betas),
        weight_decay=rule.weight_decay,
        bias_correction=True,
    )
    if rule.optimizer == "adamw":
        return adamw
    # mlx adds Muon's decay to the gradient, whose length Muon drops.
    muon = optimizers.Muon(schedule(rule, rule.muon_rate, steps), weight_decay=0.0)
    return optimizers.MultiOptimizer([muon, adamw], [_is_matrix])


def _is_matrix(name: str, weight: mx.array) -> bool:
    return weight.ndim == 2 and "codebook" not in name


class Trainer:
    """Weights and optimizer of a drafter in training.

    Args:
        drafter: Float32; between `gradients` and `restore` its parameters are not to be used.
        target: Frozen.
        settings: Of the run.
        steps: All of them, for the schedule.
        dtype: Of the computation, bfloat16 or float32.
    """

    def __init__(
        self, drafter: DFlashDrafter, target: Target, settings: Settings, steps: int, dtype: mx.Dtype
    ) -> None:
        self.drafter, self.target, self.settings, self.dtype = drafter, target, settings, dtype
        flat: dict[str, mx.array] = dict(tree_flatten(drafter.trainable_parameters()))
        # Without the empty branches of modules that have no weights: so a checkpoint has the same tree.
        self.weights: Tree = tree_unflatten([(name, x.astype(mx.float32)) for name, x in flat.items()])
        rule = settings.optimisation
        self.optimizer = optimizer(rule, steps)
        self.optimizer.init(self.weights)
        self.block_loss = BlockLoss(
            drafter=drafter,
            target=target,
            head_dtype=self.row_dtype,
            gamma=gamma(drafter.config.block_size),
            selector_weight=rule.selector_weight,
            head_bytes=settings.head_bytes,
        )
        self._differentiate = mx.compile(self._gradients)
        self._measure = mx.compile(self._sums)
        state = [self.weights, self.optimizer.state]
        self._update = mx.compile(self._apply, inputs=state, outputs=state)

    @property
    def learning_rate(self) -> mx.array:
        """AdamW's, of the last update."""
        adamw = self.optimizer
        if isinstance(adamw, optimizers.MultiOptimizer):
            adamw = adamw.optimizers[-1]
        rate: mx.array = adamw.learning_rate
        return rate

    @property
    def row_features(self) -> int:
        """N*D, of one token."""
        return self.drafter.config.num_taps * self.target.hidden_size

    @property
    def row_dtype(self) -> mx.Dtype:
        """Of features: that of the target's activations."""
        return self.target.embed(mx.zeros((1, 1), mx.int32)).dtype  # lazy

    def features(self, batch: Batch) -> mx.array:
        """The target's tap features `[B, S, N*D]` of whole sequences.

        Padding comes after what is read, so it changes nothing there.
        """
        taps = self.drafter.config.target_layer_ids
        return mx.stop_gradient(self.target.forward(batch.tokens, self.target.new_state(), taps).tapped)

    def gradients(self, batch: Batch, features: mx.array) -> tuple[Sums, Tree]:
        """Sums of a pass and the gradients of its summed loss, lazy."""
        found: tuple[Sums, Tree] = self._differentiate(self.weights, features, *batch)
        return Sums(*found[0]), found[1]

    def measure(self, batch: Batch, features: mx.array) -> Sums:
        """Sums of a pass without gradients, lazy."""
        return Sums(*self._measure(self.weights, features, *batch))

    def update(self, gradients: Tree, weight: mx.array) -> mx.array:
        """Apply gradients of summed losses with this total weight; their norm, lazy."""
        norm: mx.array = self._update(gradients, weight)
        return norm

    def step(
        self, batches: Sequence[Batch], features: Sequence[mx.array] | None = None
    ) -> tuple[Sums, mx.array]:
        """One update over some passes; evaluated pass by pass, so that one pass's memory is enough.

        Args:
            batches: The passes.
            features: Of each, lazy; None to have them computed.

        Returns:
            Sums over all passes, and the norm of the gradient before clipping.
        """
        total, gradients = None, None
        for batch, given in zip(batches, features or map(self.features, batches), strict=True):
            sums, more = self.gradients(batch, given)
            gradients = more if gradients is None else tree_map(mx.add, gradients, more)
            total = sums if total is None else total + sums
            mx.eval(total, gradients)
        if total is None or gradients is None:
            raise ValueError("a step without passes")
        norm = self.update(gradients, total.weight)
        mx.eval(self.weights, self.optimizer.state, norm)
        return total, norm

    def restore(self) -> DFlashDrafter:
        """The drafter with its present weights, in the dtype of the computation."""
        self.drafter.update(self._cast(self.weights))
        self.drafter.eval()
        return self.drafter

    def arrays(self) -> Tree:
        """Everything that a checkpoint holds."""
        return {"weights": self.weights, "optimizer": self.optimizer.state}

    def load(self, arrays: Tree) -> None:
        """Go on from a checkpoint's arrays."""
        self._set_weights(arrays["weights"])
        self._set_state(tree_map(lambda _, new: new, self.optimizer.state, arrays["optimizer"]))

    def rehearse(self, gradients: Tree) -> Tree:
        """What an update computes, without its effect."""
        clipped, _ = optimizers.clip_grad_norm(gradients, self.settings.optimisation.clip)
        state = tree_map(lambda x: x, self.optimizer.state)
        found: Tree = self.optimizer.apply_gradients(clipped, self.weights)
        self._set_state(state)
        return found

    def _set_weights(self, weights: Tree) -> None:
        """In place and in the order that they have here, whatever order they come in.

        Sums over all weights then round as they did, and the compiled update, which knows its trees by order
        alone, takes no weight for another. mlx's `MultiOptimizer` gives them in an order of its own.
        """
        self.weights.update(tree_map(lambda _, new: new, self.weights, weights))

    def _set_state(self, state: Tree) -> None:
        """In place: the compiled update holds the trees that it was made with."""
        if isinstance(self.optimizer, optimizers.MultiOptimizer):
            for part, own in zip(self.optimizer.optimizers, state["states"], strict=True):
                part.state.update(own)
        else:
            self.optimizer.state.update(state)

    def _cast(self, weights: Tree) -> Tree:
        cast: Tree = tree_map(lambda x: x.astype(self.dtype), weights)
        return cast

    def hidden(self, weights: Tree, features: mx.array, tokens: mx.array, anchors: mx.array) -> mx.array:
        """The blocks' hidden states `[B*A, W-1, D]` with these weights, which the drafter then holds."""
        self.drafter.update(self._cast(weights))
        anchor_tokens = mx.take_along_axis(tokens, anchors, axis=1)
        block, _ = self.drafter.embed_block(anchor_tokens, self.drafter.config.block_size, self.target)
        return blocks_hidden(self.drafter, features, anchors, block)

    def _sums(
        self,
        weights: Tree,
        features: mx.array,
        tokens: mx.array,
        lengths: mx.array,
        anchors: mx.array,
        used: mx.array,
    ) -> Sums:
        hidden = self.hidden(weights, features, tokens, anchors)
        labels = labels_of(tokens, lengths, anchors, used, self.drafter.config.block_size)
        return self.block_loss.sums(hidden, labels)

    def _gradients(
        self,
        weights: Tree,
        features: mx.array,
        tokens: mx.array,
        lengths: mx.array,
        anchors: mx.array,
        used: mx.array,
    ) -> tuple[Sums, Tree]:
        labels = labels_of(tokens, lengths, anchors, used, self.drafter.config.block_size)

        def loss(weights: Tree) -> tuple[mx.array, Sums]:
            return self.block_loss.surrogate(self.hidden(weights, features, tokens, anchors), labels)

        differentiate: Callable[..., Any] = mx.value_and_grad(loss)
        (_, sums), gradients = differentiate(weights)
        return sums, gradients

    def _apply(self, gradients: Tree, weight: mx.array) -> mx.array:
        gradients = tree_map(lambda g: g / mx.maximum(weight, TINY), gradients)
        gradients, norm = optimizers.clip_grad_norm(gradients, self.settings.optimisation.clip)
        self._set_weights(self.optimizer.apply_gradients(gradients, self.weights))
        return norm
