"""Times the convolutions of a resnet20 by scns.kernels against cuDNN's, layer by layer; one JSON line a layer.

  python bench/convs.py [--batch 128]

bfloat16, channels_last, the best algorithm of cuDNN; 20 launches in a CUDA graph, replayed, with tensors that stay in
the second level cache. Ours includes what training needs of it: the batch norm's statistics, float32 weights, and sums
in a fixed order. Microseconds of the forward pass, the gradient by the inputs and that by the weights.
"""

import argparse
import json
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LAYERS = [  # how often, inputs, outputs, size, kernel, stride
    (1, 3, 16, 32, 3, 1),
    (6, 16, 16, 32, 3, 1),
    (1, 16, 32, 32, 3, 2),
    (1, 16, 32, 32, 1, 2),
    (5, 32, 32, 16, 3, 1),
    (1, 32, 64, 16, 3, 2),
    (1, 32, 64, 16, 1, 2),
    (5, 64, 64, 8, 3, 1),
]
AT_ONCE = 20


def microseconds(body: Callable[[], object]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(AT_ONCE):
            body()
    times = []
    for _ in range(6):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(10):
            graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / 10 / AT_ONCE)
    return statistics.median(times[1:])


def measure(batch: int, inputs: int, outputs: int, size: int, side: int, stride: int) -> dict[str, list[float]]:
    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)

    x, w, pad = drawn(batch, inputs, size, size), drawn(outputs, inputs, side, side), side // 2
    wide = w.float()
    g = drawn(batch, outputs, size // stride, size // stride)

    def gradient(*mask: bool) -> object:
        steps = [stride, stride], [pad, pad], [1, 1]
        return torch.ops.aten.convolution_backward(g, x, w, None, *steps, False, [0, 0], 1, [*mask, False])

    ours, both = torch.ops.scns, {}
    both["forward"] = [lambda: F.conv2d(x, w, None, stride, pad), lambda: ours.convolve(x, wide, stride, 1e-5)]
    if inputs > 3:
        both["by_inputs"] = [lambda: gradient(True, False), lambda: ours.by_inputs(g, wide, stride, size, size)]
    both["by_weights"] = [lambda: gradient(False, True), lambda: ours.by_weights(g, x, wide, stride)]
    return {name: [round(microseconds(body), 2) for body in bodies] for name, bodies in both.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("the kernels run on a CUDA GPU alone, and there is none here.")
    import scns.convnorm  # noqa: F401  (registers the operations)

    torch.backends.cudnn.benchmark = True
    totals: dict[str, list[float]] = {}
    for often, *shape in LAYERS:
        times = measure(given.batch, *shape)
        for name, values in times.items():
            total = totals.setdefault(name, [0.0, 0.0])
            totals[name] = [one + often * value for one, value in zip(total, values, strict=True)]
        print(
            json.dumps({"inputs, outputs, size, kernel, stride": shape, "often": often, "cudnn, ours": times}),
            flush=True,
        )
    told = {name: [round(value, 1) for value in values] for name, values in totals.items()}
    where = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({"batch": given.batch, "us a step: cudnn, ours": told, **where}), flush=True)


if __name__ == "__main__":
    main()
