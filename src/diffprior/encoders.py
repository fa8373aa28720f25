"""Raw columns of any type as features: fitted to a table, saved as JSON, applied to new rows."""

import dataclasses
import datetime
import decimal
import functools
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .feature_network import FeatureNetwork
from .files.base import Serializable
from .tables import choose_columns, column_cells, listed, read_table, reject_rows, text_of

INTERCEPT = "intercept"
OTHER = "other"
SEPARATOR = "|"  # of several labels in a cell
MIN_SHARE = 0.01  # of the rows, below which a level is one of the others
CLIP_FACTOR = 10.0  # times the distance of the 1 % and 99 % quantiles from the median
LARGEST_NUMBER = 1e150  # whose square is finite
MIN_ID_ROWS = 20  # from which a different value in every row looks like an id
FREE_TEXT_WORDS, FREE_TEXT_LENGTH = 4, 40  # on average
SINGULAR = 1e-10  # share of a feature that the features before it leave unexplained
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(\D.*)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}(\D.*)?")
DATES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
NUMBERS = (int, float, np.integer, np.floating, decimal.Decimal)
MAX_PRODUCTS = 16  # times `max_features`, of features before repeats are left out
NO_PLACES = np.zeros(0, np.int64)
Kind = Literal["number", "boolean", "category", "labels"]
Cells = dict[str, np.ndarray]


class EncodingWarning(UserWarning):
    """A column was left out, was clipped, or looks like an id."""


class Parsed(NamedTuple):
    """Cells of a column: numbers, NaN where missing, or sets of labels, None where missing.

    Of equal cells there is one set; `places` says which set each row has.
    """

    kind: Kind | None  # None if all cells are missing
    numbers: Float[np.ndarray, " n"] | None
    labels: list[frozenset[str] | None]
    places: Int[np.ndarray, " n"]

    @property
    def missing(self) -> Bool[np.ndarray, " n"]:
        """Whether each cell is missing."""
        if self.numbers is not None:
            return np.isnan(self.numbers)
        return np.array([labels is None for labels in self.labels], bool)[self.places]

    @property
    def plain(self) -> bool:
        """Whether the cells are features already."""
        return self.numbers is not None and not self.missing.any()


@dataclass(frozen=True)
class Column(Serializable):
    """One raw column, and how its cells become features.

    Attributes:
        name: Name of the raw column.
        kind: number, boolean, category (one level per cell) or labels (several per cell).
        optional: Whether cells may be missing.
        indicator: Whether a feature says that the cell is missing.
        center: Number that becomes 0.
        scale: Difference from `center` that becomes 1.
        low: Numbers below are clipped to it.
        high: Numbers above are clipped to it.
        levels: Levels or labels with a feature of their own, the most frequent last.
        other: Whether a feature stands for all other levels.
        fill: Features of a cell that is missing or unknown: their means.
    """

    name: str
    kind: Kind
    optional: bool = False
    indicator: bool = False
    center: float = 0.0
    scale: float = 1.0
    low: float = -math.inf
    high: float = math.inf
    levels: tuple[str, ...] = ()
    other: bool = False
    fill: tuple[float, ...] = (0.0,)

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        levels = [f"{self.name}={level}" for level in (*[OTHER] * self.other, *self.levels)]
        values = levels if self.kind in ("category", "labels") else [self.name]
        return values + [f"{self.name} is missing"] * self.indicator

    @property
    def reference(self) -> str | None:
        """The feature of a category that follows from the others beside an intercept."""
        return f"{self.name}={self.levels[-1]}" if self.kind == "category" and self.levels else None

    def encode(self, cells: np.ndarray) -> Float[np.ndarray, "n w"]:
        """Features of cells (n,); their means where a cell is missing or unknown."""
        parsed = _parsed(self.name, cells, self.kind)
        if not self.optional:
            wanted = f"{WANTED[self.kind]} in every row"
            fix = "fill it in; none was missing in the table that was learned from"
            reject_rows(parsed.missing, self.name, wanted, fix, "missing")
        values, unknown = self.apply(parsed)
        values[unknown] = self.fill
        return np.column_stack([values, parsed.missing]) if self.indicator else values

    def apply(self, parsed: Parsed) -> tuple[Float[np.ndarray, "n w"], Bool[np.ndarray, " n"]]:
        """Features of cells but for missing ones, and where they are unknown or missing."""
        if parsed.numbers is not None:
            values = (np.clip(parsed.numbers, self.low, self.high) - self.center) / self.scale
            return values[:, None], parsed.missing
        values = np.zeros((len(parsed.labels), len(self.levels) + self.other))
        unknown = np.array([labels is None for labels in parsed.labels], bool)
        for row, labels in enumerate(parsed.labels):
            for label in labels or ():
                place = self._places.get(label, 0 if self.other else None)
                if place is not None:
                    values[row, place] = 1.0
                elif self.kind == "category":
                    unknown[row] = True
        return values[parsed.places], unknown[parsed.places]

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {level: place + self.other for place, level in enumerate(self.levels)}

    def validate(self) -> None:
        """Reject columns that no table gives."""
        width = len(self.names) - self.indicator
        numbers = (self.center, self.scale, *self.fill)
        if not (all(map(math.isfinite, numbers)) and self.scale > 0 and self.low <= self.high):
            raise ValueError(f"`{self.name}`: expected finite numbers and a positive scale")
        limits = (self.low - self.center) / self.scale, (self.high - self.center) / self.scale
        if (self.center, self.scale) != (0.0, 1.0) and not all(map(math.isfinite, limits)):
            raise ValueError(f"`{self.name}`: expected limits of standardized numbers")
        if len(self.fill) != width or len(set(self.levels)) != len(self.levels):
            raise ValueError(f"`{self.name}`: expected {width} different features and their means")


