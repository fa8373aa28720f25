"""Priors from very many tasks, from rows larger than memory, and in how much time."""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from .logs_cells import Cell, Clusters, Figure, law_of, rows_of


def seconds(cell: Cell) -> Figure:
    """Wall time of learning: of one rung, or of everything with the diffusion model."""
    from diffprior.evidence.families import Linear
    from diffprior.learning.ladder import learn
    from diffprior.logs.logs import Logs

    last, _, dim = cell.name.partition("-")
    rng = np.random.default_rng([cell.seed, 18])
    if dim == "d8":
        logs = Clusters(cell.seed).logs(cell.num_tasks, cell.mean_rows)
    else:
        logs = Logs(*rows_of(rng, law_of("swirl")(rng, cell.num_tasks), cell.mean_rows))
    begin = time.perf_counter()
    learned = learn(logs, Linear(), up_to=last, progress=False)
    total = time.perf_counter() - begin
    laps = learned.report.seconds
    notes = {name: round(value, 2) for name, value in laps.items()} | {"all": round(total, 1)}
    value = {"gaussian": laps["Gaussian"], "mixture": laps.get("mixture", total)}.get(last, total)
    return Figure(cell, value, notes)


def million(cell: Cell) -> Figure:
    """Gaussian and mixture of ten from the statistics of very many tasks; minutes and memory."""
    from diffprior.evidence.families import Linear
    from diffprior.logs.labels import label_hashes
    from diffprior.logs.statistics import TaskStatistics, triangle
    from diffprior.priors.from_tasks.search import Candidate, search_mixture

    rng, n, d = np.random.default_rng(cell.seed), cell.num_tasks, 10
    centers = rng.standard_normal((10, d))
    parts = []
    for start in range(0, n, 20_000):
        count = min(20_000, n - start)
        thetas = centers[rng.integers(10, size=count)] + 0.3 * rng.standard_normal((count, d))
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

    from diffprior.evidence.families import Logistic
    from diffprior.logs.logs import Logs

    rng = np.random.default_rng(cell.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        writer, num_rows = None, 0
        for shard in range(20):
            thetas = rng.standard_normal((cell.num_tasks // 20, 10))
            tasks, x, y = rows_of(rng, thetas, cell.mean_rows, logistic=True)
            columns = {"task": tasks + shard * 10_000_000, "y": y}
            table = pa.table(columns | {f"x{i}": x[:, i] for i in range(10)})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
            num_rows += len(tasks)
        assert writer is not None
        writer.close()
        begin = time.perf_counter()
        logs = Logs.read(path, task="task", reward="y", features="x*", max_rows=200_000)
        gaussian_from_logs(logs, Logistic())
        seconds = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    notes = {"rows": num_rows, "kept": logs.num_rows, "seconds": round(seconds, 1)}
    return Figure(cell, memory, notes)
