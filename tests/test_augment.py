"""Crop, flip and normalise equal the plain numpy ones on the same draws."""

import numpy as np
import pytest
import torch

from scns.augment import crop_flip, normalise
from scns.data import epoch_table
from scns.draws import integers


def some_pixels(count: int, height: int, width: int) -> torch.Tensor:
    grid = torch.arange(count * 3 * height * width).reshape(count, 3, height, width)
    return (integers(255, 1, grid) + 1).to(torch.uint8)  # never 0, so that padding can be told apart


def plain(pixels: torch.Tensor, index: int, dy: int, dx: int, flip: bool, pad: int) -> np.ndarray:
    image = np.pad(pixels[index].numpy(), ((0, 0), (pad, pad), (pad, pad)))
    height, width = pixels.shape[2:]
    crop = image[:, dy : dy + height, dx : dx + width]
    return crop[:, :, ::-1] if flip else crop


@pytest.mark.parametrize(("height", "width", "pad"), [(32, 32, 4), (64, 64, 8), (12, 20, 3), (8, 8, 0)])
@pytest.mark.parametrize("stored", [torch.contiguous_format, torch.channels_last])
def test_crop_equals_numpy(height: int, width: int, pad: int, stored: torch.memory_format) -> None:
    pixels = some_pixels(40, height, width)
    table = epoch_table(40, seed=2, epoch=1, pad=pad)
    out = crop_flip(pixels.contiguous(memory_format=stored), *table, pad)
    assert out.dtype == torch.uint8 and out.shape == pixels.shape
    for row in range(40):
        expected = plain(pixels, *(int(column[row]) for column in table), pad)  # type: ignore[call-arg]
        assert np.array_equal(out[row].numpy(), expected), f"row {row}"


def test_every_offset_and_flip_equals_numpy() -> None:
    pixels, pad = some_pixels(1, 6, 6), 2
    grid = torch.cartesian_prod(torch.arange(5), torch.arange(5), torch.arange(2))
    dy, dx, flip = grid.unbind(1)
    out = crop_flip(pixels, torch.zeros(50, dtype=torch.int64), dy, dx, flip == 1, pad)
    for row, (y, x, mirrored) in enumerate(grid.tolist()):
        assert np.array_equal(out[row].numpy(), plain(pixels, 0, y, x, bool(mirrored), pad))


def test_the_middle_crop_is_the_image() -> None:
    pixels = some_pixels(3, 8, 8)
    middle, no = torch.full((3,), 4), torch.zeros(3, dtype=torch.bool)
    assert torch.equal(crop_flip(pixels, torch.arange(3), middle, middle, no, 4), pixels)
    assert torch.equal(crop_flip(pixels, torch.arange(3), middle, middle, ~no, 4), pixels.flip(3))


def test_normalise_is_the_formula() -> None:
    pixels = some_pixels(5, 8, 8)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    expected = (pixels.double() / 255 - torch.tensor(mean).double()[:, None, None]) / torch.tensor(std).double()[
        :, None, None
    ]
    assert torch.allclose(normalise(pixels, mean, std, torch.float64), expected, rtol=0, atol=1e-6)
    single = normalise(pixels, mean, std)
    assert single.dtype == torch.float32 and torch.allclose(single.double(), expected, rtol=0, atol=1e-5)


def test_black_padding_comes_before_normalising() -> None:
    pixels = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    corner = torch.zeros(1, dtype=torch.int64)
    out = normalise(crop_flip(pixels, corner, corner, corner, corner == 1, 1), (0.5,) * 3, (0.25,) * 3)
    assert out[0, 0, 0].tolist() == [-2.0] * 4 and out[0, 2, :, 0].tolist() == [-2.0] * 4
    assert out[0, 1, 1:, 1:].unique().tolist() == [2.0]


@pytest.mark.parametrize("stored", [torch.contiguous_format, torch.channels_last])
def test_channels_last_is_kept(stored: torch.memory_format) -> None:
    pixels = some_pixels(10, 8, 8).contiguous(memory_format=stored)
    table = epoch_table(10, seed=0, epoch=0, pad=1)
    cropped = crop_flip(pixels, *table, 1)
    assert cropped.is_contiguous(memory_format=torch.channels_last)
    assert normalise(cropped, (0.5,) * 3, (0.2,) * 3).is_contiguous(memory_format=torch.channels_last)


def test_the_last_smaller_batch_is_kept() -> None:
    pixels = some_pixels(10, 8, 8)
    table = epoch_table(10, seed=0, epoch=3, pad=1)
    whole = crop_flip(pixels, *table, 1)
    batches = [crop_flip(pixels, *(column[at : at + 4] for column in table), 1) for at in range(0, 10, 4)]
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert torch.equal(torch.cat(batches), whole)


def test_shapes_are_static() -> None:
    """The meta device has shapes and no values: what runs there uses no mask, no `nonzero` and no host copy."""
    pixels = torch.empty(10, 3, 8, 8, dtype=torch.uint8, device="meta")
    index = torch.empty(4, dtype=torch.int64, device="meta")
    flip = torch.empty(4, dtype=torch.bool, device="meta")
    out = normalise(crop_flip(pixels, index, index, index, flip, 1), (0.5,) * 3, (0.2,) * 3)
    assert out.shape == (4, 3, 8, 8)
