"""Label vectors: tokens, every file format, what is missing, memory and speed; centroids and class probabilities."""

import gzip
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from scns import words
from scns.errors import InputError
from scns.neighbors import NeighborTable
from scns.sampling import ClassNegatives
from scns.wordfiles import read_words

VECTORS = {
    "tree": [1.0, 2.0, 0.0],
    "oak": [3.0, 0.0, 1.0],
    "Paris": [0.5, -1.0, 2.0],
    "cat": [-1.0, 0.25, 0.125],
    "naïve": [9.0, 8.0, 7.0],
}
LABELS = ["oak_tree", "paris cat", "cat-oak", "naïve"]
EXPECTED = [[2.0, 1.0, 0.5], [-0.25, -0.375, 1.0625], [1.0, 0.125, 0.5625], [9.0, 8.0, 7.0]]


def binary(vectors: dict[str, list[float]], line_end: bytes = b"\n", count: int | None = None) -> bytes:
    dim = len(next(iter(vectors.values())))
    entries = (word.encode() + b" " + struct.pack(f"<{dim}f", *vector) + line_end for word, vector in vectors.items())
    return b"%d %d\n" % (count or len(vectors), dim) + b"".join(entries)


def text(vectors: dict[str, list[float]], header: bool = False) -> bytes:
    lines = [f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items()]
    dim = len(next(iter(vectors.values())))
    return "".join([f"{len(vectors)} {dim}\n"] * header + lines).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(
    params=["w.bin", "w.bin.gz", "plain.bin", "glove.txt", "glove.txt.gz", "fasttext.vec", "fasttext.vec.gz", "w.npz"]
)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    if path.suffix == ".npz":
        np.savez(path, words=np.array(list(VECTORS)), vectors=np.array(list(VECTORS.values())))
        return path
    if ".bin" in path.name:
        return write(path, binary(VECTORS, b"" if path.name == "plain.bin" else b"\n"))
    return write(path, text(VECTORS, header=".vec" in path.name))


def test_every_format_gives_the_mean_of_the_raw_vectors(source: Path) -> None:
    vectors = words.label_vectors(LABELS, source)
    assert vectors.dtype == torch.float32
    assert vectors.tolist() == EXPECTED


def test_missing_words_are_dropped_and_named(source: Path) -> None:
    labels = ["oak_zebra", "cat", "zebra crossing"]
    assert words.missing_words(labels, source) == {"oak_zebra": ["zebra"], "zebra crossing": ["zebra", "crossing"]}
    with pytest.raises(InputError, match=r"any word of 1 of 3 labels: 'zebra crossing' \(zebra, crossing\)"):
        words.label_vectors(labels, source)
    vectors = words.label_vectors(labels, source, on_missing="uniform")
    assert vectors.tolist() == [VECTORS["oak"], VECTORS["cat"], [0.0, 0.0, 0.0]]
    probability = words.class_probabilities(vectors)
    assert probability[2].tolist() == pytest.approx([0.5, 0.5, 0.0])
    table = NeighborTable.build(vectors, k=2, on_zero="uniform")
    assert table.indices[2].tolist() == [0, 1] and table.scores[2].tolist() == [0.0, 0.0]
    drawn = ClassNegatives(table, torch.arange(3)).probabilities(torch.arange(3))
    assert torch.allclose(drawn, probability.gather(1, table.indices.long()), atol=1e-3)