@dataclass(frozen=True)
class Encoder(Serializable):
    """How rows of raw columns become feature vectors.

    Attributes:
        columns: The raw columns.
        interactions: Columns whose features are multiplied.
        intercept: Whether the first feature is always 1.
        kept: Which of all features are used; the others follow from those before them. None for all
            of them.
        left_out: Other columns of the table, which rows may have and which are not used.
        warnings: Columns that were left out or clipped, and why.
        network: What makes learned features of those of the columns, or None.

    Example:
        >>> import diffprior as dp
        >>> rows = [{"age": 20 + i % 3, "device": ("ios", "web")[i % 2]} for i in range(60)]
        >>> encoder = dp.Encoder.fit(rows)
        >>> encoder.names
        ('intercept', 'age', 'device=ios')
        >>> encoder.encode({"age": 21, "device": "web"})
        array([1., 0., 0.])
    """

    max_bytes: ClassVar[int] = 2**24

    columns: tuple[Column, ...]
    interactions: tuple[tuple[str, ...], ...] = ()
    intercept: bool = True
    kept: tuple[int, ...] | None = None
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    network: FeatureNetwork | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.columns, tuple):
            raise ValueError(
                f"`columns`: expected columns, got {type(self.columns).__name__}; fit an encoder "
                "to a table with Encoder.fit(table)"
            )

    @staticmethod
    def fit(
        rows: object,
        columns: str | Sequence[str] | None = None,
        *,
        reserved: Sequence[str] = (),
        intercept: bool | None = None,
        standardize: bool | None = None,
        min_count: int = 10,
        max_features: int = 64,
    ) -> "Encoder":
        """Fit an encoder to raw columns.

        Columns of numbers and booleans alone, with no cell missing, are taken to be features
        already: they are used as they are. Otherwise numbers are standardized, with extreme ones
        clipped; a category has a feature per level, and so have several labels in a cell, as a list
        or as "Action|Comedy"; levels in fewer than `min_count` rows, or in 1 % of them, are joined
        as "other"; a missing cell takes the means, and has an indicator. Columns that are constant
        or repeat others are left out with a warning.

        Args:
            rows: A table of any library, a file, or a list of dicts.
            columns: Names, patterns such as "x*", and interactions such as "age*device"; by default
                all columns but those that look like an id, which a warning names.
            reserved: Columns that patterns and the default leave out.
            intercept: Whether the first feature is always 1; by default, unless a column used as it
                is is constant.
            standardize: Whether numbers get mean 0 and standard deviation 1; by default, unless
                columns are used as they are.
            min_count: Rows from which a level has a feature of its own.
            max_features: Largest number of features.

        Returns:
            The encoder.

        Raises:
            ValueError: A column has dates, free text or cells of several types, or there are too
                many features; the message names the column.
        """
        cells = _cells_of(rows)
        chosen, interactions = _chosen(list(cells), columns, reserved)
        parsed = {name: _inferred(name, cells[name]) for name in chosen}
        plain = not interactions and all(found.plain for found in parsed.values())
        as_given = plain and columns is not None
        standardize = (not plain) if standardize is None else standardize
        found, notes, any_constant = list[Column](), list[str](), False
        for name, values in parsed.items():
            column, note = _fit_column(name, values, standardize, min_count)
            features = None if column is None else column.encode(cells[name])
            constant = features is not None and bool(np.all(features == features[:1]))
            looks_like_id = _looks_like_id(values)
            if constant and not as_given:
                column, note = None, "is constant or too rarely anything else; it is left out"
            if looks_like_id and columns is None:
                column, note = None, f"looks like {looks_like_id}; it is left out"
            elif looks_like_id and not as_given:
                note = note or f"looks like {looks_like_id}; leave it out unless it is a feature"
            if column is not None:
                found.append(column)
                any_constant |= constant
            notes += [f"`{name}`: {note}"] if note else []
        if not found:
            raise ValueError(
                f"`{', '.join(parsed)}`: expected columns that vary, got none "
                f"({'; '.join(notes)}); choose other columns"
            )
        names = {column.name for column in found}
        encoder = Encoder(
            tuple(found),
            tuple(parts for parts in interactions if names.issuperset(parts)),
            not any_constant if intercept is None else intercept,
            left_out=tuple(name for name in cells if name not in names),
            warnings=tuple(notes),
        )
        if plain and not standardize:
            return encoder
        encoder._check_size(MAX_PRODUCTS * max_features)
        encoder = encoder._without_repeats(cells)
        encoder._check_size(max_features)
        return encoder

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, (d,)."""
        if self.network is not None:
            return tuple(f"learned {i + 1}" for i in range(self.network.dim))
        return tuple(name for name, _ in self._features)

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The raw column, or the interaction, that each feature belongs to, (d,)."""
        return tuple(column for _, column in self._features)

    @property
    def dim(self) -> int:
        """Number of features d."""
        return len(self._features) if self.network is None else self.network.dim

    def encode(self, rows: object) -> Float[np.ndarray, "..."]:
        """Features of rows: (n, d) of a table or a list of dicts, (d,) of one dict.

        Args:
            rows: Rows with the columns that the encoder was fitted to, of the same or another kind
                of table. Dicts must have no names that are new, so that none is misspelled. An
                array has the features of the columns, if columns are used as they are or features
                are learned from them.

        Returns:
            Finite numbers.

        Raises:
            ValueError: A column is missing or unknown, or a cell is of another type; the message
                names the column.
        """
        if isinstance(rows, np.ndarray) and self.network is not None:
            return self.network(rows)
        if isinstance(rows, np.ndarray) and self.plain and rows.shape[-1:] == (self.dim,):
            return rows
        features = self._encode_all(_cells_of(rows, self))
        features = features if self.kept is None else features[:, list(self.kept)]
        features = features if self.network is None else self.network(features)
        return features[0] if isinstance(rows, Mapping) else features

    @property
    def plain(self) -> bool:
        """Whether columns are used as they are, beside an intercept."""
        return self.kept is None

    def warn(self) -> None:
        """Issue the warnings of the fit, at the place that called the caller."""
        for text in self.warnings:
            warnings.warn(text, EncodingWarning, stacklevel=3)

    @functools.cached_property
    def _features(self) -> list[tuple[str, str]]:
        """Name of every feature, and the column or the interaction that it belongs to."""
        of = {column.name: column.names for column in self.columns}
        every = [(INTERCEPT, INTERCEPT)] * self.intercept
        every += [(name, column) for column, names in of.items() for name in names]
        for parts in self.interactions:
            products = itertools.product(*(of[part] for part in parts))
            every += [("*".join(factors), "*".join(parts)) for factors in products]
        return every if self.kept is None else [every[place] for place in self.kept]

    @property
    def _width(self) -> int:
        """Number of all features, kept or not."""
        of = {column.name: len(column.names) for column in self.columns}
        products = (math.prod(of[part] for part in parts) for parts in self.interactions)
        return self.intercept + sum(of.values()) + sum(products)

    def _encode_all(self, cells: Cells) -> Float[np.ndarray, "n w"]:
        blocks = {column.name: column.encode(cells[column.name]) for column in self.columns}
        ones = np.ones((len(next(iter(blocks.values()))), 1))
        every = [ones] * self.intercept + list(blocks.values())
        for parts in self.interactions:
            product = ones
            for part in parts:
                pairs = product[:, :, None] * blocks[part][:, None, :]
                product = pairs.reshape(len(ones), product.shape[1] * blocks[part].shape[1])
            every.append(product)
        return np.concatenate(every, axis=1)

    def _check_size(self, most: int) -> None:
        if self._width > most and (self.kept is None or len(self.kept) > most):
            total = self._width if self.kept is None else len(self.kept)
            counts = Counter(column for _, column in self._features)
            column, count = counts.most_common(1)[0]
            raise ValueError(
                f"`{column}`: expected at most {most} features in all, got {total}, {count} of them"
                " of this column; leave it out, group its levels, or raise `min_count`"
            )

    def _without_repeats(self, cells: Cells) -> "Encoder":
        """Use only features that do not follow from those before them, by a Cholesky factor."""
        features = self._encode_all(cells)
        scale = np.maximum(np.sqrt(np.mean(features**2, axis=0)), np.finfo(float).tiny)
        gram = (features / scale).T @ (features / scale)
        expected = {column.reference for column in self.columns}
        expected_of = {"*".join(parts) for parts in self.interactions}
        kept, notes = list[int](), list[str]()
        factor = np.zeros_like(gram)
        for place, (name, column) in enumerate(self._features):
            row = factor[place]
            for i, before in enumerate(kept):
                row[i] = (gram[place, before] - factor[before, :i] @ row[:i]) / factor[before, i]
            rest = gram[place, place] - row @ row
            if rest > SINGULAR * len(features):
                row[len(kept)] = math.sqrt(rest)
                kept.append(place)
            elif name not in expected and column not in expected_of:
                notes.append(f"`{column}`: {name!r} follows from other features; it is left out")
        return dataclasses.replace(
            self, kept=tuple(kept), warnings=(*self.warnings, *dict.fromkeys(notes))
        )

    def validate(self) -> None:
        """Reject encoders that no table gives."""
        known = [column.name for column in self.columns]
        if not known or len(set(known)) < len(known):
            raise ValueError(f"`columns`: expected columns of different names, got {known}")
        if not all(len(parts) > 1 and set(parts) <= set(known) for parts in self.interactions):
            raise ValueError(f"`interactions`: expected known columns, got {self.interactions}")
        if self._width > 2**16 or not all(0 <= place < self._width for place in self.kept or ()):
            raise ValueError(f"`kept`: expected places of {self._width} features, got {self.kept}")

    def __repr__(self) -> str:
        return f"Encoder({listed(self.names)})"


