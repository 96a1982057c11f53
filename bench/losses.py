"""Time and peak memory of every loss, forward and backward, against the formula written down plainly.

    python bench/losses.py                      all losses on the CPU, about half a minute
    python bench/losses.py --device cuda --batch 256
    python bench/losses.py relational neuron_selectivity

Prints one JSON line a loss. `time_ratio` and `memory_ratio` are plain over ours: 2 means that ours takes half.
Memory is the peak of what forward and backward allocate on top of the inputs: from the allocator on CUDA, from the
profiler's record of every allocation on the CPU. `difference` is that of the two values, relative.

"Plainly" means the way the published implementations do it: NST over a batch x channels x channels x positions
tensor, RKD over difference vectors, InfoNCE by gathering every negative, normalisation by F.normalize.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from scns import functional as losses

BANK, WIDTH, NEGATIVES, CLASSES = 10_000, 128, 1024, 100  # what contrastive distillation on CIFAR-100 looks like
EMBEDDINGS = (64, 256)  # student's and teacher's width
MAPS = (64, 128, 8)  # student's and teacher's channels, height of a late stage


class Case(NamedTuple):
    ours: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    trained: list[Tensor]
    constant: list[Tensor]


def plain_info_nce(z: Tensor, positive: Tensor, bank: Tensor, rows: Tensor) -> Tensor:
    candidates = torch.cat([positive[:, None], bank[rows]], dim=1)  # [batch, 1 + negatives, width]
    logits = torch.bmm(candidates, z[:, :, None])[:, :, 0] / 0.07
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))


def our_info_nce(z: Tensor, positive: Tensor, bank: Tensor, rows: Tensor) -> Tensor:
    return losses.info_nce(z, positive, logits=(z @ bank.T).gather(1, rows))


def plain_oim(z: Tensor, table: Tensor, queue: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(torch.cat([z @ table.T, z @ queue.T], 1) / 0.1, 1), targets)


def plain_crd_nce(scores: Tensor) -> Tensor:
    noise, eps = NEGATIVES / BANK, 1e-7
    positive = (scores[:, 0] / (scores[:, 0] + noise + eps)).log()
    negative = (noise / (scores[:, 1:] + noise + eps)).log()
    return -(positive.sum() + negative.sum()) / len(scores)


def plain_kld(student: Tensor, teacher: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(student / 4, 1), F.softmax(teacher / 4, 1), reduction="batchmean") * 16


def plain_soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * F.log_softmax(logits, 1)).sum(1).mean()


def plain_attention(student: Tensor, teacher: Tensor) -> Tensor:
    a, b = (F.normalize(x.pow(2).mean(1).flatten(1)) for x in (student, teacher))
    return (a - b).pow(2).mean()


def plain_factor(student: Tensor, teacher: Tensor) -> Tensor:
    a, b = (F.normalize(x.pow(2).mean(1).flatten(1)) for x in (student, teacher))
    return (a - b).abs().mean()


def plain_similarity_preserving(student: Tensor, teacher: Tensor) -> Tensor:
    a, b = (F.normalize(x.flatten(1) @ x.flatten(1).T) for x in (student, teacher))
    return (b - a).pow(2).sum() / len(student) ** 2


def plain_congruence(student: Tensor, teacher: Tensor) -> Tensor:
    gap = (student - teacher).abs()
    return (gap[:-1] * gap[1:]).sum(1).mean()


def plain_information(mean: Tensor, log_scale: Tensor, teacher: Tensor) -> Tensor:
    variance = ((1 + log_scale.exp()).log() + 1e-5)[None, :, None, None]
    return (0.5 * ((mean - teacher) ** 2 / variance + variance.log())).mean()


def plain_relational(student: Tensor, teacher: Tensor) -> Tensor:
    def distances(e: Tensor) -> Tensor:
        squares = e.pow(2).sum(1)
        d = (squares[:, None] + squares[None] - 2 * e @ e.T).clamp_min(1e-12).sqrt()
        d = d * (1 - torch.eye(len(e), device=e.device))
        return d / (d.sum() / (len(e) * (len(e) - 1)))

    def angles(e: Tensor) -> Tensor:
        v = F.normalize(e[None] - e[:, None], dim=2)  # [batch, batch, width]
        return torch.bmm(v, v.transpose(1, 2))

    near = F.smooth_l1_loss(distances(student), distances(teacher))
    return 25 * near + 50 * F.smooth_l1_loss(angles(student), angles(teacher))


def plain_transfer(student: Tensor, teacher: Tensor) -> Tensor:
    def affinities(e: Tensor) -> Tensor:
        u = e / (e.pow(2).sum(1, keepdim=True).sqrt() + 1e-7)
        k = (u @ u.T + 1) / 2
        return k / k.sum(1, keepdim=True)

    q, p = affinities(student), affinities(teacher)
    return (p * ((p + 1e-7) / (q + 1e-7)).log()).mean()


def plain_boundary(student: Tensor, teacher: Tensor) -> Tensor:
    low = (student + 1) ** 2 * ((student > -1) & (teacher <= 0)).float()
    high = (student - 1) ** 2 * ((student <= 1) & (teacher > 0)).float()
    return (low + high).sum() / len(student)


def plain_flow(student_a: Tensor, student_b: Tensor, teacher_a: Tensor, teacher_b: Tensor) -> Tensor:
    def matrix(a: Tensor, b: Tensor) -> Tensor:
        a = F.adaptive_avg_pool2d(a, b.shape[2])
        return (a.flatten(2)[:, None] * b.flatten(2)[:, :, None]).mean(-1)  # over [batch, cb, ca, positions]

    return (matrix(student_a, student_b) - matrix(teacher_a, teacher_b)).pow(2).mean()


def plain_selectivity(student: Tensor, teacher: Tensor) -> Tensor:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, :, None] * b[:, None]).sum(-1).pow(2).mean()  # over [batch, channels, channels, positions]

    a, b = F.normalize(student.flatten(2), dim=2), F.normalize(teacher.flatten(2), dim=2)
    return kernel(b, b).detach() + kernel(a, a) - 2 * kernel(a, b)


def plain_pearson(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)).mean()


def plain_cka(x: Tensor, y: Tensor, kernel: str = "linear") -> Tensor:
    def centred(z: Tensor) -> Tensor:
        if kernel == "linear":
            k = z @ z.T
        else:
            k = torch.exp(-(z[:, None] - z[None]).pow(2).sum(-1) / (2 * z.var(0).sum().detach()))
        h = torch.eye(len(z), device=z.device) - 1 / len(z)
        return h @ k @ h

    k, m = centred(x), centred(y)
    return (k * m).sum() / (k.norm() * m.norm())


def plain_label_mixture(logits: Tensor, first: Tensor, second: Tensor, nu: Tensor) -> Tensor:
    mixed = nu[:, None] * F.one_hot(first, CLASSES) + (1 - nu[:, None]) * F.one_hot(second, CLASSES)
    return plain_soft_cross_entropy(logits, F.softmax(mixed * math.log(9 * (CLASSES - 1)), 1))


def our_label_mixture(logits: Tensor, first: Tensor, second: Tensor, nu: Tensor) -> Tensor:
    return losses.soft_cross_entropy(logits, losses.label_mixture(first, second, nu, CLASSES))


def cases(batch: int, device: str) -> dict[str, Case]:
    """Every loss with inputs of the sizes it meets in training."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    def rows(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator).to(device)

    def unit(*shape: int) -> Tensor:
        return F.normalize(draw(*shape), dim=-1)

    student, teacher, size = MAPS
    narrow, wide = EMBEDDINGS
    maps = draw(batch, student, size, size), draw(batch, teacher, size, size)
    same = draw(batch, student, size, size), draw(batch, student, size, size)
    embeddings = draw(batch, narrow), draw(batch, wide)
    logits = draw(batch, CLASSES), draw(batch, CLASSES)
    stages = [draw(batch, student // 2, 2 * size, 2 * size), *same, draw(batch, student // 2, 2 * size, 2 * size)]
    labels = [rows(CLASSES, batch), rows(CLASSES, batch), torch.rand(batch, generator=generator).to(device)]
    bank, z = unit(BANK, WIDTH), unit(batch, WIDTH)
    scores = torch.rand(batch, 1 + NEGATIVES, generator=generator).to(device)
    contrast = [unit(batch, WIDTH), bank, rows(BANK, batch, NEGATIVES)]
    table = [unit(CLASSES, WIDTH), unit(5000, WIDTH), labels[0]]
    codes = draw(batch, WIDTH), draw(batch, WIDTH)
    return {
        "info_nce": Case(our_info_nce, plain_info_nce, [z], contrast),
        "oim": Case(lambda z, v, u, y: losses.oim(z, y, v, u), plain_oim, [z], table),
        "crd_nce": Case(lambda p: losses.crd_nce(p, BANK), plain_crd_nce, [scores], []),
        "kld": Case(losses.kld, plain_kld, [logits[0]], [logits[1]]),
        "soft_cross_entropy": Case(
            losses.soft_cross_entropy, plain_soft_cross_entropy, [logits[0]], [F.softmax(logits[1], 1)]
        ),
        "mixed_targets": Case(
            lambda a, b, nu: losses.mixed_targets(a, b, nu, 4.0).square().sum(),
            lambda a, b, nu: F.softmax((nu[:, None] * a + (1 - nu[:, None]) * b) / 4, 1).square().sum(),
            list(logits),
            [labels[2]],
        ),
        "label_mixture": Case(our_label_mixture, plain_label_mixture, [logits[0]], labels),
        "hint": Case(losses.hint, F.mse_loss, [same[0]], [same[1]]),
        "attention_transfer": Case(losses.attention_transfer, plain_attention, [maps[0]], [maps[1]]),
        "factor_transfer": Case(losses.factor_transfer, plain_factor, [maps[0]], [maps[1]]),
        "activation_boundary": Case(losses.activation_boundary, plain_boundary, [same[0]], [same[1]]),
        "variational_information": Case(
            lambda mean, scale, t: losses.variational_information(mean, t, scale),
            plain_information,
            [same[0], draw(student)],
            [same[1]],
        ),
        "flow": Case(losses.flow, plain_flow, stages[:2], stages[:1:-1]),
        "neuron_selectivity": Case(losses.neuron_selectivity, plain_selectivity, [maps[0]], [maps[1]]),
        "similarity_preserving": Case(losses.similarity_preserving, plain_similarity_preserving, [maps[0]], [maps[1]]),
        "correlation_congruence": Case(losses.correlation_congruence, plain_congruence, [codes[0]], [codes[1]]),
        "relational": Case(losses.relational, plain_relational, [embeddings[0]], [embeddings[1]]),
        "relational-wide": Case(losses.relational, plain_relational, [draw(batch, 512)], [draw(batch, 2048)]),
        "probabilistic_transfer": Case(losses.probabilistic_transfer, plain_transfer, [embeddings[0]], [embeddings[1]]),
        "pearson": Case(lambda a, b: losses.pearson(a, b).mean(), plain_pearson, list(codes), []),
        "cka": Case(losses.cka, plain_cka, list(embeddings), []),
        "cka-rbf": Case(
            lambda x, y: losses.cka(x, y, "rbf"), lambda x, y: plain_cka(x, y, "rbf"), list(embeddings), []
        ),
        "triplet_hinge": Case(
            losses.triplet_hinge,
            lambda p, n: (0.8 * n - 0.2 * p + 0.2).clamp_min(0).mean(),
            [codes[0][0], codes[1][0]],
            [],
        ),
    }


def work(loss: Callable[..., Tensor], case: Case) -> Tensor:
    """The value, after forward and backward."""
    trained = [x.detach().requires_grad_() for x in case.trained]
    value = loss(*trained, *case.constant)
    torch.autograd.grad(value, trained)
    return value.detach()


def milliseconds(loss: Callable[..., Tensor], case: Case, repeats: int) -> float:
    """The median time of forward and backward; on CUDA that of a captured graph, as in training."""
    if not case.trained[0].is_cuda:
        return 1e3 * statistics.median(seconds(lambda: work(loss, case)) for _ in range(repeats + 3))
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            work(loss, case)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(loss, case)

    def replayed() -> None:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()

    return 1e3 / REPLAYS * statistics.median(seconds(replayed) for _ in range(repeats + 3))


REPLAYS = 20  # in a row, so that starting and waiting do not count


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_mebibytes(loss: Callable[..., Tensor], case: Case) -> float:
    """The most that forward and backward hold at once, inputs not counted."""
    if case.trained[0].is_cuda:
        work(loss, case)  # the matrix library keeps a workspace from its first call on
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work(loss, case)
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work(loss, case)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    held = highest = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]  # negative where memory is given back
        highest = max(highest, held)
    return highest / 2**20


def measured(name: str, case: Case, repeats: int) -> dict[str, object]:
    ours, plain = milliseconds(case.ours, case, repeats), milliseconds(case.plain, case, repeats)
    our_peak, plain_peak = peak_mebibytes(case.ours, case), peak_mebibytes(case.plain, case)
    values = work(case.ours, case), work(case.plain, case)
    return {
        "loss": name,
        "time_ratio": round(plain / ours, 2),
        "memory_ratio": round(plain_peak / our_peak, 2),
        "ours_ms": round(ours, 3),
        "plain_ms": round(plain, 3),
        "ours_mib": round(our_peak, 3),
        "plain_mib": round(plain_peak, 3),
        "difference": f"{abs((values[0] - values[1]) / values[1]).item():.0e}",
        "shapes": [list(x.shape) for x in (*case.trained, *case.constant)],
        "device": torch.cuda.get_device_name() if case.trained[0].is_cuda else f"cpu x{torch.get_num_threads()}",
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", nargs="*", help="names of losses (default: all)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1, for steady numbers)")
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # the profiler announces each start and stop otherwise
    torch.set_num_threads(options.threads)
    known = cases(options.batch, options.device)
    for name in options.losses or known:
        if name not in known:
            parser.error(f"unknown loss '{name}'; known: {', '.join(known)}")
        print(json.dumps(measured(name, known[name], options.repeats)), flush=True)


if __name__ == "__main__":
    main()