def test_spelling_prefers_the_exact_word_then_lower_case_then_capitalised(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt", text({"Rose": [1.0], "rose": [2.0], "ROSE": [3.0], "Lily": [4.0]}))
    assert words.label_vectors(["ROSE", "rose", "RoSe", "lily"], path).flatten().tolist() == [3.0, 2.0, 2.0, 4.0]


def test_of_two_entries_the_first_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt", b"cat 1 2\ncat 3 4\ndog 5 6\n")
    assert words.label_vectors(["cat", "dog"], path).tolist() == [[1, 2], [5, 6]]


def test_phrases_with_spaces_in_a_text_file_are_no_words(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt", b"the 1 2\nat home 3 4\nat 5 6\r\n")
    assert words.label_vectors(["at", "the"], path).tolist() == [[5, 6], [1, 2]]


def test_labels_are_split_at_spaces_underscores_and_hyphens() -> None:
    assert words.words("German_shepherd dog-house ") == ["German", "shepherd", "dog", "house"]
    assert words.words("tabby, tabby cat") == ["tabby"]
    assert words.words("T-shirt/top") == ["T", "shirt", "top"]
    assert torch.equal(words.label_vectors(["Jinrikisha", "gasmask"]), words.label_vectors(["rickshaw", "respirator"]))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_bundled_vectors_know_every_label(name: str) -> None:
    names = words.label_names(name)
    assert len(names) == int(name.removeprefix("cifar")) == len(set(names)) and list(names) == sorted(names)
    assert words.label_vectors(names).shape == (len(names), 100)
    assert words.missing_words(names) == {}
    with pytest.raises(
        InputError, match=r"^glove, which is bundled with the words of the CIFAR.*'sofa' \(sofa\).*file"
    ):
        words.label_vectors([*names, "sofa"])


def test_bundled_neighbours() -> None:
    names = words.label_names("cifar100")
    cosine = words.class_cosines(words.label_vectors(names)).fill_diagonal_(-2)

    def nearest(label: str, count: int) -> list[str]:
        return [names[j] for j in cosine[names.index(label)].topk(count).indices.tolist()]

    assert set(nearest("willow_tree", 4)) == {"pine_tree", "oak_tree", "maple_tree", "palm_tree"}
    assert nearest("man", 3) == ["woman", "boy", "girl"]
    assert nearest("tractor", 2) == ["pickup_truck", "bicycle"]
    assert nearest("dolphin", 2) == ["whale", "shark"]


def test_reading_stops_when_every_word_has_been_met(tmp_path: Path) -> None:
    whole = binary({"cat": [1.0, 2.0], "dog": [3.0, 4.0]}, count=1000)  # the other 998 are never read
    path = write(tmp_path / "w.bin", whole)
    assert words.label_vectors(["cat", "dog"], path).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InputError, match="ends after 2 of 1,000 words"):
        words.label_vectors(["cat", "zebra"], path)


def test_a_large_file_is_streamed_in_little_memory_and_time(tmp_path: Path) -> None:
    count, dim = 60_000, 300  # 72 MB; entries cross the borders of the blocks at every offset
    rows = np.random.default_rng(0).standard_normal((100, dim)).astype("<f4")
    raw = [row.tobytes() for row in rows]
    path = tmp_path / "large.bin"
    with open(path, "wb") as file:
        file.write(b"%d %d\n" % (count, dim))
        file.writelines(b"w%d%s %s\n" % (i, b"_" * (i % 13), raw[i % 100]) for i in range(count))
    wanted = [f"w{i}{'_' * (i % 13)}" for i in range(0, count, 977)]
    start = time.perf_counter()
    found = read_words(path, [*wanted, "absent"])
    seconds = time.perf_counter() - start
    assert list(found) == wanted
    assert all((found[word] == rows[i % 100]).all() for word, i in zip(wanted, range(0, count, 977), strict=True))
    assert seconds < 1.0  # 0.04 s on an idle core
    script = (
        "import resource, sys; from scns.wordfiles import read_words\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; read_words(sys.argv[1], ['absent'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    grown = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(grown.stdout) * unit < 20e6


def test_progress_is_reported_in_megabytes_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "w.bin", binary({f"w{i}": [float(i)] * 500 for i in range(2000)}))
    seen: list[tuple[int, int]] = []
    read_words(path, ["absent"], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4) and [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("name", "content", "words_said"),
    [
        ("w.bin", b"", "first line is not"),
        ("w.bin", b"\x7fELF" * 100, "first line is not"),
        ("w.bin", b"\xba\x16\x4f\x2f\x0c\x00\x00\x00" * 50, "first line is not"),  # fastText's own binary
        ("w.bin", b"2 0\n", "first line is not"),
        ("w.bin", binary(VECTORS)[:-9], "ends after 4 of 5 words"),
        ("w.bin", binary(VECTORS, count=4) + b"more", "goes on after its 4 words"),
        ("w.bin", b"10 4\n" + b"\xff" * 100_000, "no word follows the first 0 of 10"),
        ("w.bin", binary({"cat": [float("nan"), 1.0], "x": [0.0, 0.0]}), "vector of 'cat' is not finite"),
        ("w.bin", b"1 90000\ncat \x00\x00", "ends after 0 of 1 words"),
        ("w.txt", b"", "entry 1 is not a word"),
        ("w.txt", b"\x7fELF\x00\x01", "entry 1 is not a word"),
        ("w.txt", b"just some English text\n", "entry 1 is not a word"),
        ("w.txt", text(VECTORS)[:-6], "entry 5 is not a word and 3 numbers"),
        ("w.txt", b"a 1 2\ncat 1 x\nb 1 2\n", "entry 2 is not a word and 2 numbers"),
        ("w.vec", b"7 3\n" + text(VECTORS), "ends after 5 of 7 words"),
        ("w.npz", b"PK nothing", "not an .npz file"),
        ("w.model", b"1 2\n", "no known word-vector file"),
    ],
)
def test_damaged_and_foreign_files_are_named(name: str, content: bytes, words_said: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=words_said) as error:
        words.label_vectors(["cat", "absent"], path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "changed", "not gzip"])
