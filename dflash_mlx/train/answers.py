"""The target's own answers to the prompts, written once and kept on disk as token ids.

One file per target, one line per answer, each under a key of everything that it depends on: whatever stops
the writing, the next run goes on behind the last whole line. A sampled answer has noise of its own, so
it does not depend on which others were written beside it (but for rounding, see DESIGN's "Numerics").
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from dflash_mlx.errors import UserError
from dflash_mlx.generate import stream_generate
from dflash_mlx.noise import Noise
from dflash_mlx.sampling import Sampler
from dflash_mlx.targets import FAMILIES
from dflash_mlx.train.report import Answered, Listener
from dflash_mlx.train.rows import Prompt
from dflash_mlx.train.settings import Answering
from dflash_mlx.types import Block, SamplingParams
from dflash_mlx.weights import read_folder

if TYPE_CHECKING:
    import mlx.nn as nn

    from dflash_mlx.pair import Pair

SAMPLE_BYTES = 256  # of the middle of every tensor: other weights are another target
PREFILL_BATCH = 8  # mlx-lm's default
QUEUE = 2  # times the batch: prompts that mlx-lm is given at once, so that its batch stays full


@dataclass(frozen=True)
class Answer:
    """What the target wrote to a prompt; a stop token at its end is part of it."""

    prompt: Prompt
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class _Job:
    """One answer to be written."""

    prompt: Prompt
    sampling: SamplingParams
    max_tokens: int
    key: str


def fingerprint(folder: Path) -> str:
    """A name for a target: its config, and a sample of every tensor's bytes.

    Raises:
        UserError: See `weights.read_folder`.
    """
    found = sha256((folder / "config.json").read_bytes())
    tensors = sorted(read_folder(folder).values(), key=lambda info: (info.file, info.start))
    for file in sorted({info.file for info in tensors}):
        with file.open("rb") as weights:
            for info in tensors:
                if info.file == file:
                    found.update(f"{info.name} {info.dtype} {info.shape}".encode())
                    weights.seek((info.start + max(info.start, info.end - SAMPLE_BYTES)) // 2)
                    found.update(weights.read(min(SAMPLE_BYTES, info.nbytes)))
    return found.hexdigest()


class AnswerFile:
    """The answers of one target on disk.

    Args:
        folder: Made if it is not there.
        target: Its `fingerprint`.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self._path = folder / f"{target[:32]}.jsonl"
        self._known: dict[str, tuple[int, ...]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._read()
        except OSError as problem:
            raise UserError(f"answers cannot be kept in `{folder}`: {problem.strerror}") from problem

    def get(self, key: str) -> tuple[int, ...] | None:
        """The tokens of an answer that was written before."""
        return self._known.get(key)

    def add(self, key: str, tokens: Sequence[int]) -> None:
        """Keep an answer, at once."""
        self._known[key] = tuple(tokens)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "tokens": list(tokens)}) + "\n")
        except OSError as problem:
            raise UserError(f"`{self._path}` cannot be written: {problem.strerror}") from problem

    def _read(self) -> None:
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):  # a process was killed in the middle of a line
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        for line in whole.splitlines():
            entry = json.loads(line)
            self._known[entry["key"]] = tuple(entry["tokens"])


def write_answers(
    pair: Pair,
    prompts: Sequence[Prompt],
    answering: Answering,
    kept: AnswerFile,
    listener: Listener,
    cancelled: Callable[[], bool],
) -> list[Answer] | None:
    """An answer to every prompt at every temperature; ready texts are left out.

    Args:
        pair: The target writes; its drafter is not used.
        prompts: Prompts that leave the context no room are left out too.
        answering: How.
        kept: Read and added to.
        listener: Told of the progress.
        cancelled: Asked between steps.

    Returns:
        The answers in the order of prompts, then temperatures; None if it was cancelled.
    """
    jobs = list(_jobs(pair, prompts, answering))
    waiting = [job for job in jobs if kept.get(job.key) is None]
    done, tokens = len(jobs) - len(waiting), 0
    listener(Answered(done, len(jobs), tokens))
    # Like lengths together: less padding.
    waiting.sort(key=lambda job: len(job.prompt.ids))
    batched = FAMILIES[pair.target.model_type].batches
    written = (
        _together(pair, waiting, answering.batch, cancelled) if batched else _singly(pair, waiting, cancelled)
    )
    for job, answer in written:
        kept.add(job.key, answer)
        done, tokens = done + 1, tokens + len(answer)
        listener(Answered(done, len(jobs), tokens))
    if done < len(jobs):
        return None
    return [Answer(job.prompt, kept.get(job.key) or ()) for job in jobs]


