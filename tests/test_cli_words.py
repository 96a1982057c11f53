"""`scns words` as a person uses it."""

from pathlib import Path

import numpy as np
import pytest

from conftest import colours


def test_heatmap_of_cifar100(scns, tmp_path: Path) -> None:
    ran = scns("words", "heatmap", "cifar100", "--out", tmp_path / "map.png")
    assert ran.code == 0 and "26 of 100 classes" in ran.out
    assert colours(tmp_path / "map.png") > 300


def test_heatmap_of_chosen_classes_and_of_all(scns, tmp_path: Path) -> None:
    ran = scns("words", "heatmap", "cifar100", "--classes", "maple tree, oak_tree,man", "--out", tmp_path / "few.png")
    assert ran.code == 0 and "3 of 100 classes" in ran.out
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(["cat", "dog", "lion", "tiger", "bear", "wolf", "fox", "rabbit"] * 4))
    ran = scns("words", "heatmap", labels, "--all", "--out", tmp_path / "all.svg")
    assert ran.code == 0 and sorted(path.name for path in tmp_path.glob("all*")) == ["all-1.svg", "all-2.svg"]


def test_two_classes_with_odd_names_have_whole_titles(scns, tmp_path: Path) -> None:
    from scns import plots

    labels = tmp_path / "labels.txt"
    labels.write_text("cat\ndog $\\oops$\n")
    assert scns("words", "heatmap", labels, "--out", tmp_path / "two.png").code == 0
    parts, title = np.eye(2), "sampling probability, softmax(5 cosine) over 1 classes"
    for names in (["cat", "dog"], ["cat", "a very long name of a class"], ["cat", 9 * "a very long name of a class "]):
        figure = plots.class_heatmap(names, parts, parts, title="cosine of the label vectors", drawn_title=title)
        figure.draw_without_rendering()
        left, right = (axes.title.get_window_extent() for axes in figure.axes[:2])
        assert left.x0 >= 0 and left.x1 < right.x0 and right.x1 <= figure.bbox.x1
        for axes in figure.axes[:2]:  # neither map is pressed flat by its labels, nor are those cut off
            whole = axes.get_tightbbox()
            assert axes.get_window_extent().width >= 150 and whole is not None
            assert whole.x0 >= 0 and whole.x1 <= figure.bbox.x1 and whole.y0 >= 0


def test_pages_hold_every_class_once_with_like_classes_together() -> None:
    from scns import words
    from scns.cli.words import pages_of

    names = words.label_names("cifar100")
    cosine = words.class_cosines(words.label_vectors(names))
    pages = pages_of("cifar100", names, cosine, None, every=True)
    assert [len(page) for page in pages] == [20] * 5
    order = [row for page in pages for row in page]
    assert sorted(order) == list(range(100))
    beside = cosine[order[:-1], order[1:]].mean()
    assert beside > cosine[range(99), range(1, 100)].mean() + 0.2


def test_nearest(scns) -> None:
    ran = scns("words", "nearest", "cifar100", "--top", 2)
    assert ran.code == 0
    row = next(line for line in ran.out.splitlines() if line.startswith("man "))
    assert row.split() == ["man", "woman", "0.83", "boy", "0.79"]


def test_own_vectors_and_missing_words(scns, tmp_path: Path) -> None:
    source = tmp_path / "w.npz"
    np.savez(source, words=np.array(["cat", "dog"]), vectors=np.array([[1.0, 0.0], [0.6, 0.8]]))
    labels = tmp_path / "labels.txt"
    labels.write_text("cat\nhot dog\n\nzebra\n")
    ran = scns("words", "nearest", labels, "--source", source, "--top", 1)
    assert ran.code == 2 and "'zebra' (zebra)" in ran.err
    ran = scns("words", "nearest", labels, "--source", source, "--top", 1, "--on-missing", "uniform")
    assert ran.code == 0 and "hot dog 0.60" in ran.out
    assert "left out: hot dog (hot), zebra (zebra)" in ran.err


def test_a_list_of_names_of_any_editor(scns, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_bytes("cat\r\ndog\r\nship\r\n".encode("utf-8-sig"))
    ran = scns("words", "nearest", labels)
    assert ran.code == 0 and ran.out.split()[6:9] == ["dog", "0.88", "ship"], ran


def test_few_classes_of_ones_own_have_few_neighbours(scns, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\nship\n")
    ran = scns("words", "nearest", tmp_path / "labels.txt")
    assert ran.code == 0 and "nearest 2" in ran.out and "nearest 3" not in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("heatmap", "cifar100", "--out", "map.jpg"), "must end in"),
        (("heatmap", "cifar100", "--out", "map.png", "--scale", "-1"), "scale=-1.0 must be at least 0"),
        (("heatmap", "cifar100", "--out", "map.png", "--classes", "maple_tee"), "did you mean maple_tree"),
        (("heatmap", "cifar100", "--out", "map.png", "--classes", "man", "--all"), "exclude each other"),
        (("heatmap", "cifar10", "--out", "map.png", "--classes", ","), "name at least 2"),
        (("heatmap", "cifar10", "--out", "map.png", "--classes", "cat,cat"), "name at least 2"),
        (("heatmap", "cifar1000", "--out", "map.png"), "cifar1000"),
        (("nearest", "cifar10", "--top", "10"), "1 to 9 others"),
        (("nearest", "cifar10", "--source", "nowhere.bin"), "neither 'glove' nor a file"),
        (("nearest", "one.txt"), "names 1 classes"),
        (("nearest", "bytes.txt"), "not a text file"),
    ],
)
def test_bad_input_is_one_sentence(scns, tmp_path: Path, monkeypatch, words: tuple, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text("cat\n")
    Path("bytes.txt").write_bytes(b"\xff\xfe\x00")
    ran = scns("words", *words)
    assert ran.code == 2 and said in ran.err and ran.out == ""
    assert not list(tmp_path.glob("map*"))