# ---- fitting one column


def _inferred(name: str, cells: np.ndarray) -> Parsed:
    """Cells by the type that they have; text with separators is labels."""
    kind = _kind(name, cells[_distinct(cells)[0]] if cells.dtype == object else cells)
    if kind is None:
        return Parsed(None, None, [None], np.zeros(len(cells), np.int64))
    parsed = _parsed(name, cells, kind)
    if kind == "category":
        texts = [next(iter(cell)) for cell in parsed.labels if cell is not None]
        _reject_dates_and_free_text(name, texts, int(np.sum(~parsed.missing)))
        if any(SEPARATOR in text for text in texts):
            return _parsed(name, cells, "labels")
    return parsed


def _fit_column(
    name: str, parsed: Parsed, standardize: bool, min_count: int
) -> tuple[Column | None, str]:
    """The column, and a note about it."""
    missing = parsed.missing
    optional, indicator = bool(missing.any()), min_count <= missing.sum() < len(missing)
    if parsed.kind is None:
        return None, "has no cells that are not missing; it is left out"
    column = Column(name, parsed.kind, optional, bool(indicator))
    if parsed.numbers is not None:
        numbers = parsed.numbers[~missing]
        if parsed.kind == "number" and standardize:
            return _standardized(column, numbers)
        return dataclasses.replace(column, fill=(float(numbers.mean()),)), ""
    times = np.bincount(parsed.places, minlength=len(parsed.labels)).tolist()
    sets = [(labels, n) for labels, n in zip(parsed.labels, times, strict=True) if labels]
    counts = Counter[str]()
    for labels, count in sets:
        counts.update(dict.fromkeys(labels, count))
    enough = max(min_count, MIN_SHARE * len(missing))
    frequent = sorted((n, level) for level, n in counts.items() if n >= enough and level != OTHER)
    levels = tuple(level for _, level in frequent)
    num_others = sum(n for labels, n in sets if not labels.issubset(levels))
    column = dataclasses.replace(column, levels=levels, other=num_others >= enough)
    values, unknown = column.apply(parsed)
    means = values[~unknown].mean(axis=0) if not unknown.all() else values.mean(axis=0)
    return dataclasses.replace(column, fill=tuple(means.tolist())), ""


