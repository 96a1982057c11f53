"""Random crop, horizontal flip and normalisation as functions of (images, offsets, flips): no randomness in here.

Padding is black and comes before normalisation, as in the published recipes. Everything is index arithmetic: static
shapes, no boolean masks, no host synchronisation. Results are channels_last.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.data import Images
from scns.feed import Feed


def crop_flip(pixels: Tensor, index: Tensor, dy: Tensor, dx: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Images `index`, padded by `pad` black pixels, cropped at (dy, dx), mirrored where `flip`: [batch, 3, h, w]."""
    height, width = pixels.shape[2:]
    rows = torch.arange(-pad, height - pad, device=pixels.device)
    columns = torch.arange(-pad, width - pad, device=pixels.device)
    y = rows + dy[:, None]  # [batch, height]
    x = torch.where(flip[:, None], columns.flip(0), columns) + dx[:, None]  # [batch, width]
    near_y, near_x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    inside_y, inside_x = y == near_y, x == near_x
    taken = pixels.permute(0, 2, 3, 1)[index[:, None, None], near_y[:, :, None], near_x[:, None, :]]  # [batch, h, w, 3]
    taken = taken * (inside_y[:, :, None] & inside_x[:, None, :])[..., None]
    return taken.permute(0, 3, 1, 2)


def view(
    images: Images, index: Tensor, dy: Tensor, dx: Tensor, flip: Tensor, pad: int, fed: Feed | None = None
) -> tuple[Tensor, Tensor]:
    """(the normalised views of samples `index`, their numbers): `dy`, `dx` and `flip` are by sample."""
    dy, dx, flip = dy[index], dx[index], flip[index]
    pixels = crop_flip(*located(images, index, fed), dy, dx, flip, pad)
    return normalise(pixels, images.mean, images.std), number(dy, dx, flip, pad)


def number(dy: Tensor, dx: Tensor, flip: Tensor, pad: int) -> Tensor:
    """One number for each crop and flip."""
    return (dy * (2 * pad + 1) + dx) * 2 + flip


def resize(images: Tensor, size: int) -> Tensor:
    """Normalised images at `size` pixels a side, channels_last; 0 leaves them as they are."""
    if not size or images.shape[2] == size:
        return images
    resized = F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)
    return resized.contiguous(memory_format=torch.channels_last)


def located(images: Images, index: Tensor, fed: Feed | None) -> tuple[Tensor, Tensor]:
    """(pixels on the device, the rows of them that hold the samples `index`)."""
    if fed is not None:
        return fed.pixels, fed.slot[index]
    assert isinstance(images.pixels, Tensor)
    return images.pixels, index


def normalise(
    pixels: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """uint8 [batch, 3, h, w] -> (pixels / 255 - mean) / std, channels_last."""
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    pixels = pixels.to(dtype, memory_format=torch.channels_last)
    return pixels * per_channel(scale, pixels) + per_channel(shift, pixels)


def per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.stack([like.new_full((), value) for value in values])[:, None, None]
