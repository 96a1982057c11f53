"""A page that shows anchors beside their negatives: one self-contained HTML file."""

import base64
import html
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from scns import chances
from scns.files import atomic
from scns.neighbors import NeighborTable

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #667; --warn: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --soft: #aab; --warn: #ffb4ab; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1.2rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { color: var(--soft); margin: .2rem 0 1rem; max-width: 48rem; }
section { border-top: 1px solid var(--line); }
.row { display: flex; gap: .6rem; align-items: flex-start; margin: .4rem 0 .9rem; }
.row > div { display: flex; flex-wrap: wrap; gap: .6rem; }
.row > h3 { flex: 0 0 7.5rem; font-size: .9rem; font-weight: 600; margin: .2rem 0 0; }
figure { margin: 0; width: 4.6rem; text-align: center; font-size: .72rem; line-height: 1.2; overflow-wrap: anywhere; }
figure img { width: 4rem; height: 4rem; image-rendering: pixelated; border-radius: 4px; display: block; }
figure img { margin: 0 auto .2rem; }
figure.anchor img { outline: 3px solid #3b6fd4; } figure.suspect img { outline: 2px dashed var(--warn); }
.suspect b { color: var(--warn); }
@media (max-width: 640px) { .row { display: block; } }
@media print { section { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Drawn:
    """The negatives of one sampler: for every anchor, sample numbers, scores, and the score of its own class."""

    name: str
    about: str
    indices: Tensor  # int64 [anchors, m]; -1 = none
    scores: Tensor | None = None  # float [anchors, m]: cosine; -inf = not known
    suspect: Tensor | None = None  # bool [anchors, m]: nearer than the own class


def from_table(
    name: str, about: str, table: NeighborTable, anchors: Tensor, indices: Tensor, scores: Tensor | None = None
) -> Drawn:
    """Negatives with their scores, by default the table's; those nearer than the anchor's own class are suspects."""
    if scores is None:
        scores = chances.look_up(table.indices[anchors].long(), table.scores[anchors].float(), indices)
    if table.positive is None:
        return Drawn(name, about, indices, scores)
    own = table.positive[anchors].float()[:, None]
    return Drawn(name, about, indices, scores, (scores > own) & ~own.isneginf())


def write_gallery(
    path: str | Path,
    title: str,
    pixels: Tensor,
    labels: Tensor | None,
    names: Sequence[str],
    anchors: Tensor,
    drawn: Sequence[Drawn],
) -> None:
    """Write the page: one section an anchor, one row a sampler. `pixels` is uint8 [n, 3, h, w]."""

    def caption(sample: int) -> str:
        if labels is None or int(labels[sample]) < 0:
            return f"#{sample}"
        label = int(labels[sample])
        return html.escape(names[label].replace("_", " ") if label < len(names) else f"class {label}")

    sections = []
    for place, anchor in enumerate(anchors.tolist()):
        rows = [f"<h2>{caption(anchor)} <small>(sample {anchor})</small></h2>"]
        shown = _figure(pixels[anchor], caption(anchor), "anchor", "anchor", f"anchor {anchor}")
        rows.append(f'<div class="row"><h3>Anchor</h3><div>{shown}</div></div>')
        for each in drawn:
            figures = "".join(
                _negative(each, place, column, pixels, caption) for column in range(each.indices.shape[1])
            )
            rows.append(f'<div class="row"><h3>{html.escape(each.name)}</h3><div>{figures}</div></div>')
        sections.append(f"<section>{''.join(rows)}</section>")
    legend = " ".join(f"<b>{html.escape(each.name)}</b>: {html.escape(each.about)}" for each in drawn)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><h1>{html.escape(title)}</h1><p>{legend} Numbers are cosines to the anchor; a dashed frame marks a "
        f"suspected false negative: nearer to the anchor than any sample of its own class.</p>{''.join(sections)}"
        "</body></html>"
    )
    with atomic(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _negative(each: Drawn, place: int, column: int, pixels: Tensor, caption: Callable[[int], str]) -> str:
    sample = int(each.indices[place, column])
    if sample < 0:
        return ""
    known = -math.inf if each.scores is None else float(each.scores[place, column])
    score = f"{known:.2f}" if known > -math.inf else ""
    suspect = each.suspect is not None and bool(each.suspect[place, column])
    note = f"<b>{score} ?</b>" if suspect else score
    return _figure(pixels[sample], caption(sample), note, "suspect" if suspect else "", f"negative {sample}")


def _figure(pixels: Tensor, caption: str, note: str, kind: str, alternative: str) -> str:
    return (
        f'<figure class="{kind}"><img src="{data_uri(pixels)}" alt="{alternative}: {caption}">'
        f"<figcaption>{caption}<br>{note}</figcaption></figure>"
    )


def data_uri(pixels: Tensor) -> str:
    """A picture uint8 [3, h, w] as text for an <img>."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).cpu().contiguous().numpy()).save(buffer, "WEBP", lossless=True)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
