"""Results as text: one aligned table, and one way to write a number with its error."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    table = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def plus_minus(value: float, error: float) -> str:
    """A number and its standard error, to as many digits as the error allows."""
    if not np.isfinite(error) or error <= 0:
        return f"{value:.4g}"
    digits = min(6, max(0, 1 - int(np.floor(np.log10(error)))))
    return f"{value:.{digits}f} +- {error:.{digits}f}"


def standard_error(values: Float[np.ndarray, " n"]) -> float:
    """Of the mean of independent numbers; NaN where there are fewer than two."""
    if len(values) < 2:
        return float("nan")
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
