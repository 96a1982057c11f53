"""Times neighbour tables, weighted losses and samplers; one JSON line a case.

  python bench/negatives.py table            exact tables on the CPU against faiss IndexFlatIP with over-fetch
  python bench/negatives.py loss             InfoNCE over 4,096 draws: weights on k logits against gather and bmm
  python bench/negatives.py sampling         draws a second of every sampler        [--device cuda]
  python bench/negatives.py gpu-table        exact tables on a GPU: 50,000 and 1,281,167 rows
Ratios are taken in one run, interleaved, on random data. `table` runs each case in its own process to read its memory.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from scns import functional
from scns.memory import FeatureTable
from scns.neighbors import NeighborTable
from scns.sampling import AllNegatives, ClassNegatives, InstanceNegatives, MixedNegatives, UniformNegatives
from scns.soft import SoftNegatives


def tell(**case: object) -> None:
    hardware = (
        torch.cuda.get_device_name() if case.get("device") == "cuda" else platform.processor() or platform.machine()
    )
    threads = torch.get_num_threads()
    print(json.dumps({**case, "hardware": hardware, "threads": threads, "torch": torch.__version__}), flush=True)


def random_set(rows: int, dim: int, device: str = "cpu", classes: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    """Clustered unit vectors: 20 super-classes of 5 classes, shuffled."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.randint(0, classes, (rows,), generator=generator, device=device)
    above = torch.randn(classes // 5 + 1, dim, generator=generator, device=device)
    centres = above[torch.arange(classes, device=device) // 5]
    centres = centres + torch.randn(classes, dim, generator=generator, device=device)
    x = centres[labels]
    x += 1.5 * torch.randn(rows, dim, generator=generator, device=device)
    return x, labels


def best_of(run: Callable[[], object], rounds: int, device: str = "cpu") -> float:
    times = []
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


# --- tables on the CPU


def one_table(how: str, dim: int, k: int, queries: int) -> None:
    """One way to find the neighbours of `queries` of 50,000 rows, in this process: CPU seconds and memory growth."""
    x, labels = random_set(50_000, dim)
    labels = labels.sort().values  # both sides may use it
    if how == "faiss":
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
    clear_peak()
    held, before = peak_mb(), resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    if how == "scns":
        NeighborTable.build(x, labels, k=k, rows=range(0, queries), positive=None)
    else:
        unit = F.normalize(x, dim=1).numpy()
        index = faiss.IndexFlatIP(dim)
        index.add(unit)
        fetch = k + int(torch.bincount(labels).max())
        for begin in range(0, queries, 1024):
            some = slice(begin, min(begin + 1024, queries))
            scores, found = (torch.from_numpy(a) for a in index.search(unit[some], fetch))
            keep = torch.argsort((labels[found] == labels[some, None]).int(), dim=1, stable=True)[:, :k]
            found.gather(1, keep), scores.gather(1, keep)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"cpu_s": cpu, "wall_s": time.perf_counter() - start, "memory_mb": peak_mb() - held}))


