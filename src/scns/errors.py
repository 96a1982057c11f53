"""What scns says when it is given something it cannot work with."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input: one sentence that names the value and the remedy. The command line prints it and exits with 2."""


class Diverged(InputError):
    """A run whose losses or weights are no numbers any more."""


class AgreedError(InputError):
    """Bad input that every process of a distributed run knows of; the one of rank 0 says it."""

    def __init__(self, sentence: str, rank: int) -> None:
        super().__init__(sentence)
        self.rank = rank


def unknown(kind: str, name: str, known: Iterable[str], meant: Mapping[str, str] | None = None) -> InputError:
    """The error for a name that does not exist, with what it is `meant` for, the nearest names, or all of them."""
    if meant and name.lower() in meant:
        return InputError(f"Unknown {kind} '{name}'; did you mean {meant[name.lower()]}?")
    choices = sorted(known)
    spelt = {choice: choice for choice in choices} | dict(meant or {})
    near = get_close_matches(name, spelt, n=3, cutoff=0.5) or get_close_matches(name.lower(), spelt, n=3, cutoff=0.4)
    names = dict.fromkeys(spelt[each] for each in near)
    hint = f"did you mean {' or '.join(names)}?" if names else f"known: {', '.join(choices) or 'none'}."
    return InputError(f"Unknown {kind} '{name}'; {hint}")
