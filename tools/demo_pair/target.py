"""Trains the demo target with PyTorch: `python -m demo_pair.target OUT --steps N` from the folder above.

transformers' own Qwen3.5 class, in float32 on the CPU; Muon for matrices, AdamW for the rest. Every few
minutes the state goes to OUT/state.pt; started again with the same OUT, the run goes on from there to the
same weights. At the end OUT has a checkpoint in safetensors and a tokenizer, ready for `dflash-mlx convert`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers.models.qwen3_5.modeling_qwen3_5 as modeling
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from . import tokens
from .dialogues import KINDS, held_out, messages, stream
from .recipe import TARGET_RATES, TARGET_SEED, TARGET_STAGES

TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": tokens.VOCABULARY,
    "hidden_size": 160,
    "intermediate_size": 416,
    "num_hidden_layers": 8,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
STEP_TOKENS = 3072
LONG = 0.12  # the last part of the run reads whole conversations
LENGTHS = (256, 1024)
MATRIX_RATE, OTHER_RATE = 0.02, 4e-3
MOMENTUM = 0.95
SAVE_SECONDS = 180
LOG_STEPS, CHECK_STEPS, CHECKED = 50, 400, 64


def conv(
    hidden: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """The short causal convolution as a few multiply-adds: twice as fast on a CPU as a grouped one.

    Args:
        hidden: [B, C, L].
        weight: [C, K].
    """
    size, length = weight.shape[-1], hidden.shape[-1]
    padded = F.pad(hidden, (size - 1, 0))
    out = sum(padded[..., i : i + length] * weight[:, i, None] for i in range(size))
    return F.silu(out) if activation else out


def build() -> Qwen3_5ForCausalLM:
    """The target with fresh weights."""
    modeling.causal_conv1d_fn = conv
    torch.manual_seed(TARGET_SEED)
    torch.set_flush_denormal(True)
    config = Qwen3_5TextConfig(**TEXT_CONFIG, bos_token_id=None, eos_token_id=None)
    config._attn_implementation = "sdpa"
    model = Qwen3_5ForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):  # memories from a few to hundreds of tokens
                parameter.copy_(torch.linspace(0.02, 4, parameter.numel()).log())
            elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.mul_(0.5)
    return model


class Packed:
    """Rows of dialogues end to end; the loss is on what the assistant says."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int = TARGET_SEED, skip: int = 0) -> None:
        self.taken = skip
        self._encode = tokenizer.backend_tokenizer.encode_batch
        self._special = {name: tokenizer.convert_tokens_to_ids(name) for name in (*tokens.ROLES, tokens.END)}
        self._dialogues = stream(seed, TARGET_STAGES)
        for _ in range(skip):
            next(self._dialogues)
        self._ids: list[int] = []
        self._said: list[bool] = []

    def batch(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Ids and what counts, [rows, length + 1] each."""
        need = rows * length + 1
        while len(self._ids) < need:
            turns = next(self._dialogues)
            self.taken += 1
            for message, encoded in zip(
                turns,
                self._encode([message["content"] for message in turns], add_special_tokens=False),
                strict=True,
            ):
                said = message["role"] == "assistant"
                self._ids += [
                    self._special[f"<|{message['role']}|>"],
                    *encoded.ids,
                    self._special[tokens.END],
                ]
                self._said += [False] + [said] * (len(encoded.ids) + 1)
        ids = torch.tensor(self._ids[:need])
        said = torch.tensor(self._said[:need])
        del self._ids[: need - 1], self._said[: need - 1]
        index = torch.arange(rows)[:, None] * length + torch.arange(length + 1)
        return ids[index], said[index]

    def state(self) -> dict[str, Any]:
        """What is needed to go on from here."""
        return {"taken": self.taken, "ids": self._ids, "said": self._said}

    @classmethod
    def resumed(cls, tokenizer: PreTrainedTokenizerFast, state: dict[str, Any]) -> Packed:
        """The stream as it was when `state` was taken."""
        packed = cls(tokenizer, skip=state["taken"])
        packed._ids, packed._said = list(state["ids"]), list(state["said"])
        return packed


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by five Newton-Schulz steps (Jordan et al. 2024), in float32.

    PyTorch's own runs its steps in bfloat16, which this CPU multiplies a hundred times slower.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "start": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; matrices of one shape together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, same in shapes.items():
                updates = []
                for parameter in same:
                    momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                    momentum.lerp_(parameter.grad, 1 - MOMENTUM)
                    updates.append(parameter.grad.lerp(momentum, MOMENTUM))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(same, _orthogonal(torch.stack(updates)), strict=True):
                    parameter.mul_(1 - 0.01 * group["lr"]).sub_(update, alpha=scale)


def _orthogonal(x: Tensor) -> Tensor:
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, gates, norms and convolutions."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        small = min(parameter.shape) < 16 if parameter.ndim == 2 else True
        (others if small or "embed" in name else matrices).append(parameter)
    adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for group in adam.param_groups:
        group["start"] = OTHER_RATE
    return [Muon(matrices, MATRIX_RATE), adam]


def rate(step: int) -> float:
    """The learning rate, relative to the first one: on straight lines between the recipe's points."""
    for (start, before), (end, after) in pairwise(TARGET_RATES):
        if step < end:
            return before + (after - before) * (step - start) / (end - start)
    return TARGET_RATES[-1][1]


def loss_of(model: nn.Module, ids: Tensor, said: Tensor) -> Tensor:
    """Mean over what the assistant says."""
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[said[:, 1:]])
    return F.cross_entropy(logits, ids[:, 1:][said[:, 1:]])


