"""Kill processes while they save: python tests/files/kills.py FOLDER COUNT.

Each process saves one object over and over, and is killed after a moment. Then the file must load.
Prints what was found as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from diffprior.files.cache import SavedArrays


def content(number: int) -> SavedArrays:
    """An object of half a megabyte that tells whether it is whole; JAX is not woken by it."""
    return SavedArrays({"all": np.full(2**16, number, np.float64)})


def save_for_ever(path: Path) -> None:
    """Save, and never come back."""
    number = 0
    while True:
        content(number := number + 1).save(path)


def kill_one(path: Path, patience: float) -> None:
    """Start a process that saves, and kill it."""
    process = os.fork()
    if process == 0:
        try:
            save_for_ever(path)
        finally:
            os._exit(1)
    time.sleep(patience)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def main(folder: Path, count: int) -> dict[str, int]:
    """Outcomes of `count` kills."""
    path, found = folder / "file", {"killed": 0, "unreadable": 0}
    content(0).save(path)
    rng = random.Random(0)
    for _ in range(count):
        kill_one(path, rng.uniform(0.002, 0.02))
        found["killed"] += 1
        try:
            loaded = SavedArrays.load(path)
            whole = len(set(loaded.arrays["all"])) == 1
        except ValueError:
            whole = False
        found["unreadable"] += not whole
    return found | {"litter": len(list(folder.iterdir())) - 1}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