def _standardized(column: Column, numbers: np.ndarray) -> tuple[Column, str]:
    """A column of numbers with mean 0 and standard deviation 1 after clipping."""
    fix = "rescale it"
    too_large = np.abs(numbers) > LARGEST_NUMBER
    reject_rows(too_large, column.name, f"numbers up to {LARGEST_NUMBER:g}", fix, "larger")
    median, ordered = float(np.median(numbers)), np.sort(numbers)
    at = round(0.01 * (len(numbers) - 1) + 0.5)  # at least one number lies beyond
    below, above = median - ordered[min(at, len(ordered) - 1)], ordered[-1 - at] - median
    low = median - CLIP_FACTOR * below if below > 0 else ordered[0]
    high = median + CLIP_FACTOR * above if above > 0 else ordered[-1]
    clipped = np.clip(numbers, low, high)
    center = float(clipped.mean())
    spread = float(np.max(np.abs(clipped - center)))
    scale = spread * float(np.sqrt(np.mean(((clipped - center) / (spread or 1.0)) ** 2))) or 1.0
    count = int(np.sum(clipped != numbers))
    note = f"{count} of {len(numbers)} numbers are clipped to {low:g} to {high:g}" if count else ""
    found = dataclasses.replace(
        column, center=center, scale=scale, low=float(low), high=float(high)
    )
    return found, note