def _jobs(pair: Pair, prompts: Sequence[Prompt], answering: Answering) -> Iterator[_Job]:
    for prompt in prompts:
        room = answering.max_tokens
        if pair.context_length is not None:
            room = min(room, pair.context_length - len(prompt.ids))
        if prompt.ready or room < 2:  # one token can be no anchor and its successor
            continue
        for temperature in answering.temperatures:
            sampling = SamplingParams(temperature=temperature)
            if temperature:
                seed = int(
                    sha256(f"{answering.seed} {temperature} {prompt.name}".encode()).hexdigest()[:12], 16
                )
                sampling = replace(sampling, top_p=answering.top_p, top_k=answering.top_k, seed=seed)
            what = [
                prompt.name,
                sampling.temperature,
                sampling.top_p,
                sampling.top_k,
                sampling.seed,
                room,
                sorted(pair.stop_ids),
            ]
            yield _Job(prompt, sampling, room, sha256(json.dumps(what).encode()).hexdigest())


def _together(
    pair: Pair, jobs: Sequence[_Job], batch: int, cancelled: Callable[[], bool]
) -> Iterator[tuple[_Job, list[int]]]:
    """Answers as they are finished, from mlx-lm's batch generation."""
    model: nn.Module = pair.target.model  # type: ignore[attr-defined]  # mlx-lm's own loop wants the model
    generator: Any = BatchGenerator(
        model,
        stop_tokens=[[token] for token in sorted(pair.stop_ids)],
        completion_batch_size=batch,
        prefill_batch_size=min(batch, PREFILL_BATCH),
    )
    waiting, running = list(reversed(jobs)), dict[int, tuple[_Job, list[int]]]()
    try:
        while (waiting or running) and not cancelled():
            fresh = [waiting.pop() for _ in range(min(len(waiting), batch * QUEUE - len(running)))]
            if fresh:
                uids = generator.insert(
                    [list(job.prompt.ids) for job in fresh],
                    [job.max_tokens for job in fresh],
                    samplers=[_sampler(pair, job) for job in fresh],
                )
                running.update((uid, (job, [])) for uid, job in zip(uids, fresh, strict=True))
            for response in generator.next_generated():
                job, answer = running[response.uid]
                answer.append(int(response.token))
                if response.finish_reason is not None:
                    del running[response.uid]
                    yield job, answer
    finally:
        generator.close()
        mx.clear_cache()


def _sampler(pair: Pair, job: _Job) -> Callable[[mx.array], mx.array] | None:
    """mlx-lm's greedy one for all together, or one with noise of its own."""
    if job.sampling.greedy:
        return None
    sampler, noise = Sampler(job.sampling, pair.target.vocab_size), Noise(job.sampling.seed)
    positions = itertools.count()
    return lambda logprobs: sampler.draw(logprobs, noise.gumbel(next(positions), 1, logprobs.shape[-1]))


def _singly(
    pair: Pair, jobs: Sequence[_Job], cancelled: Callable[[], bool]
) -> Iterator[tuple[_Job, list[int]]]:
    """Answers one after the other, from the engine's plain steps."""
    plain = replace(pair, drafter=None, drafter_name=None, default_width=1)
    for job in jobs:
        events = stream_generate(
            plain, job.prompt.ids, job.sampling, max_tokens=job.max_tokens, cancelled=cancelled
        )
        answer = [token for event in events if isinstance(event, Block) for token in event.tokens]
        if cancelled():
            return
        yield job, answer
