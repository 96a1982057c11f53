"""How a page opens that tells one story: a title, what was done, what came out, and the networks at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from scns.report.markup import Value, number, sortable, text
from scns.scores import Estimate

Row = tuple[str, str, Estimate, Estimate, float | None]  # name, what changed, accuracy, retrieval, seconds


@dataclass(frozen=True)
class Opening:
    """What stands above everything else on the page."""

    title: str
    about: str
    findings: Sequence[str]
    rows: Sequence[Row]

    def header(self) -> str:
        """What was done, and the answer."""
        found = "".join(f"<li>{text(each)}</li>" for each in self.findings)
        return (
            f"<p>{text(self.about)}</p>"
            f'<section class="answer" aria-label="The answer"><ul>{found}</ul>'
            '<p class="soft">± is the 95 % interval of a mean over the test images; differences are taken image by '
            "image. It does not include what another seed would change.</p></section>"
        )

    def table(self) -> str:
        """The networks at the end."""
        heads = {"network": "", "what it had": "remark", "accuracy %": "number", "retrieval %": "number", "s": "number"}
        rows = [
            [Value(text(name), name), Value(text(changed), changed), _estimate(right), _estimate(found), number(s, 0)]
            for name, changed, right, found, s in self.rows
        ]
        caption = (
            "Retrieval: mean average precision, when a test image sorts the training images by the cosine of their "
            "embeddings. Seconds are of training."
        )
        return sortable("networks", caption, heads, rows)


def _estimate(value: Estimate) -> Value:
    return Value(text(str(value)), f"{value.mean:.6g}")
