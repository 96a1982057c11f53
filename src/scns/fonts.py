"""Fonts of the system for characters that matplotlib's own lacks: Chinese, Japanese, Korean, emoji."""

from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

_TOLD = 12  # characters that are named: there may be thousands


class _Font(NamedTuple):
    path: str
    family: str
    regular: bool
    face: Any  # matplotlib's FT2Font

    def has(self, characters: Set[str]) -> set[str]:
        return {each for each in characters if self.face.get_char_index(ord(each))}


def complete(figure: Figure) -> str:
    """Let the texts of a figure fall back on fonts that have their characters; a sentence where no font has some."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_ticklabels()  # which are written no earlier than they are asked for
    texts = figure.findobj(Text)
    own = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    written = {each for text in texts for each in text.get_text() if each.isprintable()}
    lacking = {each for each in written if not own.get_char_index(ord(each))}
    families = []
    while lacking:
        best = max(_system(), key=lambda font: (len(font.has(lacking)), font.regular), default=None)
        if best is None or not best.has(lacking):
            break
        lacking -= best.has(lacking)
        families.append(best.family)
        if best.path not in {str(each.fname) for each in font_manager.fontManager.ttflist}:
            font_manager.fontManager.addfont(best.path)  # its list is of the day on which it was made
    for text in texts if families else []:
        text.set_fontfamily([own.family_name, *families])
    return _sentence(lacking) if lacking else ""


def _sentence(lacking: set[str]) -> str:
    shown = " ".join(sorted(lacking)[:_TOLD])
    more = f" and {len(lacking) - _TOLD} more" if len(lacking) > _TOLD else ""
    return (
        f"No font of this system has {shown}{more}, which are boxes in the figure; install one, such as Noto Sans CJK "
        "(fonts-noto-cjk) for Chinese, Japanese and Korean or Symbola (fonts-symbola) for emoji, and draw it again."
    )


@cache
def _system() -> list[_Font]:
    """The fonts that are installed now and can be drawn at any size, in the order of their files."""
    found = []
    for path in sorted(font_manager.findSystemFonts()):
        try:
            face = font_manager.get_font(path)
        except (OSError, RuntimeError):  # of colours or of bits alone, or no font
            continue
        everything = "lastresort" in Path(path).stem.lower().replace(" ", "")  # which has a box for every character
        if face.scalable and not everything:
            found.append(_Font(path, face.family_name, face.style_name == "Regular", face))
    return found
