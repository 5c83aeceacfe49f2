"""Images that are decoded when they are needed, a step ahead where the next batches are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from mixwise.data.decoding import Source
from mixwise.data.decoding_workers import Batch, Decoder
from mixwise.errors import DataError
from mixwise.seeding import stream

Colors: TypeAlias = tuple[float, float, float]

IMAGENET_MEAN: Colors = (0.485, 0.456, 0.406)
IMAGENET_STD: Colors = (0.229, 0.224, 0.225)

_AHEAD = 512e6  # bytes of pixels that may wait to be taken


class ImageSource(Protocol):
    """Encoded images, one after the other."""

    def __len__(self) -> int: ...

    def source(self, index: int) -> Source:
        """The path of an image, or the bytes of its file."""
        ...

    def name(self, index: int) -> str:
        """What to call it in a message."""
        ...


@dataclass(frozen=True)
class ImageForm:
    """What becomes of every image.

    Args:
        size: pixels per side.
        augment: whether training sees random crops, mirrored at random; otherwise the middle, as evaluation does.
        mean, std: of red, green and blue, in 0 … 1; None for bytes as they are, where v means v / 255.
    """

    size: int = 224
    augment: bool = True
    mean: Colors | None = IMAGENET_MEAN
    std: Colors | None = IMAGENET_STD

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise DataError(f"size = {self.size!r}; give the pixels per side as a whole number, such as 224")
        if (self.mean is None) != (self.std is None):
            raise DataError(f"mean = {self.mean}, std = {self.std}; give both or neither")
        if self.mean is not None and self.std is not None:
            three = len(self.mean) == len(self.std) == 3
            if not three or not all(value > 0 for value in self.std):
                raise DataError(f"mean = {self.mean}, std = {self.std}; give three numbers each, std above 0")


class ImageSamples:
    """The `Samples` of a source of images: (b, 3, size, size) in float32, or in uint8 without mean and std.

    What is drawn depends on the seed and the place in the batch alone, whoever decodes and whenever.

    Args:
        source: where the images come from.
        form: what becomes of them.
        decoder: who decodes them.
        at: which images of the source, in which order; all by default.
    """

    def __init__(self, source: ImageSource, form: ImageForm, decoder: Decoder, at: torch.Tensor | None = None) -> None:
        self.source, self.form, self.decoder = source, form, decoder
        self.at = torch.arange(len(source)) if at is None else at
        self._ahead: dict[tuple[bytes, int | None], tuple[Batch, int]] = {}  # with the number of batches taken before
        self._taken = 0

    @property
    def kind(self) -> str:
        """What one sample is."""
        return f"images of {self.form.size} × {self.form.size} pixels"

    def __len__(self) -> int:
        return len(self.at)

    def take(self, indices: torch.Tensor, draws: int | None = None) -> torch.Tensor:
        """The images at these positions; with draws, cropped and mirrored at random if the form says so."""
        self._taken += 1
        announced = self._ahead.pop(self._key(indices, draws), None)
        return self._normalized((announced[0] if announced else self._begun(indices, draws)).wait())

    def expect(self, indices: torch.Tensor, draws: int | None = None) -> None:
        """Begin to decode this batch, if other processes do that and not too much is waiting already."""
        key = self._key(indices, draws)
        if self.decoder.workers == 0 or key in self._ahead:
            return
        limit = max(1, int(_AHEAD / (max(1, len(indices)) * 3 * self.form.size**2)))
        if len(self._ahead) >= limit:
            oldest = next(iter(self._ahead))
            if self._taken - self._ahead[oldest][1] < 2 * limit:
                return
            del self._ahead[oldest]  # announced by a run that has ended
        self._ahead[key] = self._begun(indices, draws), self._taken

    def subset(self, indices: torch.Tensor) -> ImageSamples:
        """The images at these positions, in this order."""
        return ImageSamples(self.source, self.form, self.decoder, self.at[indices])

    def close(self) -> None:
        """End the processes that decode, for the other parts of the data set, too; at exit they end by themselves."""
        self._ahead.clear()
        self.decoder.close()

    def _key(self, indices: torch.Tensor, draws: int | None) -> tuple[bytes, int | None]:
        return indices.to(torch.int64).numpy().tobytes(), draws if self.form.augment else None

    def _begun(self, indices: torch.Tensor, draws: int | None) -> Batch:
        at: Sequence[int] = self.at[indices].tolist()
        drawn = draws is not None and self.form.augment
        seeds = [stream(draws or 0, "crop", place) if drawn else None for place in range(len(at))]
        sources, names = [self.source.source(i) for i in at], [self.source.name(i) for i in at]
        return self.decoder.start(sources, names, seeds, self.form.size)

    def _normalized(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.form.mean is None or self.form.std is None:
            return pixels
        mean, std = (255 * torch.tensor(values).view(3, 1, 1) for values in (self.form.mean, self.form.std))
        return pixels.float().sub_(mean).div_(std)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_ahead": {}}  # who gets a copy decodes for itself
