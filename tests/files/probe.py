"""Damage and forge files in every way, and measure what reading them takes; prints JSON.

Only a ValueError may come of it, which every other error ends this program with.
"""

import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import diffprior as dp
from diffprior.files.container import MAX_HEADER
from files.helpers import bandit, put_together, take_apart

SMALL = dp.GaussianPrior(np.array([1.0, 0.1, 0.0]), np.eye(3))


def try_all(blobs: Iterable[bytes]) -> dict[str, Any]:
    """How many were tried, and the places of those that were not rejected."""
    loaded, tried = [], 0
    for blob in blobs:
        try:
            dp.load_bytes(blob)
            loaded.append(tried)
        except ValueError as error:
            assert str(error).startswith("`blob`: this ")
        tried += 1
    return {"tried": tried, "loaded": loaded}


def flipped(blob: bytes) -> Iterable[bytes]:
    """Every byte with one bit turned."""
    for place in range(len(blob)):
        damaged = bytearray(blob)
        damaged[place] ^= 1 << place % 8
        yield bytes(damaged)


def truncated(blob: bytes) -> Iterable[bytes]:
    """Every beginning, and two that go on."""
    yield from (blob[:length] for length in range(len(blob)))
    yield from (blob + b"\0", blob + blob)


def bombs(folder: Path) -> list[Path]:
    """Small files that claim to be large, and large ones with nothing in them."""
    made = []

    def write(name: str, blob: bytes, size: int = 0) -> None:
        made.append(folder / name)
        made[-1].write_bytes(blob)
        os.truncate(made[-1], max(size, len(blob)))

    header, about, data = take_apart(SMALL.to_bytes())
    three = 3 * 10**9
    unlisted = {"dtype": "U8", "shape": [three], "data_offsets": [len(data), len(data) + three]}
    write("unlisted", put_together(header | {"more": unlisted}, about, data), three)
    blob = put_together(header | {"more": unlisted}, about, data)
    write("unlisted, exact", blob, len(blob) + three)
    side = 20_000
    large = {
        "cov": {"dtype": "F64", "shape": [side, side], "data_offsets": [0, 8 * side**2]},
        "mean": {
            "dtype": "F64",
            "shape": [side],
            "data_offsets": [8 * side**2, 8 * side**2 + 8 * side],
        },
    }
    blob = put_together(large, about, b"")
    write("large", blob, len(blob) + 8 * side**2 + 8 * side)
    write("claimed", put_together(large, about, data))
    write("long header", (2**40).to_bytes(8, "little") + b"{" * 100, three)
    write("long length", b"\xff" * 8 + b" " * 100)
    lists = b"[" + b"[]," * (MAX_HEADER // 3 - 2) + b"1]"
    write("lists", len(lists).to_bytes(8, "little") + lists)
    digits = b"[" + b"9" * (MAX_HEADER - 10) + b"]"
    write("digits", len(digits).to_bytes(8, "little") + digits)
    about["object"]["fields"]["mean"] = {"dict": {str(n): [] for n in range(50_000)}}
    write("keys", put_together(header, about, data))
    write("no arrays", put_together({}, about, b""), 2**30)
    return made


def try_files(paths: list[Path]) -> dict[str, Any]:
    """As `try_all`, of files."""
    loaded = []
    for path in paths:
        try:
            dp.load(path)
            loaded.append(path.name)
        except ValueError as error:
            assert str(error).startswith("`path`: ")
    return {"tried": len(paths), "loaded": loaded}


LETTERS = [None, True, -1, 0, 3, 2**70, 1.5, "", "x", "F64", "mean", [], {}, [[]], {"array": "jax"}]


def mutated(value: Any, rng: random.Random) -> Any:
    """A JSON value with one thing in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.1:
            return value | {rng.choice(["more", "mean", "kind"]): rng.choice(LETTERS)}
        return value | {key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        return value[:place] + [mutated(value[place], rng)] + value[place + 1 :]
    return rng.choice(LETTERS)


def crafted(blobs: list[bytes], count: int) -> Iterable[bytes]:
    """Files whose headers were changed at random, with checksums that fit."""
    rng = random.Random(1)
    for number in range(count):
        header, about, data = take_apart(blobs[number % len(blobs)])
        both = {"header": header, "about": about}
        for _ in range(rng.randint(1, 3)):
            both = mutated(both, rng)
        try:
            yield put_together(both["header"], both["about"], data)
        except (AttributeError, KeyError, TypeError):
            text = json.dumps(both).encode()
            yield len(text).to_bytes(8, "little") + text + data


def try_crafted(blobs: Iterable[bytes]) -> dict[str, int]:
    """How many were tried and loaded, and how many of those are not the same when saved again."""
    found = {"tried": 0, "loaded": 0, "changed": 0}
    for blob in blobs:
        found["tried"] += 1
        try:
            value = dp.load_bytes(blob)
        except ValueError as error:
            assert str(error).startswith("`blob`: this ")
            continue
        found["loaded"] += 1
        again = dp.load_bytes(value.to_bytes())
        found["changed"] += not isinstance(value, dp.Bandit) and again.digest != value.digest
    return found


def main(folder: Path) -> dict[str, Any]:
    """Everything, and what it took beyond loading good files."""
    task = bandit(SMALL)
    whole = {"gaussian": SMALL.to_bytes(), "bandit": task.to_bytes()}
    assert all(len(blob) < 4000 for blob in whole.values())
    evidence = task.evidence.to_bytes()
    for blob in (*whole.values(), evidence):
        dp.load_bytes(blob)
    before = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, Any] = {}
    for name, blob in whole.items():
        found[f"flipped {name}"] = try_all(flipped(blob))
        found[f"truncated {name}"] = try_all(truncated(blob))
    found["crafted"] = try_crafted(crafted([*whole.values(), evidence], 500))
    found["bombs"] = try_files(bombs(folder))
    after = resource.getrusage(resource.RUSAGE_SELF)
    found["megabytes"] = (after.ru_maxrss - before.ru_maxrss) / 1024
    found["seconds"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


if __name__ == "__main__":
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as made:
        print(json.dumps(main(Path(made))))
    print(f"{time.perf_counter() - begin:.1f} s", file=sys.stderr)
