"""Digits, their embedding and the one-against-rest tasks, on small images made here."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from experiments import mnist as module
from experiments.mnist import (
    Digits,
    draw_tasks,
    embed_digits,
    load_digits,
    one_against_rest,
    parse_idx,
)
from statistic import assert_mean

SHADES = np.random.default_rng(7).integers(0, 256, (4, 5, 6))  # what each label looks like


def digits(num_digits: int, seed: int) -> Digits:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, num_digits)
    noisy = SHADES[labels] + 20 * rng.standard_normal((num_digits, 5, 6))
    return Digits(np.clip(noisy, 0, 255).astype(np.uint8), labels.astype(np.uint8))


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def test_idx_by_hand() -> None:
    header = bytes([0, 0, 8, 3]) + bytes([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3])
    parsed = parse_idx(header + bytes([1, 2, 3, 4, 5, 255]))
    assert parsed.tolist() == [[[1, 2, 3]], [[4, 5, 255]]]
    assert parse_idx(bytes([0, 0, 8, 1, 0, 0, 1, 0]) + bytes(256)).shape == (256,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "`data`: expected an idx file of bytes"),
        (gzip.compress(b"x", mtime=0), "got one that begins '1f 8b 08"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1]) + bytes(4), "expected an idx file of bytes"),
        (bytes([0, 0, 8, 2, 0, 0, 0, 1]), "expected an idx file of bytes"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes(2), r"expected 3 bytes for shape \(3,\), got 2"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes(4), r"expected 3 bytes for shape \(3,\), got 4"),
    ],
    ids=["empty", "packed", "floats", "no second length", "short", "long"],
)
def test_damaged_idx_raises(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_idx(data)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The four files, small, with their checksums in the official place."""
    train, test = digits(600, 0), digits(200, 1)
    files = []
    arrays = (train.images, train.labels, test.images, test.labels)
    for file, array in zip(module.FILES, arrays, strict=True):
        forms = (gzip.compress(idx(array)), idx(array))
        sums = map(lambda data: hashlib.sha256(data).hexdigest(), forms)
        (tmp_path / next(iter(file.checksums))).write_bytes(forms[0])
        files.append(file._replace(checksums=dict(zip(file.checksums, sums, strict=True))))
    monkeypatch.setattr(module, "FILES", tuple(files))
    return tmp_path


def assert_same(loaded: tuple[Digits, Digits], expected: tuple[Digits, Digits]) -> None:
    for ours, theirs in zip(loaded, expected, strict=True):
        np.testing.assert_array_equal(ours.images, theirs.images)
        np.testing.assert_array_equal(ours.labels, theirs.labels)


def test_files_are_read_packed_and_unpacked(folder: Path) -> None:
    expected = digits(600, 0), digits(200, 1)
    assert_same(load_digits(folder), expected)
    for packed in list(folder.glob("*-images-*.gz")):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    assert_same(load_digits(folder), expected)


def test_missing_data_names_the_address(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="https://.*/mnist/train-images-idx3-ubyte.gz"):
        load_digits(tmp_path)


def test_embedding_is_small_bounded_and_separates_the_labels() -> None:
    train, test = digits(600, 0), digits(200, 1)
    embedding = embed_digits(train, test, num_epochs=30)
    assert embedding.features.shape == (800, 8) and embedding.features.dtype == np.float64
    assert np.all(np.abs(embedding.features) <= 1)
    np.testing.assert_array_equal(embedding.labels, np.append(train.labels, test.labels))
    assert embedding.test_accuracy > 0.97
    means = np.stack(
        [embedding.features[:600][train.labels == label].mean(axis=0) for label in range(4)]
    )
    distance = np.sum((embedding.features[600:, None] - means) ** 2, axis=2)
    assert np.mean(np.argmin(distance, axis=1) == test.labels) > 0.97


def test_tasks_are_half_of_one_label() -> None:
    labels = digits(300, 2).labels
    rows, rewards = draw_tasks(np.random.default_rng(0), labels, 500)
    assert rows.shape == (500, 20) and rewards.tolist() == [1.0] * 10 + [-1.0] * 10
    positive = labels[rows[:, :1]]
    assert np.all(labels[rows[:, :10]] == positive)
    assert np.all(labels[rows[:, 10:]] != positive)


def test_labels_and_examples_are_equally_likely() -> None:
    labels = np.repeat([3, 5, 9], [2, 3, 4])[[8, 0, 3, 5, 7, 1, 2, 4, 6]]
    rows, _ = draw_tasks(np.random.default_rng(1), labels, 20_000)
    positive = labels[rows[:, 0]]
    assert_mean(positive[:, None] == [3, 5, 9], np.full(3, 1 / 3))
    for label in (3, 5, 9):
        mine = labels == label
        tasks = rows[positive == label]
        assert_mean(tasks[:, :1] == np.flatnonzero(mine), np.full(mine.sum(), 1 / mine.sum()))
        assert_mean(
            tasks[:, 19:] == np.flatnonzero(~mine), np.full(9 - mine.sum(), 1 / (9 - mine.sum()))
        )


def test_parameters_are_those_of_ridge_regression() -> None:
    features = np.random.default_rng(3).standard_normal((300, 8))
    labels = digits(300, 2).labels
    parameters = one_against_rest(features, labels, 30, ridge=0.5, seed=4)
    rows, rewards = draw_tasks(np.random.default_rng(4), labels, 30)
    for task in range(30):
        model = Ridge(alpha=0.5, fit_intercept=False, tol=1e-12).fit(features[rows[task]], rewards)
        np.testing.assert_allclose(parameters[task], model.coef_, atol=1e-9)
