"""Times RepDistiller's own training loop beside ours, interleaved, on the same random images; one JSON line a case.

  python bench/peer.py CHECKOUT                        stock (its defaults, 8 workers), then 16 pinned, persistent ones
  python bench/peer.py CHECKOUT --cases kd --peers stock --epochs 2
  python bench/peer.py CHECKOUT --peers tuned --ours '*live*, fast'      some of our cases alone: each is compiled first

CHECKOUT is a folder with HobbitLong/RepDistiller, left as it is: what keeps it from running on a current torchvision
(a removed attribute, a logger that is not installed) is supplied from outside. Its time is what it prints after each
epoch, without validation; ours is that of bench/epoch.py, the mean of epochs before the peer's and as many after them,
by the same captured steps. Both train resnet20 from a random resnet110, batch 64.
"""

import argparse
import fnmatch
import json
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import types
from functools import partial
from pathlib import Path

IMAGES = 50_000
OURS = {
    "kd": ["kld, live", "kld, live, fast", "kld, live x 8, fast"],
    "crd": ["crd 16384, live", "crd 16384, live, fast", "crd 16384, cached, fast", "crd 16384, live x 8, fast"],
}


def run_peer(checkout: Path, method: str, epochs: int, tuned: bool, images: int) -> None:
    """RepDistiller's train_student.py in this process, on random images, in the current folder."""
    import numpy as np
    import torch
    import torchvision
    from PIL import Image

    class RandomImages(torch.utils.data.Dataset):
        """Has what CIFAR100 of torchvision has, the attributes of its old versions included."""

        def __init__(
            self, root: str, train: bool = True, transform=None, target_transform=None, download=False
        ) -> None:  # type: ignore[no-untyped-def]
            count = images if train else 640
            self.data = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
            self.targets = (np.arange(count) % 100).tolist()
            self.train_data, self.train_labels = self.data, self.targets
            self.test_data, self.test_labels = self.data, self.targets
            self.train, self.transform, self.target_transform = train, transform, target_transform

        def __len__(self) -> int:
            return len(self.targets)

        def __getitem__(self, index: int) -> tuple:
            return self.transform(Image.fromarray(self.data[index])), self.targets[index]

    torchvision.datasets.CIFAR100 = RandomImages
    logger = types.ModuleType("tensorboard_logger")
    logger.Logger = lambda **_: types.SimpleNamespace(log_value=lambda *_: None)  # type: ignore[attr-defined]
    sys.modules["tensorboard_logger"] = logger
    sys.path.insert(0, str(checkout))
    if tuned:
        torch.utils.data.DataLoader = partial(torch.utils.data.DataLoader, pin_memory=True, persistent_workers=True)  # type: ignore
    from models import model_dict  # type: ignore[import-not-found]

    teacher = Path("save/models/resnet110_vanilla/teacher.pth")
    teacher.parent.mkdir(parents=True)
    torch.save({"model": model_dict["resnet110"](num_classes=100).state_dict()}, teacher)
    weights = {"kd": ["-r", "0.1", "-a", "0.9", "-b", "0"], "crd": ["-a", "0", "-b", "0.8"]}[method]
    sys.argv = ["train_student.py", "--path_t", str(teacher), "--distill", method, "--model_s", "resnet20", *weights]
    sys.argv += ["--epochs", str(epochs), "--num_workers", "16" if tuned else "8"]
    runpy.run_path(str(checkout / "train_student.py"), run_name="__main__")


def time_peer(given: argparse.Namespace, method: str, tuned: bool) -> float:
    """Median seconds of its epochs after the first, from what it prints."""
    words = [sys.executable, str(Path(__file__).resolve()), str(given.checkout.resolve()), "--worker", method]
    words += ["--epochs", str(given.epochs + 1), "--images", str(given.images)] + (
        ["--peers", "tuned"] if tuned else []
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    times = [float(seconds) for seconds in re.findall(r"epoch \d+, total time ([\d.]+)", done.stdout)]
    if len(times) < 2:
        sys.exit(f"the peer did not finish:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--cases", default="kd,crd")
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs of each side, after a first")
    parser.add_argument("--peers", default="stock,tuned", help="tuned: 16 pinned, persistent workers")
    parser.add_argument("--ours", default="*", help="pattern of our cases to time, '*live*, fast' for instance")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    import torch

    if not set(given.peers.split(",")) <= {"stock", "tuned"}:
        parser.error(f"--peers '{given.peers}' must be stock, tuned, or stock,tuned.")
    if not torch.cuda.is_available():
        parser.error("the peer runs on a CUDA GPU alone, and there is none here.")
    if given.worker:
        run_peer(given.checkout, given.worker, given.epochs, given.peers == "tuned", given.images)
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from epoch import Case  # type: ignore[import-not-found]

    for method in given.cases.split(","):
        names = fnmatch.filter(OURS[method], given.ours)
        ours = [Case(name, given.images, "cuda", "resnet20") for name in names]
        first = [[case.epoch() for _ in range(given.epochs + 1)][1:] for case in ours]
        peers = {name: time_peer(given, method, name == "tuned") for name in given.peers.split(",")}
        second = [[case.epoch() for _ in range(given.epochs)] for case in ours]
        for case, before, after in zip(ours, first, second, strict=True):
            told = {"case": method, **{f"peer_{name}_epoch_s": seconds for name, seconds in peers.items()}}
            each = [statistics.median(seconds) / case.students for seconds in (before, after)]
            told |= {"ours": case.name, "before_and_after": [round(seconds, 3) for seconds in each]}
            told |= {f"ratio_{name}": round(seconds / statistics.mean(each), 1) for name, seconds in peers.items()}
            said = case.told(after)
            print(json.dumps({**told, "hardware": said["hardware"], "torch": said["torch"]}), flush=True)


if __name__ == "__main__":
    main()
