"""A trained student in files that a user of plain torch (or of ONNX) loads without scns."""

import io
import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from scns.errors import InputError
from scns.files import atomic, save_tensors
from scns.runs import Student

ENDINGS = (".safetensors", ".pt2", ".onnx")


def check_ending(path: str | Path) -> str:
    """The format that a file's name asks for; for ONNX, its packages must be there."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"A student cannot be written to '{path}'; its name must end in {', '.join(ENDINGS)}.")
    if ending == ".onnx":
        missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
        if missing:
            raise InputError(f"Writing '{path}' needs {' and '.join(missing)}; pip install onnx onnxscript.")
    return ending


def export(student: Student, path: str | Path) -> None:
    """Write the student: weights by torch's names (.safetensors), or a program images -> logits (.pt2, .onnx)."""
    ending = check_ending(path)
    network = student.network.cpu().eval()
    with atomic(path) as temporary:
        if ending == ".safetensors":
            kept = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
            save_tensors(kept, temporary, describe(student))
        elif ending == ".pt2":
            temporary.write_bytes(_program(network, student))
        else:
            _onnx(network, student, temporary)


def describe(student: Student) -> dict[str, str]:
    """What the user of an exported file must know: the network, the classes, and how images are normalised."""
    known = {"classes": student.classes, "size": student.side, "mean": student.mean, "std": student.std}
    return {"student": student.name, **{key: json.dumps(value) for key, value in known.items()}}


def _sample(student: Student) -> torch.Tensor:
    return torch.zeros(2, 3, student.side, student.side)  # 2: a batch of 1 would be taken for a constant


def _program(network: nn.Module, student: Student) -> bytes:
    """The network as an exported program for any number of images."""
    shapes = {"images": {0: torch.export.Dim("batch")}}
    with warnings.catch_warnings():  # torch's own, about tensors that share storage: they are written whole
        warnings.simplefilter("ignore", UserWarning)
        program = torch.export.export(network, (_sample(student),), dynamic_shapes=shapes)
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files=describe(student))
    return buffer.getvalue()


def _onnx(network: nn.Module, student: Student, path: Path) -> None:
    for name in ("torch.onnx", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)  # the conversion tells every step of its optimiser
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            (_sample(student),),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update(describe(student))
    program.save(path)
