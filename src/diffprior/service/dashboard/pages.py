"""Pages made once for all readers, their addresses, and their tables as files."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from ...reporting.tables import Link, Table

TEMPLATES = Path(__file__).parent / "templates"
CACHE_SECONDS = 2.0  # that a snapshot is shown, or longer:
REST = 20.0  # times the processor time it took, so that pages take a twentieth of a core
MAX_SNAPSHOTS = 64
RANGES = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "all": "all"}
SECONDS = {"24h": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
DEFAULT_RANGE = "7d"
TOP = {"5": "5", "20": "20", "100": "100"}  # arms in a table
REFRESH = {"off": "off", "10": "10 s", "60": "1 min"}
T = TypeVar("T")


class Page(NamedTuple):
    """A template, its variables, and its tables by their names in addresses."""

    template: str
    context: Mapping[str, Any]
    tables: Mapping[str, Table] = {}


class Snapshots(Generic[T]):
    """Results that are made once for all readers, one at a time; others see the last one."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._made: OrderedDict[Hashable, tuple[float, float, T]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The newest result of this key, made anew if its time is over."""
        known = self._made.get(key)
        now = time.monotonic()
        if known is not None and now < known[0]:
            return known[2]
        patient = known is None or now > known[1]
        if not self._making.acquire(blocking=patient):
            assert known is not None
            return known[2]  # another reader is making it
        try:
            newer = self._made.get(key)
            if newer is not None and newer is not known:
                return newer[2]
            begin = time.thread_time()
            found = make()
            seconds, now = time.thread_time() - begin, time.monotonic()
            rest = max(CACHE_SECONDS, REST * seconds)
            self._made[key] = (now + rest, now + 4 * rest, found)
            while len(self._made) > MAX_SNAPSHOTS:
                self._made.popitem(last=False)
            return found
        finally:
            self._making.release()

    def clear(self) -> None:
        """Forget all results, after a change that readers should see at once."""
        with self._making:
            self._made.clear()


class Address(NamedTuple):
    """The address of a page with its choices, from which those of other choices follow."""

    path: str
    query: Mapping[str, str] = {}

    def __call__(self, **changed: str) -> str:
        """The address with other choices; an empty one is left out."""
        query = {name: value for name, value in {**self.query, **changed}.items() if value}
        return f"{self.path}?{urlencode(query)}" if query else self.path


def model_address(model: str, time_range: str = "") -> Address:
    """The address of a model's page."""
    return Address("/", {"model": model, "range": time_range})


def task_address(model: str, task: str) -> Address:
    """The address of a task's page."""
    return Address(f"/tasks/{quote(model, safe='')}/{quote(task, safe='')}")


def downloadable(table: Table, name: str, address: Address) -> Table:
    """A table with links to its files."""
    files = [Link(kind.upper(), address(table=f"{name}.{kind}")) for kind in ("csv", "json")]
    return replace(table, files=files)


def sortable(table: Table, name: str, address: Address, sort: str) -> Table:
    """A table in the order that `sort` asks for, whose column titles are links to other orders.

    `sort` is the name of a table and the number of a column, negative for descending: `tasks.-3`.
    """
    wanted, _, text = sort.rpartition(".")
    number = int(text) if wanted == name and text.removeprefix("-").isdecimal() else 0
    if 0 < abs(number) <= len(table.columns):
        table = table.sorted_by(abs(number) - 1, descending=number < 0)
    numeric, titles = table.numeric or [False] * len(table.columns), []
    for i, title in enumerate(table.columns, start=1):
        descending = number != -i if numeric[i - 1] else number == i
        order = f"{name}.{-i if descending else i}"
        titles.append(Link(title, f"{address(sort=order)}#{name}"))
    return replace(table, columns=titles)


def slug(title: str) -> str:
    """A title as a name in an address."""
    words = "".join(letter if letter.isalnum() else " " for letter in title.lower()).split()
    return "-".join(words)
