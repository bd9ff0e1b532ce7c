"""The samples of each step: new in every step, and the same for every layout of the ranks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from hpcbench.errors import CaseError
from hpcbench.kinds.training.plan.any_model import COLOURS
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training
from hpcbench.kinds.training.run.strategies.base import Batch
from hpcbench.operations.token_file import TokenFile, check, open_tokens
from hpcbench.texts import path_of

SEED = 0  # of samples and weights: every case and every rank has the same
_MEAN, _DEVIATION = 127.5, 73.9
"""Those of uniformly random bytes: images are normed by them, as is usual, on the device."""
Tokens = npt.NDArray[np.int64]


class Random:
    """Uniformly random tokens; each sample is known by its step and its index in the global batch.

    ``n_samples``: how many there are before the first comes again, None if there is no end."""

    n_samples: int | None = None

    def __init__(self, spec: Training) -> None:
        self.spec = spec

    def sample(self, step: int, index: int) -> Tokens:
        return _generator(step, index).integers(
            0, self.spec.vocab, self.spec.seq_length + 1, dtype=np.int64)

    def batch(self, step: int, indices: range, device: torch.device) -> Batch:
        """Return these samples of the global batch of a step, on the device.

        BERT predicts the same tokens as models that see only those before: the work is the same."""
        samples = np.stack([self.sample(step, index) for index in indices])
        tokens = torch.from_numpy(samples).to(device)
        return tokens[:, :-1], tokens[:, 1:]


class Images(Random):
    """Uniformly random bytes on the host, and random classes."""

    def batch(self, step: int, indices: range, device: torch.device) -> Batch:
        draws = [_generator(step, index) for index in indices]
        extents = (COLOURS, self.spec.image_size, self.spec.image_size)
        pixels = [draw.integers(0, 256, extents, dtype=np.uint8) for draw in draws]
        images = torch.from_numpy(np.stack(pixels)).to(device)
        classes = np.array([draw.integers(0, self.spec.classes) for draw in draws])
        return (images.float() - _MEAN) / _DEVIATION, torch.from_numpy(classes).to(device)


def _generator(step: int, index: int) -> np.random.Generator:
    """Return the generator of a sample, which depends on seed, step and global index only.

    Philox is a counter hashed with a key (Salmon et al., 2011): each sample has 2^128 numbers."""
    return np.random.Generator(np.random.Philox(key=SEED, counter=[0, 0, index, step]))


class FromFile(Random):
    """Consecutive stretches of a file, from its beginning again at its end; neighbours share a
    token.

    Sample i of step s is stretch s x global batch + i."""

    def __init__(self, spec: Training, file: TokenFile) -> None:
        super().__init__(spec)
        self._file = file
        self.n_samples = self._count = (len(self._file.tokens) - 1) // spec.seq_length
        if self._count < spec.global_batch:
            raise CaseError(
                f"{spec.data}: has {len(self._file.tokens)} tokens, a step takes "
                f"{spec.global_batch} samples of {spec.seq_length} and one more, "
                f"{spec.global_batch * spec.seq_length + 1} tokens")

    def sample(self, step: int, index: int) -> Tokens:
        spec = self.spec
        first = (step * spec.global_batch + index) % self._count * spec.seq_length
        tokens = self._file.tokens[first:first + spec.seq_length + 1].astype(np.int64)
        check(self._file.path, tokens, first, spec.vocab)  # a declared vocabulary may be wrong
        return tokens


class Loader:
    """Brings samples to the device. Every rank has one of its own, with all samples."""

    def __init__(self, spec: Training, device: torch.device, file: TokenFile | None = None) -> None:
        """Read ``file`` if it is open already, else open the data.

        Raises FileError if a file cannot be opened, CaseError if it is too short."""
        self._device = device
        self.file: TokenFile | None = None
        if spec.of_images or spec.data == SYNTHETIC:
            self.source: Random = Images(spec) if spec.of_images else Random(spec)
        else:
            self.file = file or open_tokens(path_of(spec.data), spec.vocab)
            self.source = FromFile(spec, self.file)

    def batch(self, step: int, first: int, count: int) -> Batch:
        return self.source.batch(step, range(first, first + count), self._device)