@pytest.mark.parametrize("ending", ["bin", "txt"])
def test_damaged_gzip_is_named(damage: str, ending: str, tmp_path: Path) -> None:
    many = {f"w{i}": [i / 7, 1.0, 2.0] for i in range(500)}
    content = gzip.compress(binary(many) if ending == "bin" else text(many))
    broken = {"cut": content[:-200], "changed": content[:300] + b"?" * 40 + content[340:], "not gzip": b"hello" * 9}
    path = tmp_path / f"w.{ending}.gz"
    path.write_bytes(broken[damage])
    with pytest.raises(InputError, match=r"w\.\w+\.gz'"):
        words.label_vectors(["absent"], path)


def test_npz_with_other_arrays(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, words=np.array(["cat"]))
    with pytest.raises(InputError, match=r"w\.npz' is not an .npz file with the arrays words and vectors"):
        words.label_vectors(["cat"], path)
    np.savez(path, words=np.array(["cat"]), vectors=np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"words \[n\]"):
        words.label_vectors(["cat"], path)


@pytest.mark.parametrize("vectors", [np.zeros((1, 0)), np.ones((1, 3)) + 1j, np.array([["1", "2"]])])
def test_npz_without_numbers(vectors: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", words=np.array(["cat"]), vectors=vectors)
    with pytest.raises(InputError, match=r"vectors \[n, d\] \(numbers\) are needed"):
        words.label_vectors(["cat"], tmp_path / "w.npz")
    np.save(tmp_path / "w.npy", vectors)
    (tmp_path / "w.npy").replace(tmp_path / "w.npz")  # by its name alone
    with pytest.raises(InputError, match=r"w\.npz' is not an .npz file"):
        words.label_vectors(["cat"], tmp_path / "w.npz")


def test_text_that_an_editor_wrote(tmp_path: Path) -> None:
    """With a mark before its first word, or before its counts."""
    for header in (False, True):
        (tmp_path / "w.txt").write_bytes(b"\xef\xbb\xbf" + text(VECTORS, header))
        assert words.label_vectors(["tree"], tmp_path / "w.txt").tolist() == [VECTORS["tree"]]


def test_blank_lines_and_tabs_are_no_fault_of_a_file(tmp_path: Path) -> None:
    wanted = ["tree", "nowhere"]  # a word that is not there is looked for to the end
    for name, content in {"blank": text(VECTORS) + b"\n\n", "tabs": text(VECTORS).replace(b" ", b"\t")}.items():
        file = tmp_path / f"{name}.txt"
        file.write_bytes(content)
        assert read_words(file, wanted)["tree"].tolist() == VECTORS["tree"]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputError, match="'glov' are neither 'glove' nor a file"):
        words.label_vectors(["cat"], "glov")
    with pytest.raises(InputError, match="source is a dict; vectors of your own, a row a class, go to"):
        words.label_vectors(["cat"], {"cat": [1.0]})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Unknown on_missing 'erorr'; did you mean error"):
        words.label_vectors(["cat"], on_missing="erorr")
    for names in ([], "cat"):
        with pytest.raises(InputError, match="list of at least one name"):
            words.label_vectors(names)
    with pytest.raises(InputError, match="Unknown label set 'cifar'"):
        words.label_names("cifar")
    with pytest.raises(
        InputError, match=r"any word of 1 of 1 labels: .*; rename them or give a file of word vectors as source\.$"
    ):
        words.label_vectors(["qwrtz"], on_missing="uniform")  # is given already, and no remedy


