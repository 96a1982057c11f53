"""The convolution that brings a student's map to the size of a teacher's, as FitNets and AB use it."""

from torch import nn

from scns.errors import InputError
from scns.methods._pairs import Map


def resizing(student: Map, teacher: Map) -> nn.Conv2d | nn.ConvTranspose2d:
    """A convolution (with bias) from maps of the student's size (channels, height, width) to the teacher's.

    Twice the teacher's size: 3x3, stride 2. Half of it: transposed 4x4, stride 2. Otherwise at least as large: no
    padding, with the kernel that leaves the teacher's size over, 1x1 for equal sizes.
    """
    inputs, height, width = student
    outputs, wanted_height, wanted_width = teacher
    if (height, width) == (2 * wanted_height, 2 * wanted_width):
        return nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
    if (2 * height, 2 * width) == (wanted_height, wanted_width):
        return nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)
    if height >= wanted_height and width >= wanted_width:
        return nn.Conv2d(inputs, outputs, (1 + height - wanted_height, 1 + width - wanted_width))
    raise InputError(
        f"No regressor leads from the student's map {student} (channels, height, width) to the teacher's {teacher}; "
        "the student's must be half as large, or at least as large: choose another layer or input size."
    )
