"""Label names -> vectors: what the words say about which classes are alike.

A label's vector is the mean of the raw vectors of its words. Vectors come from the bundled GloVe cut (the
words of the CIFAR-10, CIFAR-100 and Tiny-ImageNet labels) or from the user's file; where no words exist,
`class_embeddings` gives centroids of a network's features instead.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scns import checks
from scns.errors import InputError, unknown
from scns.wordfiles import Progress, Vectors, read_words

_ASSETS = Path(__file__).parent / "assets"
# Labels of Tiny-ImageNet that common vector files lack, and their synonyms in WordNet.
_SYNONYMS = {"gasmask": "respirator", "jinrikisha": "rickshaw"}


class LabelWords(NamedTuple):
    """Label vectors, and the words that had to be left out of them."""

    vectors: Tensor  # float32 [classes, dim]
    missing: dict[str, list[str]]  # label -> its words without a vector, where it has such


def label_vectors(
    names: Sequence[str], source: str | Path = "glove", on_missing: str = "error", *, progress: Progress | None = None
) -> Tensor:
    """One vector for each label, float32 [classes, dim]: the mean of the raw vectors of its words.

    `source` is "glove" (bundled: the words of the CIFAR and Tiny-ImageNet labels, no others) or a file: word2vec .bin,
    GloVe or fastText .txt / .vec, each also as .gz, or .npz. Without one, take `class_embeddings`.
    Words without a vector are dropped (`missing_words` names them). A label without any known word is an error, or,
    with on_missing="uniform", a zero vector: its cosine with every class is 0, so its negatives are drawn uniformly
    (from a table built with on_zero="uniform").
    """
    return label_words(names, source, on_missing, progress=progress).vectors


def missing_words(names: Sequence[str], source: str | Path = "glove") -> dict[str, list[str]]:
    """The words of each label that `source` has no vector for; labels with none missing are left out."""
    return label_words(names, source, "uniform").missing


def label_words(
    names: Sequence[str], source: str | Path = "glove", on_missing: str = "error", *, progress: Progress | None = None
) -> LabelWords:
    """What `label_vectors` and `missing_words` say, from one reading of `source`."""
    if on_missing not in ("error", "uniform"):
        raise unknown("on_missing", on_missing, ["error", "uniform"])
    ordered = hasattr(names, "__len__") and not isinstance(names, str | set | frozenset)  # a set has no order
    if not ordered or not len(names) or not all(isinstance(name, str) for name in names):
        raise InputError(f"Label names are a list of at least one name, but this is {names!r}.")
    tokens = {name: words(name) for name in names}
    exact = {token for listed in tokens.values() for token in listed}
    known = _vectors(source, {form for token in exact for form in _forms(token)}, exact, progress)
    missing = {name: [token for token in listed if _find(known, token) is None] for name, listed in tokens.items()}
    strangers = [name for name, listed in tokens.items() if len(missing[name]) == len(listed)]
    if strangers and (on_missing == "error" or not known):
        raise _no_words(strangers, tokens, source)
    dim = len(next(iter(known.values())))
    rows = np.zeros((len(names), dim))
    for row, name in enumerate(names):
        vectors = [vector for vector in (_find(known, token) for token in tokens[name]) if vector is not None]
        if vectors:
            rows[row] = np.mean(vectors, axis=0, dtype=np.float64)
    return LabelWords(torch.from_numpy(rows).float(), {name: lost for name, lost in missing.items() if lost})


def words(label: str) -> list[str]:
    """The words of a label, split at spaces, '_', '-' and '/'; of synonyms separated by commas, those of the first."""
    return [word for word in re.split(r"[\s_\-/]+", label.split(",")[0]) if word]


def class_embeddings(
    embeddings: Tensor | np.ndarray, labels: Tensor | np.ndarray | Sequence[int], classes: int | None = None
) -> Tensor:
    """Class centroids, float32 [classes, dim]: the mean of the L2-normalised rows of each class.

    For class tables where no words exist. Rows labelled -1 are left out; `classes` defaults to the largest
    label + 1.
    """
    given = checks.tensor(embeddings, "Embeddings")
    if given.dim() != 2:
        raise InputError(f"Embeddings must be [rows, dim], but these are {tuple(given.shape)}.")
    owner = checks.marks(checks.tensor(labels, "Labels"), len(given), "labels", given.device)
    assert owner is not None
    kept = owner >= 0
    rows, owner = given[kept].float(), owner[kept]
    lengths = rows.norm(dim=1)
    bad = (~torch.isfinite(lengths) | (lengths == 0)).nonzero().flatten()
    if len(bad):
        where = kept.nonzero().flatten()[bad][:5].tolist()
        raise InputError(
            f"{len(bad)} embeddings are zero or not finite (rows {where}); they have no direction, drop them."
        )
    count = int(owner.max()) + 1 if classes is None and len(owner) else classes or 0
    if len(owner) and int(owner.max()) >= count:
        raise InputError(f"Label {int(owner.max())} does not fit {count} classes; the largest label is {count - 1}.")
    known, members = owner.unique(return_counts=True)  # the classes with samples: labels may be any numbers
    if len(known) < count or not count:
        some = set(known.tolist())
        first = [label for label in range(min(count, len(some) + 10)) if label not in some][:10]
        raise InputError(
            f"{count - len(known)} of {count} classes have no samples ({first}), and every class needs at least one; "
            "number those that have any by labels.unique(return_inverse=True)[1]."
        )
    sums = torch.zeros(count, rows.shape[1], device=rows.device).index_add_(0, owner, rows / lengths[:, None])
    return sums / members[:, None]


def class_cosines(vectors: Tensor) -> Tensor:
    """Z[i, j] = <z_i, z_j> / (|z_i| |z_j|), [classes, classes]; a zero vector has cosine 0 with all."""
    unit = F.normalize(vectors, dim=1)
    return (unit @ unit.T).clamp(-1, 1)


def alike(cosine: Tensor) -> list[int]:
    """An order in which like classes are neighbours: from the closest pair on, always the nearest class left."""
    left = cosine.clone().fill_diagonal_(-2.0)  # below every cosine
    order = [int(left.max(dim=1).values.argmax())]
    while len(order) < len(left):
        left[:, order[-1]] = -3.0  # taken
        order.append(int(left[order[-1]].argmax()))
    return order


def blocks(cosine: Tensor) -> list[list[int]]:
    """All classes in blocks of like ones, as the paper shows them: CIFAR-100 in 5 figures, Tiny-ImageNet in 6."""
    order, size = alike(cosine), 20 if len(cosine) <= 100 else 34
    return [order[start : start + size] for start in range(0, len(order), size)]


def class_probabilities(vectors: Tensor, scale: float = 5.0) -> Tensor:
    """P[i, j] = softmax_j(scale * Z[i, j]), j != i, [classes, classes]: how often class i draws class j."""
    checks.scale(scale)
    if vectors.dim() != 2 or len(vectors) < 2:
        raise InputError(
            f"Vectors [classes, dim] of 2 or more classes are needed, but the shape is {tuple(vectors.shape)}."
        )
    own = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    return (scale * class_cosines(vectors)).masked_fill(own, -math.inf).softmax(dim=1)


def label_names(name: str) -> tuple[str, ...]:
    """The label names of "cifar10" or "cifar100", in label order."""
    known = json.loads((_ASSETS / "labels.json").read_text())
    if name not in known:
        raise unknown("label set", name, known)
    return tuple(known[name].split())


def _vectors(source: str | Path, wanted: set[str], exact: set[str], progress: Progress | None) -> Vectors:
    if source == "glove":
        return read_words(_ASSETS / "glove-100d-labelwords.npz", wanted)
    if not isinstance(source, str | Path):
        raise InputError(
            f"Word vectors are 'glove' or a file, but source is a {type(source).__name__}; vectors of your own, a row "
            "a class, go to NeighborTable.build as they are."
        )
    if not Path(source).is_file():
        raise InputError(
            f"Word vectors '{source}' are neither 'glove' nor a file; give a path to .bin, .txt, .vec or .npz."
        )
    return read_words(source, wanted, enough=exact, progress=progress)


def _no_words(strangers: list[str], tokens: dict[str, list[str]], source: str | Path) -> InputError:
    listed = "; ".join(f"'{label}' ({', '.join(tokens[label])})" for label in strangers[:10])
    more = f" and {len(strangers) - 10} more" if len(strangers) > 10 else ""
    held = "glove, which is bundled with the words of the CIFAR and Tiny-ImageNet labels alone,"
    remedy = "rename them or give a file of word vectors as source"
    if len(strangers) < len(tokens):  # else there is nothing to be near to
        remedy = (
            "rename them, give a file of word vectors as source, or let them be drawn uniformly with "
            'on_missing="uniform"'
        )
    return InputError(
        f"{held if source == 'glove' else source} has no vector for any word of {len(strangers)} of {len(tokens)} "
        f"labels: {listed}{more}; {remedy}."
    )


def _forms(token: str) -> tuple[str, ...]:
    """The spellings that are looked up, in order of preference."""
    forms = token, token.lower(), token.capitalize()
    return (*forms, _SYNONYMS[token.lower()]) if token.lower() in _SYNONYMS else forms


def _find(known: Vectors, token: str) -> np.ndarray | None:
    return next((known[form] for form in _forms(token) if form in known), None)