def _looks_like_id(parsed: Parsed) -> str:
    """The kind of id that a column looks like; empty if it does not."""
    present = ~parsed.missing
    count = int(present.sum())
    if count < MIN_ID_ROWS:
        return ""
    if parsed.kind == "category":
        distinct = len({labels for labels in parsed.labels if labels is not None})
        return (
            f"an id, with {distinct} different cells in {count} rows"
            if distinct > count / 2
            else ""
        )
    if parsed.kind != "number" or parsed.numbers is None:
        return ""
    numbers = parsed.numbers[present]
    steps, sorted_steps = np.diff(numbers), np.diff(np.sort(numbers))
    whole = np.all(numbers == np.round(numbers))
    rising = np.all(steps > 0) or np.all(sorted_steps == 1)
    return "an id or a row number" if whole and rising else ""


def _reject_dates_and_free_text(name: str, texts: list[str], count: int) -> None:
    """Raise for different texts of `count` cells that no category has."""
    if not texts:
        return
    if all(DATE.fullmatch(text) for text in texts):
        raise ValueError(_NO_DATES.format(name, texts[0]))
    distinct = set(texts)
    numeric = sum(_is_number(text) for text in distinct)
    if len(distinct) > MIN_ID_ROWS and len(distinct) / 2 < numeric < len(distinct):
        odd = next(text for text in texts if not _is_number(text))
        raise ValueError(
            f"`{name}`: expected numbers, got text such as {odd!r} among them; leave such cells "
            "empty, so that they count as missing"
        )
    words = sum(len(text.split()) for text in distinct) / len(distinct)
    length = sum(map(len, distinct)) / len(distinct)
    varied = len(distinct) > count / 2 and SEPARATOR not in texts[0]
    if varied and (words > FREE_TEXT_WORDS or length > FREE_TEXT_LENGTH):
        raise ValueError(
            f"`{name}`: expected numbers, booleans, categories or labels, got free text such as "
            f"{texts[0][:40]!r}; leave it out, or replace it by a category or by numbers of it"
        )


