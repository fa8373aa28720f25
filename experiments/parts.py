"""Parts of an experiment computed by other processes; what they keep is kept here as well."""

import copy
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffprior.executors import AbstractExecutor
from diffprior.files.cache import ResultCache
from diffprior.progress import progress

Part = Callable[[], Any]
PRIORS = "prior-*"  # files that other parts need


def share_out(
    cache: ResultCache, parts: Sequence[Part], executor: AbstractExecutor | None, what: str
) -> None:
    """Compute what is missing of some parts, each a function that asks `cache` for its results.

    Afterwards the cache holds all of them, whichever machine has computed them. Workers are given
    the priors that are kept here, once.
    """
    if executor is None:
        return
    missing = [(cache, part) for part in parts if not cache.holds(part)]
    compute = functools.partial(made, cache.files(PRIORS))
    with progress(what, len(missing)) as told:
        for files in executor.map(compute, missing):
            cache.adopt(files)
            told.advance()


def made(given: Mapping[str, bytes], part: tuple[ResultCache, Part]) -> dict[str, bytes]:
    """The files that a part adds to an empty cache, which begins with those given."""
    cache, call = copy.deepcopy(part)  # of one another, as they were
    with tempfile.TemporaryDirectory() as folder:
        cache.move(folder)
        cache.adopt(given)
        call()
        return {name: content for name, content in cache.files().items() if name not in given}
