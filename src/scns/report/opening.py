"""How a page opens that tells one story: what was done, what each change did, and the networks at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from scns.report.markup import Value, mark, number, sortable, text
from scns.scores import Estimate

RETRIEVAL = (
    "Retrieval is mean average precision: every test image sorts the training images by the cosine of embeddings."
)


@dataclass(frozen=True)
class Network:
    """A network at the end, in percent of the test images."""

    name: str
    had: str  # what it was trained with
    accuracy: Estimate
    retrieval: Estimate
    seconds: float | None  # of training, where that was here


@dataclass(frozen=True)
class Change:
    """What one change did, in points."""

    what: str
    accuracy: Estimate
    retrieval: Estimate


@dataclass(frozen=True)
class Opening:
    """What stands above the runs, and below them what to do next."""

    title: str
    about: str
    networks: Sequence[Network]
    changes: Sequence[Change]
    picked: Sequence[str]  # whom the samplers pick, in numbers
    chance: str  # what ± covers
    following: str  # commands, a line each
    command: str  # that writes the page again

    def header(self) -> str:
        """What was done, what came of it, and the networks at the end."""
        changes = "".join(
            f'<tr><th scope="row">{text(each.what)}</th><td>{_mark(each.accuracy)}</td>'
            f"<td>{_mark(each.retrieval)}</td></tr>"
            for each in self.changes
        )
        return (
            f'<p>{text(self.about)}</p><div class="pair"><section class="answer" aria-label="The answer">'
            '<div class="wide" tabindex="0" role="region" aria-label="What each change did"><table><thead><tr>'
            '<th scope="col">what changed</th><th scope="col">accuracy</th><th scope="col">retrieval</th></tr></thead>'
            f'<tbody>{changes}</tbody></table></div><p class="soft">In points. A dashed frame says that chance may '
            f"explain the difference. {text(self.chance)}</p></section><section>{self._networks()}</section></div>"
        )

    def _networks(self) -> str:
        heads = {"network": "", "trained with": "remark", "accuracy %": "number", "retrieval %": "number"}
        rows = [
            [
                Value(text(each.name), each.name),
                Value(text(each.had), each.had),
                _share(each.accuracy),
                _share(each.retrieval),
                number(each.seconds, 0),
            ]
            for each in self.networks
        ]
        return sortable("networks", f"{RETRIEVAL} Seconds are of training.", {**heads, "s": "number"}, rows)

    def numbers(self) -> str:
        """Whom the samplers pick, in numbers."""
        return "<ul>" + "".join(f"<li>{text(each)}</li>" for each in self.picked) + "</ul>"

    def next_steps(self) -> str:
        """What to do with data of one's own."""
        return f'<h2 id="next">With your own data</h2><pre class="line"><code>{text(self.following)}</code></pre>'


def _mark(value: Estimate) -> str:
    return mark(value.mean, 1, sure=bool(value.sign), half=f" ± {value.half:.1f}")


def _share(value: Estimate) -> Value:
    bar = f'<span class="bar" style="--share:{min(100, value.mean):.1f}%" aria-hidden="true"></span>'
    return Value(f"{text(str(value))}{bar}", f"{value.mean:.6g}")
