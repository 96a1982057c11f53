"""A contact sheet: the first images of every class, with its name."""

import math

import matplotlib
import torch
from PIL import Image, ImageDraw, ImageFont

from scns.data import Images

_ROWS = 20  # up to so many classes get a row each; more are laid out as a grid of small groups
_TILE = 64  # pixels of a shown image: CIFAR's 32 doubled, Tiny-ImageNet's as they are
_GAP = 4
_FONT = 15  # pixels: readable without zooming


def contact_sheet(images: Images) -> Image.Image:
    """The first images of every class: a row a class up to 20 classes, else a grid of four images a class."""
    names = ["".join(each if each.isprintable() else "?" for each in name) for name in images.names]
    few = images.classes <= _ROWS
    across = 12 if few else 4
    font = _font()
    step = _TILE + _GAP
    strip = across * step
    label = max(math.ceil(font.getlength(name)) for name in names) + 3 * _GAP if few else 0
    width, height = (label + strip, step) if few else (strip + 3 * _GAP, step + _FONT + 2 * _GAP)
    # The number of columns that makes the sheet about as wide as it is high.
    columns = 1 if few else max(1, round(math.sqrt(images.classes * height / width)))
    rows = math.ceil(images.classes / columns)
    sheet = Image.new("RGB", (columns * width + 2 * _GAP, rows * height + 2 * _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for kind, name in enumerate(names):
        row, column = divmod(kind, columns)
        left, top = column * width + _GAP, row * height + _GAP
        if few:
            draw.text((left + _GAP, top + _TILE / 2), name, "black", font, anchor="lm")
        else:
            draw.text((left, top), _shortened(name, font, strip), "black", font)
        for place, tile in enumerate(_tiles(images, kind, across)):
            sheet.paste(tile, (left + label + place * step, top if few else top + _FONT + _GAP))
    return sheet


def _tiles(images: Images, kind: int, count: int) -> list[Image.Image]:
    chosen = torch.nonzero(images.labels == kind).flatten()[:count]
    pixels = images.pixels[chosen].permute(0, 2, 3, 1).cpu().numpy()  # [count, height, width, 3]
    # Whole pixels when enlarging, so that what the network sees is what is shown.
    method = Image.Resampling.NEAREST if images.size <= _TILE else Image.Resampling.BICUBIC
    return [Image.fromarray(picture).resize((_TILE, _TILE), method) for picture in pixels]


def _font() -> ImageFont.FreeTypeFont:
    """The font of the figures: Pillow's own has no letters beyond English ones, and draws boxes in their place."""
    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", _FONT)


def _shortened(name: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    if font.getlength(name) <= width:
        return name
    while font.getlength(name + "...") > width:
        name = name[:-1]
    return name + "..."
