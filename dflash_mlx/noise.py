"""Where a generation's randomness comes from: one place for drafter, verify passes and plain steps.

With a seed, the target's choice at a position is `argmax(log p + g)`, where the Gumbel noise g is a function
of the seed and the position alone; the drafter proposes `argmax(log q + g)` with the same g, and a draft is
kept exactly if it is the target's own choice. So the text depends on seed, prompt and target, and on nothing
else: no width, no drafter, no plain steps in between. If p and q differ by a total variation of d, a draft
is kept with a probability of at least (1 - d) / (1 + d), where the best coupling without a seed has 1 - d
(Daliri, Musco and Suresh 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding").

Nothing here is read on the host, and nothing touches MLX's global random state.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

import mlx.core as mx

# Half a step of MLX's uniforms: the noise of a 0 is then a number.
LEAST = 2.0**-33


class Noise:
    """The noise of one generation, independent of that of others.

    Args:
        seed: In [0, 2**64); None takes fresh entropy from the operating system.

    Attributes:
        seeded: The generation has to repeat.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seeded = seed is not None
        self._seed = secrets.randbits(64) if seed is None else seed
        self._given = 0

    def gumbel(self, first: int, count: int, vocab: int) -> mx.array:
        """Gumbel noise of the positions `first` .. `first + count - 1`, always the same for a position.

        Args:
            first: Counted from the generation's first token.
            count: At least 1.
            vocab: V.

        Returns:
            `[count, V]` float32, finite, lazy.
        """
        keys = mx.array([self._key(b"position", first + i) for i in range(count)], mx.uint32)

        def row(key: mx.array) -> mx.array:
            # `1 - u` in the usual formula: the largest values, which decide, then come from the u near 0,
            # where float32 is densest; near 1 it would have ties.
            uniform = mx.maximum(mx.random.uniform(shape=(vocab,), key=key), LEAST)
            return -mx.log(-mx.log1p(-uniform))

        return row(keys.squeeze(0))[None] if count == 1 else mx.vmap(row)(keys)

    def uniforms(self, count: int) -> mx.array:
        """`[count]` float32 in [0, 1), other ones with every call."""
        return mx.random.uniform(shape=(count,), key=self.next())

    def next(self) -> mx.array:
        """A random key that was not given out before, `[2]` uint32."""
        self._given += 1
        return mx.array(self._key(b"call", self._given), mx.uint32)

    def _key(self, use: bytes, index: int) -> tuple[int, int]:
        # On the host: no key hangs on a chain of earlier ones, and none is left lazy.
        digest = blake2b(
            index.to_bytes(8, "little"), digest_size=8, key=self._seed.to_bytes(8, "little"), person=use
        ).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
