"""Times tables of embeddings that are large: streamed from a mapped file, and in memory; one JSON line a case.

  python bench/large.py stream --device cuda --memory 64G      10,000,000 x 128 from a file, k = 100
  python bench/large.py memory --device cuda                    1,281,167 x 512 in memory, k = 100
  python bench/large.py stream --rows 200000 --dim 64 --memory 1G
  python bench/large.py stream --rows 64 --dim 16 -k 5 --memory 10M          a trial
Clustered random data of 1,000 classes; the file (rows x dim x 4 bytes) is written once to --folder and kept there.

floor_s is the least time of the products and of writing and reading their scores once: at 790 TFLOP/s (bfloat16) and
4.3 TB/s of an H200; on a CPU at the speed of a product of 1,024 rows measured just before, in CPU seconds, which other
work on the machine does not change. share = floor_s / seconds, on a CPU floor_s / cpu_s.
peak_mb is the growth of what the device held; on the CPU the mapped file's pages in memory are part of it.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from scns import room
from scns.neighbors import NeighborTable

CLASSES = 1000


def labels_of(rows: int) -> torch.Tensor:
    return (torch.arange(rows) * 2654435761) % 2**32 % CLASSES  # scattered, as in a shuffled file


def fill(into: np.ndarray, device: str) -> None:
    """Random rows around the centres of their classes, a part at a time."""
    generator = torch.Generator(device).manual_seed(0)
    centres = torch.randn(CLASSES, into.shape[1], generator=generator, device=device)
    labels = labels_of(len(into))
    for start in range(0, len(into), 1 << 18):
        some = labels[start : start + (1 << 18)].to(device)
        rows = centres[some]
        rows += 1.5 * torch.randn(rows.shape, generator=generator, device=device)
        into[start : start + len(some)] = rows.cpu().numpy()


def mapped(folder: Path, rows: int, dim: int, device: str) -> np.ndarray:
    path = folder / f"scns-large-{rows}x{dim}.npy"
    if not path.exists():
        part = path.with_suffix(".part")
        into = np.lib.format.open_memmap(part, "w+", np.float32, (rows, dim))
        fill(into, device)
        into.flush()
        part.rename(path)
    return np.load(path, mmap_mode="c")


def floor(rows: int, asked: int, dim: int, device: str) -> float:
    flop, scores = 2 * rows * asked * dim, 4 * rows * asked
    if device == "cuda":
        return flop / 7.9e14 + 2 * scores / 4.3e12
    left, right = torch.randn(1024, dim), torch.randn(min(rows, 16_384), dim)
    scores, times = torch.empty(len(left), len(right)), []  # into the same memory, as the search does
    for _ in range(9):
        start = time.process_time()
        torch.mm(left, right.T, out=scores)
        times.append(time.process_time() - start)
    return min(times) * rows * asked / (len(left) * len(right))


def worst_error(table: NeighborTable, x: np.ndarray, labels: torch.Tensor, device: str) -> float:
    """Of 16 rows against all in float64: the largest difference of the sorted scores, as float16 holds them."""
    worst = 0.0
    for row in torch.linspace(0, len(table) - 1, min(16, len(table))).long().tolist():
        one = torch.nn.functional.normalize(torch.from_numpy(x[row : row + 1]).to(device).double(), dim=1)
        parts = []
        for start in range(0, len(x), 1 << 20):
            part = torch.from_numpy(x[start : start + (1 << 20)]).to(device)
            scores = (torch.nn.functional.normalize(part, dim=1).double() @ one.T)[:, 0]
            scores[labels[start : start + (1 << 20)].to(device) == labels[row]] = -torch.inf
            parts.append(scores.topk(min(table.info.k, len(scores))).values)
        truth = torch.cat(parts).topk(table.info.k).values.cpu()
        worst = max(worst, float((truth - table.scores[row].cpu().double()).abs().max()))
    return worst


def host_peak() -> int:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def timed(
    data: np.ndarray | torch.Tensor, labels: torch.Tensor, k: int, asked: int, device: str, options: dict[str, str]
) -> tuple[NeighborTable, tuple[float, float], int, str]:
    """(the table of the first `asked` rows, seconds and CPU seconds, growth of the device's memory, what it told)."""
    cuda, told = device == "cuda", []
    small = {"memory": "50M"} if options else {}
    NeighborTable.build(data[:64], labels[:64], k=2, device=device, **small)  # loads libraries and kernels
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # forget the largest memory so far
    before = torch.cuda.memory_allocated() if cuda else host_peak()
    start, cpu = time.perf_counter(), time.process_time()
    table = NeighborTable.build(
        data, labels, k=k, positive=None, rows=range(asked), device=device, tell=told.append, **options
    )
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start, time.process_time() - cpu
    return table, seconds, (torch.cuda.max_memory_allocated() if cuda else host_peak()) - before, " ".join(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["stream", "memory"])
    parser.add_argument("--rows", type=int, help="by default 10,000,000 streamed and 1,281,167 in memory")
    parser.add_argument("--dim", type=int, help="by default 128 and 512")
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--memory", default="64G", help="of the streamed search")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--queries", type=int, help="search that many of the rows only")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the file is kept")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; a trial run anywhere: --rows 20000 --dim 64 --device cpu")
    streams = given.how == "stream"
    rows, dim = given.rows or (10_000_000 if streams else 1_281_167), given.dim or (128 if streams else 512)
    asked, labels = min(rows, given.queries or rows), labels_of(rows)
    x = mapped(given.folder, rows, dim, given.device) if streams else np.empty((rows, dim), np.float32)
    if not streams:
        fill(x, given.device)
    least = floor(rows, asked, dim, given.device)
    options = {"memory": given.memory} if streams else {}
    data = x if streams else torch.from_numpy(x).to(given.device)
    table, (seconds, cpu), peak, told = timed(data, labels, given.k, asked, given.device, options)
    print(json.dumps({
        "case": given.how, "rows": rows, "asked": asked, "dim": dim, "k": given.k, "device": given.device,
        "memory": options.get("memory"), "seconds": round(seconds, 3), "cpu_s": round(cpu, 3),
        "floor_s": round(least, 3), "share": round(least / (seconds if given.device == "cuda" else cpu), 4),
        "embedding_bytes": x.nbytes,
        "table_bytes": NeighborTable.bytes(asked, given.k, positive=False), "peak_mb": round(peak / 1e6, 1),
        "within_memory": peak <= room.parse(given.memory) if streams else None,
        "worst_score_error": worst_error(table, x, labels, given.device), "told": told,
        "hardware": torch.cuda.get_device_name() if given.device == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(), "torch": torch.__version__,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