def test_class_embeddings_are_means_of_unit_rows() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(40, 6, generator=random), torch.arange(40) % 4
    labels[7] = -1
    expected = torch.zeros(4, 6, dtype=torch.float64)
    for c in range(4):
        rows = [embeddings[i].double() for i in range(40) if labels[i] == c]
        expected[c] = sum(row / row.norm() for row in rows) / len(rows)
    torch.testing.assert_close(words.class_embeddings(embeddings, labels).double(), expected, atol=1e-6, rtol=0)


def test_class_embeddings_of_arrays_and_lists() -> None:
    embeddings, labels = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
    wanted = words.class_embeddings(embeddings, labels)
    assert torch.equal(words.class_embeddings(embeddings.numpy(), labels.numpy().astype(np.uint16)), wanted)
    assert torch.equal(words.class_embeddings(embeddings, labels.tolist()), wanted)
    for wrong, message in ((labels.float(), "convert them"), (labels * 5, "unique"), (["a"] * 6, "numpy.unique")):
        with pytest.raises(InputError, match=message):
            words.class_embeddings(embeddings, wrong)
    with pytest.raises(InputError, match="list of at least one name"):
        words.label_vectors([1, 2])  # type: ignore[list-item]


def test_class_embeddings_name_what_is_wrong() -> None:
    embeddings, labels = torch.ones(4, 2), torch.tensor([0, 0, 2, 2])
    with pytest.raises(InputError, match=r"1 of 3 classes have no samples \(\[1\]\)"):
        words.class_embeddings(embeddings, labels)
    with pytest.raises(InputError, match="Label 2 does not fit 2 classes"):
        words.class_embeddings(embeddings, labels, classes=2)
    with pytest.raises(InputError, match="4 embeddings need 4 labels"):
        words.class_embeddings(embeddings, labels[:3])
    with pytest.raises(InputError, match="no samples"):
        words.class_embeddings(embeddings, torch.full((4,), -1))
    embeddings[3], embeddings[1] = 0, float("nan")
    with pytest.raises(InputError, match=r"2 embeddings are zero or not finite \(rows \[1, 3\]"):
        words.class_embeddings(embeddings, labels)


def test_class_probabilities_golden() -> None:
    vectors = torch.tensor(
        [[1.0, 0, 0, 0], [0.9, 0.4, 0, 0], [0.8, 0.1, 0.6, 0], [0, 1.0, 0.2, 0.1], [0.1, 0.2, 1.0, 0.3]],
        dtype=torch.float64,
    )
    cosine, probability = words.class_cosines(vectors), words.class_probabilities(vectors, 5.0)
    assert cosine[0].tolist() == pytest.approx([1, 0.9138115486202572, 0.7960297521679912, 0, 0.0936585811581694])
    row = [0.0, 0.6321671457485183, 0.35081002865316807, 0.006554134600380061, 0.010468690997933542]
    assert probability[0].tolist() == pytest.approx(row, abs=1e-12)
    row = [0.043084056816282364, 0.060532178623937574, 0.7039040903953756, 0.19247967416440442, 0.0]
    assert probability[4].tolist() == pytest.approx(row, abs=1e-12)
    assert words.class_probabilities(vectors[:2]).tolist() == [[0, 1], [1, 0]]


def test_scale_0_draws_all_other_classes_alike() -> None:
    assert torch.equal(words.class_probabilities(torch.randn(5, 3), 0.0), (1 - torch.eye(5)) / 4)


@pytest.mark.parametrize("scale", [-1.0, float("inf"), float("nan")])
def test_bad_scale(scale: float) -> None:
    with pytest.raises(InputError, match="scale="):
        words.class_probabilities(torch.eye(3), scale)
    with pytest.raises(InputError, match="2 or more classes"):
        words.class_probabilities(torch.eye(1))


def test_names_without_an_order_are_told() -> None:
    for names in ({"cat", "dog"}, (name for name in ["cat"]), None):
        with pytest.raises(InputError, match="list of at least one name"):
            words.label_vectors(names)  # type: ignore[arg-type]


def test_classes_of_far_numbers_are_told_without_room_for_them() -> None:
    with pytest.raises(InputError, match=r"1999999999 of 2000000001 classes have no samples \(\[1, 2, 3"):
        words.class_embeddings(torch.ones(2, 3), [0, 2_000_000_000])
