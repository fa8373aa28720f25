"""Priors from very many tasks, and from rows larger than memory: minutes and gigabytes."""

import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cell:
    """One case at one data seed: what to run, and the figure to reach."""

    kind: str
    name: str
    num_tasks: int
    mean_rows: float
    target: float
    seed: int

    @property
    def label(self) -> str:
        """As the table says it."""
        return f"{self.kind} {self.name} {self.num_tasks} x {self.mean_rows:g} seed {self.seed}"


@dataclass(frozen=True)
class Figure:
    """What a cell came to."""

    cell: Cell
    value: float
    notes: dict[str, Any]

    def __str__(self) -> str:
        """The figure beside its target."""
        mark = "ok" if self.value <= self.cell.target else "MISS"
        notes = " ".join(f"{name}={value}" for name, value in self.notes.items())
        return f"{self.cell.label}: {self.value:.4f} (target {self.cell.target:g}) {mark} {notes}"


def rows_of(
    rng: np.random.Generator, thetas: np.ndarray, mean_rows: float, logistic: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Geometric numbers of rows, features uniform in the unit ball, noise 1 or binary rewards."""
    n, d = thetas.shape
    tasks = np.repeat(np.arange(n), rng.geometric(1 / mean_rows, n))
    x = rng.standard_normal((len(tasks), d))
    x *= rng.random((len(tasks), 1)) ** (1 / d) / np.linalg.norm(x, axis=1, keepdims=True)
    eta = np.sum(x * thetas[tasks], axis=1)
    if logistic:
        return tasks, x, (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    return tasks, x, eta + rng.standard_normal(len(eta))


def million(cell: Cell) -> Figure:
    """Gaussian and mixture of ten from the statistics of very many tasks; minutes and memory."""
    from ..evidence.families import Linear
    from ..logs.labels import label_hashes
    from ..logs.statistics import TaskStatistics, triangle
    from ..priors.from_tasks.search import Candidate, search_mixture

    rng, n, d = np.random.default_rng(cell.seed), cell.num_tasks, 10
    centres = rng.standard_normal((10, d))
    parts = []
    for start in range(0, n, 20_000):
        count = min(20_000, n - start)
        thetas = centres[rng.integers(10, size=count)] + 0.3 * rng.standard_normal((count, d))
        x = rng.standard_normal((count, int(cell.mean_rows), d))
        y = np.einsum("nrd,nd->nr", x, thetas) + rng.standard_normal(x.shape[:2])
        gram = np.einsum("nri,nrj->nij", x, x)
        rows, columns = np.array(triangle(d)).T
        parts.append((gram[:, rows, columns], np.einsum("nrd,nr->nd", x, y), np.sum(y**2, axis=1)))
    xx, xy, yy = (np.concatenate([part[i] for part in parts]) for i in range(3))
    del parts
    labels = np.arange(n)
    names = tuple(f"x{i}" for i in range(d))
    counts = np.full(n, cell.mean_rows)
    statistics = TaskStatistics(labels, label_hashes(labels), counts, xx, xy, yy, names)
    begin = time.perf_counter()
    found = search_mixture(
        statistics, Linear(noise_std=1.0), candidates=[Candidate(num_components=10)]
    )
    minutes = (time.perf_counter() - begin) / 60
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Figure(cell, minutes, {"GB": round(memory, 2), "components": len(found.components)})


def streamed(cell: Cell) -> Figure:
    """Logistic rows streamed from Parquet and learned from: peak memory in GB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..evidence.families import Logistic
    from ..logs.logs import Logs
    from ..priors.gaussian import GaussianPrior

    rng = np.random.default_rng(cell.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        writer = None
        for shard in range(20):
            thetas = rng.standard_normal((cell.num_tasks // 20, 10))
            tasks, x, y = rows_of(rng, thetas, cell.mean_rows, logistic=True)
            columns = {"task": tasks + shard * 10_000_000, "y": y}
            table = pa.table(columns | {f"x{i}": x[:, i] for i in range(10)})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
        begin = time.perf_counter()
        logs = Logs.read(path, task="task", reward="y", features="x*", max_rows=200_000)
        GaussianPrior.fit(logs, likelihood=Logistic())
        seconds = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    notes = {"rows": pq_rows(cell), "kept": logs.num_rows, "seconds": round(seconds, 1)}
    return Figure(cell, memory, notes)


def pq_rows(cell: Cell) -> int:
    """About how many rows the file has."""
    return int(cell.num_tasks * cell.mean_rows)