@torch.no_grad()
def exact(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Share of held-out questions that greedy decoding answers word for word; stories have no such answer.

    The choice at every row of the right answer is what greedy decoding would have chosen as long as all
    before were right: one pass instead of a pass a token.
    """
    found = {}
    for kind in [*(kind for kind in KINDS if kind != "story"), "talk"]:
        rows, masks = [], []
        for question in held_out(kind, CHECKED, seed=7):
            listed = messages([question])
            start = len(
                tokenizer(
                    tokenizer.apply_chat_template(listed[:1], tokenize=False, add_generation_prompt=True)
                )["input_ids"]
            )
            ids = tokenizer(tokenizer.apply_chat_template(listed, tokenize=False))["input_ids"]
            rows.append(torch.tensor(ids))
            masks.append(torch.arange(len(ids)) >= start)
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        said = nn.utils.rnn.pad_sequence(masks, batch_first=True)
        with torch.compiler.set_stance("force_eager"):  # every kind has a shape of its own
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        wrong = (logits.argmax(-1) != ids[:, 1:]) & said[:, 1:]
        found[kind] = 1 - wrong.any(1).float().mean().item()
    return found


def write_checkpoint(out: Path, model: nn.Module) -> None:
    """What `dflash-mlx convert --kind target` reads."""
    weights = {
        name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    added = json.loads((out / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    eos, pad = ids[tokens.END], ids[tokens.PAD]
    text = {
        "model_type": "qwen3_5_text",
        **TEXT_CONFIG,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "dtype": "float32",
    }
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "eos_token_id": eos,
        "tie_word_embeddings": True,
        "text_config": text,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}, indent=2) + "\n")


class Run:
    """A run in `out`, from the beginning or from wherever its last state is."""

    def __init__(self, out: Path, steps: int) -> None:
        self.out, self.steps = out, steps
        self.tokenizer = tokens.make(out)
        self.model = build()
        self.optimizers = optimizers(self.model)
        self.packed, self.step, self.seconds = Packed(self.tokenizer), 0, 0.0
        if self._state.exists():
            self._resume(torch.load(self._state, weights_only=True))

    @property
    def _state(self) -> Path:
        return self.out / "state.pt"

    def _resume(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.packed = Packed.resumed(self.tokenizer, state["packed"])
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """All or nothing."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "packed": self.packed.state(),
            "step": self.step,
            "seconds": self.seconds,
        }
        new = self._state.with_suffix(".new")
        torch.save(state, new)
        os.replace(new, self._state)

    def train(self, *, compiled: bool) -> None:
        """To the end."""
        if compiled:
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)
        losses, saved, last = [], time.monotonic(), time.monotonic()
        while self.step < self.steps:
            losses.append(self._update())
            self.seconds, last = self.seconds + time.monotonic() - last, time.monotonic()
            if self.step % LOG_STEPS == 0 or self.step == self.steps:
                self._log(sum(losses) / len(losses))
                losses.clear()
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        write_checkpoint(self.out, self.model)

    def _update(self) -> float:
        length = LENGTHS[self.step >= (1 - LONG) * self.steps]
        ids, said = self.packed.batch(STEP_TOKENS // length, length)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["start"] * rate(self.step)
        loss = loss_of(self.model, ids, said)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def _log(self, loss: float) -> None:
        line: dict[str, Any] = {"step": self.step, "loss": round(loss, 4), "seconds": round(self.seconds, 1)}
        if self.step % CHECK_STEPS == 0 or self.step == self.steps:
            line["exact"] = {kind: round(x, 3) for kind, x in exact(self.model, self.tokenizer).items()}
        print(json.dumps(line), flush=True)
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--steps", type=int, default=TARGET_RATES[-1][0], help=f"of {STEP_TOKENS} tokens each"
    )
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile: a third slower")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    Run(args.out, args.steps).train(compiled=not args.no_compile)


if __name__ == "__main__":
    main()
