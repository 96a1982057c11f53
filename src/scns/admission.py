"""How many runs of a sweep are let onto a GPU at once."""

from functools import cache
from itertools import accumulate

from scns import models, room
from scns.errors import InputError
from scns.preflight import choose_device
from scns.recipe import Recipe

_CLASSES = 100  # of a network that is only weighed: its last layer is next to nothing of it
_PIXELS = 32  # of the images, where the recipe does not say: the smallest data sets have that
_COPIES = 3  # of a weight, four bytes each: itself, its gradient, its momentum


class Admission:
    """How many runs of a batch are tried at once: an estimate, corrected by what did not fit.

    The estimate is what a run takes at least: weights, gradients, momentum, and what its convolutions put out for a
    batch. Tables, the teacher, images, what else layers keep and torch's own workspaces come on top and are not known
    before. So a pack that surely does not fit is not tried, one that may fit is; and what then does not fit is halved
    by the sweep, which keeps later packs with such students to the smaller size.
    """

    def __init__(self) -> None:
        self.most: dict[str, int] = {}  # runs at once, by the student's network

    def fits(self, recipes: list[Recipe]) -> int:
        """How many, from the first on; at least one is always tried."""
        most = min([len(recipes), *(self.most[each.student] for each in recipes if each.student in self.most)])
        try:
            device = choose_device(recipes[0])
        except InputError:  # the run itself says it
            return most
        if device.type == "cuda":
            free = room.free(device)
            most = min(most, sum(taken <= free for taken in accumulate(least(each) for each in recipes)))
        return max(1, most)

    def failed(self, recipes: list[Recipe], size: int) -> None:
        """Remember that these did not fit, and that `size` of them is tried from now on."""
        for each in recipes:
            self.most[each.student] = min(size, self.most.get(each.student, size))


def least(recipe: Recipe) -> int:
    """The bytes that a run takes at least on its device, beside tables, teacher and images."""
    weights, outputs = _size(recipe.student, recipe.input_size or recipe.size or _PIXELS)
    return 4 * _COPIES * weights + (2 if recipe.precision == "bf16" else 4) * recipe.batch * outputs


@cache
def _size(network: str, pixels: int) -> tuple[int, int]:
    """Weights, and numbers that the convolutions put out for an image; nothing of a network that cannot be weighed."""
    try:
        built = models.outline(network, _CLASSES)
        return models.parameters(built), models.outputs(built, pixels)
    except Exception:  # of one that does not exist; of one's own that needs numbers, or another size: the run says it
        return 0, 0
