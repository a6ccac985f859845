"""Texts as samples: strings in memory, turned into numbers by the tokeniser of the network.

A text model hands its tokeniser to :func:`~classgap.data.load_data` as ``encode``: a function from a list of texts to a tensor
(B, …) with one shape for every text, e.g. token numbers and attention mask of a fixed length, (B, 2, length). Everything after
that treats the encoded texts as it treats vectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgap.checks import InputError
from classgap.data.images import Names

Encode = Callable[[list[str]], Tensor]
"""From texts to a tensor (B, …)."""
_CHUNK = 1000


@dataclass(frozen=True, eq=False)
class Texts:
    """Some texts, encoded when they are asked for.

    Attributes:
        rows: Which of the texts belong to this set.
        encode: The tokeniser of the network; ``None`` while there is no network.
    """

    texts: Names
    rows: NDArray[np.int64]
    encode: Encode | None = None
    random: bool = False

    @classmethod
    def of(cls, texts: Iterable[str], encode: Encode | None = None) -> Texts:
        """All of these texts."""
        names = Names(texts)
        return cls(names, np.arange(len(names)), encode)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """As that of a tensor of all encoded texts; of the texts themselves while there is no tokeniser."""
        if self.encode is None:
            return (len(self),)
        return (len(self), *_encoded(self.encode, [self.texts[0]]).shape[1:])

    @property
    def ids(self) -> list[str]:
        """Positions in the file."""
        return [str(row) for row in self.rows]

    @property
    def strings(self) -> list[str]:
        """The texts themselves."""
        return [self.texts[row] for row in self.rows]

    def take(self, rows: Any) -> Texts:
        """These texts, in this order."""
        return dataclasses.replace(self, rows=self.rows[np.asarray(rows, dtype=np.int64)])

    def joined(self, other: Texts) -> Texts:
        """These texts and then those of another part of the same set."""
        return dataclasses.replace(self, rows=np.concatenate([self.rows, other.rows]))

    def batch(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> Tensor:
        """Encoded texts (B, …)."""
        if self.encode is None:
            raise InputError("texts need a text model, whose tokeniser turns them into numbers")
        return _encoded(self.encode, [self.texts[self.rows[row]] for row in rows])

    def encoded(self) -> Tensor:
        """All of them in memory."""
        starts = range(0, len(self), _CHUNK)
        return torch.cat([self.batch(range(start, min(start + _CHUNK, len(self)))) for start in starts])


def _encoded(encode: Encode, texts: list[str]) -> Tensor:
    found = encode(texts)
    if not isinstance(found, Tensor) or len(found) != len(texts):
        got = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"encode must return a tensor with one row for each of {len(texts)} texts, got {got}")
    return found