# ---- cells


def _cells_of(rows: object, encoder: Encoder | None = None) -> Cells:
    """Cells by column: of all columns, or of those of an encoder, missing if there are none."""
    dicts = [rows] if isinstance(rows, Mapping) else rows
    columns = () if encoder is None else encoder.columns
    wanted = {column.name for column in columns}
    if isinstance(dicts, list | tuple) and all(isinstance(row, Mapping) for row in dicts):
        count, names = len(dicts), dict.fromkeys(name for row in dicts for name in row)
        known = names if encoder is None else {*wanted, *encoder.left_out}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"`{unknown[0]}`: expected one of the columns {listed(sorted(wanted))}, got an "
                "unknown name; correct it, or leave it out"
            )
        cells = {
            name: np.fromiter((row.get(name) for row in dicts), object, count) for name in names
        }
    else:
        frame = read_table(rows, "rows")
        count, names = len(frame), dict.fromkeys(frame.columns)
        used = (name for name in names if encoder is None or name in wanted)
        cells = {name: column_cells(frame[name]) for name in used}
    for column in columns:
        if column.name not in cells:
            if not column.optional and count:
                raise ValueError(
                    f"`{column.name}`: expected {WANTED[column.kind]}, got no such column; add it"
                )
            cells[column.name] = np.full(count, None, object)
    return cells