def clear_peak() -> None:
    """Forget the largest memory so far (Linux), which making the inputs may have set."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The largest memory of this process since then, MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def tables(queries: int, rounds: int) -> None:
    for dim in (64, 512):
        for k in (100, 500):
            best: dict[str, dict[str, float]] = {}
            for _ in range(rounds):
                for how in ("scns", "faiss"):
                    words = [sys.executable, __file__, "one-table", how, str(dim), str(k), "--queries", str(queries)]
                    told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
                    if how not in best or told["cpu_s"] < best[how]["cpu_s"]:
                        best[how] = told
            ratio = best["faiss"]["cpu_s"] / best["scns"]["cpu_s"]
            tell(case="table", rows=50_000, queries=queries, dim=dim, k=k, faiss_over_scns_cpu=round(ratio, 2), **{
                f"{how}_{name}": round(value, 2) for how, each in best.items() for name, value in each.items()
            })  # fmt: skip


# --- the loss


def losses(rounds: int) -> None:
    torch.set_num_threads(1)
    rows, dim, batch, num = 50_000, 128, 64, 4096
    x, labels = random_set(rows, 64)
    memory = FeatureTable(rows, dim)
    memory.update(torch.arange(rows), F.normalize(torch.randn(rows, dim), dim=1), distinct=True)
    anchors = torch.randperm(rows)[:batch]
    z = F.normalize(torch.randn(batch, dim), dim=1).requires_grad_()
    positive = memory.features[anchors]
    for k in (100, 500):
        table = NeighborTable.build(x, labels, k=k, rows=range(rows), positive=None)
        sampler = InstanceNegatives(table)
        indices, log_weights = sampler.weights(anchors, num)
        counts = log_weights.exp().round().long()
        repeated = torch.stack([torch.repeat_interleave(*pair) for pair in zip(indices, counts, strict=True)])

        def weighted(anchors=anchors, sampler=sampler, z=z) -> tuple[torch.Tensor, torch.Tensor]:
            rows_, logw = sampler.weights(anchors, num)
            loss = functional.info_nce(z, positive, logits=memory.logits(z, rows_), log_weights=logw)
            return loss.detach(), torch.autograd.grad(loss, z)[0]

        def gathered(repeated=repeated, z=z) -> tuple[torch.Tensor, torch.Tensor]:
            logits = torch.bmm(memory.features[repeated], z[:, :, None])[:, :, 0]
            loss = functional.info_nce(z, positive, logits=logits)
            return loss.detach(), torch.autograd.grad(loss, z)[0]

        def fast_gathered(repeated=repeated, z=z) -> None:
            logits = torch.bmm(z[:, None], F.embedding(repeated, memory.features).transpose(1, 2))[:, 0]
            torch.autograd.grad(functional.info_nce(z, positive, logits=logits), z)

        def through_table(repeated=repeated, z=z) -> None:
            torch.autograd.grad(functional.info_nce(z, positive, logits=memory.logits(z, repeated)), z)

        (ours, gradient), (theirs, reference) = weighted(), gathered()
        ways = {"weights": weighted, "gather": gathered, "fast gather": fast_gathered, "FeatureTable": through_table}
        times = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            times = {name: min(times[name], best_of(way, 5 if name == "weights" else 2)) for name, way in ways.items()}
        tell(
            case="loss", batch=batch, draws=num, dim=dim, k=k, ratio=round(times["gather"] / times["weights"], 1),
            ms={name: round(seconds * 1e3, 2) for name, seconds in times.items()},
            loss_difference=float((ours - theirs).abs()), gradient_difference=float((gradient - reference).abs().max()),
        )  # fmt: skip


# --- samplers


def sampling(device: str, rounds: int) -> None:
    rows, batch, num = 50_000, 64, 4096
    x, labels = random_set(rows, 64, device)
    table = NeighborTable.build(x, labels, k=500, positive=None)
    uniform, instance = UniformNegatives(labels), InstanceNegatives(table)
    classes = ClassNegatives(NeighborTable.build(random_set(100, 64, device)[0], k=20), labels)
    each = {
        "uniform": uniform,
        "class, k=20": classes,
        "instance, k=500": instance,
        "mixed": MixedNegatives([(0.5, instance), (0.5, uniform)]).to(device),
        "soft, exact": SoftNegatives(x, labels, scale=10.0),
        "soft, 200 clusters": SoftNegatives(x, labels, scale=10.0, clusters=200),
        "all": AllNegatives(labels),
    }
    anchors = torch.arange(batch, device=device)
    for name, sampler in each.items():
        case: dict[str, object] = {"case": "sampling", "sampler": name, "device": device, "batch": batch, "draws": num}
        if not sampler.everything:
            seconds = best_of(lambda s=sampler: s.sample(anchors, num), rounds, device)  # type: ignore[misc]
            case["sample_million_a_s"] = round(batch * num / seconds / 1e6, 1)
        seconds = best_of(lambda s=sampler: s.weights(anchors, num, correct=True), rounds, device)  # type: ignore[misc]
        tell(**case, weights_ms=round(seconds * 1e3, 3))


# --- tables on a GPU


def gpu_tables(rounds: int, large: bool) -> None:
    cases = [(50_000, 64, 500), (50_000, 512, 500), (50_000, 512, 100)] + ([(1_281_167, 512, 100)] if large else [])
    for rows, dim, k in cases:
        x, labels = random_set(rows, dim, "cuda", classes=100 if rows < 10**6 else 1000)
        done: list[NeighborTable] = []

        def run(x=x, labels=labels, k=k, done=done) -> None:
            done[:] = [NeighborTable.build(x, labels, k=k, positive=None)]

        if rows < 10**6:
            run()
        torch.cuda.reset_peak_memory_stats()
        seconds = best_of(run, rounds if rows < 10**6 else 1, "cuda")
        sample = torch.randperm(rows, device="cuda")[:64]
        unit = F.normalize(x.double(), dim=1)
        scores = unit[sample] @ unit.T
        scores[labels[sample, None] == labels] = -2
        truth = scores.topk(k, dim=1)
        found = done[0].indices[sample].long()
        worst = float((scores.gather(1, found).sort(1, descending=True).values - truth.values).abs().max())
        flop = 2 * rows * rows * dim
        tell(
            case="gpu-table", device="cuda", rows=rows, dim=dim, k=k, seconds=round(seconds, 3),
            peak_gb=round(torch.cuda.max_memory_allocated() / 1e9, 1), pflop=round(flop / 1e15, 4),
            floor_s=round(flop / 7.9e14 + 2 * 4 * rows * rows / 4.3e12, 3), worst_score_error=worst,
        )  # fmt: skip
        del x, labels, unit, scores, done
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "loss", "sampling", "gpu-table", "one-table"])
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help="for sampling: cpu or cuda")
    parser.add_argument("--queries", type=int, default=5000, help="rows searched in the CPU table cases")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the best counts")
    parser.add_argument("--no-large", action="store_true", help="leave out the 1,281,167-row table")
    given = parser.parse_args()
    if (given.device == "cuda" or given.what == "gpu-table") and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device")
    if given.what == "one-table":
        one_table(given.rest[0], int(given.rest[1]), int(given.rest[2]), given.queries)
    elif given.what == "table":
        tables(given.queries, given.rounds)
    elif given.what == "loss":
        losses(given.rounds)
    elif given.what == "sampling":
        sampling(given.device, given.rounds)
    else:
        gpu_tables(given.rounds, not given.no_large)


if __name__ == "__main__":
    main()