def _chosen(
    available: list[str], columns: str | Sequence[str] | None, reserved: Sequence[str]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Names of columns, and interactions, whose columns are among them."""
    if columns is None:
        return [name for name in available if name not in reserved], []
    patterns, interactions = list[str](), list[tuple[str, ...]]()
    for pattern in [columns] if isinstance(columns, str) else columns:
        parts = tuple(part.strip() for part in pattern.split("*"))
        if pattern not in available and len(parts) > 1 and set(parts) <= set(available):
            interactions.append(parts)
            patterns += parts
        else:
            patterns.append(pattern)
    return choose_columns(available, patterns, reserved), list(dict.fromkeys(interactions))


def _kind(name: str, cells: np.ndarray) -> Kind | None:
    """The type that all cells have; None if all are missing."""
    if cells.dtype.kind in "iuf":
        return None if np.isnan(cells.astype(np.float64)).all() else "number"
    if cells.dtype.kind == "b":
        return "boolean"
    examples: dict[str, object] = {}
    for cell in cells:
        if not _is_missing(cell):
            examples.setdefault(_type_of(cell), cell)
    kinds = examples.keys() - ({"boolean"} if "number" in examples else set())
    if "date" in kinds:
        raise ValueError(_NO_DATES.format(name, examples["date"]))
    if kinds == {"category", "labels"}:
        return "labels"
    if len(kinds) > 1 or not kinds <= set(WANTED):
        shown = " and ".join(f"{type(cell).__name__} {cell!r:.40}" for cell in examples.values())
        raise ValueError(
            f"`{name}`: expected numbers, booleans, text or lists of labels, of one type in all "
            f"rows, got {shown}; convert the column, or leave it out"
        )
    return next(iter(kinds), None)  # type: ignore[arg-type]


def _type_of(cell: object) -> str:
    if isinstance(cell, bool | np.bool_):
        return "boolean"
    if isinstance(cell, DATES):
        return "date"
    if isinstance(cell, NUMBERS):
        return "number"
    if isinstance(cell, str):
        return "category"
    return "labels" if isinstance(cell, SETS) and all(isinstance(x, str) for x in cell) else "other"


def _is_missing(cell: object) -> bool:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return True
    return type(cell).__name__ in ("NAType", "NaTType") or (
        isinstance(cell, NUMBERS) and bool(cell != cell)
    )


def _parsed(name: str, cells: np.ndarray, kind: Kind) -> Parsed:
    """Cells of a kind, booleans as 0 and 1."""
    if kind in ("number", "boolean"):
        return Parsed(kind, _numbers(name, cells, kind), [], NO_PLACES)
    several = kind == "labels"
    first, places = _distinct(cells)
    found: list[frozenset[str] | None] = []
    for row, cell in zip(first.tolist(), cells[first].tolist(), strict=True):
        type_ = _type_of(cell)
        if _is_missing(cell):
            found.append(None)
        elif type_ == "category":
            parts = str(cell).split(SEPARATOR) if several else [str(cell)]
            found.append(frozenset(part.strip() for part in parts if part.strip()))
        elif type_ in ("number", "boolean"):
            found.append(frozenset([text_of(cell)]))
        elif type_ == "labels" and several:
            found.append(frozenset(str(label).strip() for label in cell))
        else:
            raise _wrong_type(name, cell, kind, row)
    return Parsed(kind, None, found, places)


def _numbers(name: str, cells: np.ndarray, kind: Kind) -> Float[np.ndarray, " n"]:
    numbers = np.full(len(cells), np.nan)
    if cells.dtype.kind in "iufb":
        numbers = cells.astype(np.float64)
    for row, cell in enumerate(cells if cells.dtype.kind not in "iufb" else ()):
        if not _is_missing(cell):
            if _type_of(cell) not in ("number", "boolean"):
                raise _wrong_type(name, cell, kind, row)
            try:
                numbers[row] = float(cell)
            except OverflowError:
                numbers[row] = math.inf
    reject_rows(np.isinf(numbers), name, "finite numbers", "fix them", "infinite ones")
    if kind == "boolean":
        wrong = ~np.isnan(numbers) & (numbers != 0) & (numbers != 1)
        reject_rows(wrong, name, "true or false", "fix them", "others")
    return numbers


def _distinct(cells: np.ndarray) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " n"]]:
    """The first row of every different cell, and which of them each row has; lists all differ."""
    if cells.dtype != object:
        _, first, places = np.unique(cells, return_index=True, return_inverse=True)
        return first, places.reshape(-1)
    seen: dict[object, int] = {}
    keys = ((type(cell), cell) for cell in cells)
    try:
        numbers = (seen.setdefault(key, len(seen)) for key in keys)
        places = np.fromiter(numbers, dtype=np.int64, count=len(cells))
    except TypeError:  # a list cannot be looked up
        return np.arange(len(cells)), np.arange(len(cells))
    return np.unique(places, return_index=True)[1], places


def _wrong_type(name: str, cell: object, kind: Kind, row: int) -> ValueError:
    return ValueError(
        f"`{name}`: expected {WANTED[kind]}, got {type(cell).__name__} {cell!r:.40} (row {row}); "
        "convert it"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


SETS = (list, tuple, set, frozenset, np.ndarray)
WANTED = {
    "number": "a number",
    "boolean": "true or false",
    "category": "a category, as text or a number",
    "labels": "labels, as a list or as text such as 'a|b'",
}
_NO_DATES = (
    "`{}`: expected numbers, booleans, categories or labels, got dates such as {}; leave it "
    "out, or replace it by columns such as an age in days, a weekday or an hour"
)
