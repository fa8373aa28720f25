"""Parameters of many dimensions on a plane, by UMAP where it is installed."""

import importlib.util
import warnings

import numpy as np

UMAP, AXES = "UMAP", "principal axes"
MISSING = (
    "UMAP is not installed, so the overlap of the priors is shown on their principal axes; "
    "`pip install 'diffprior[experiments]'` brings it."
)


def method() -> str:
    """What will draw the plane."""
    return UMAP if importlib.util.find_spec("umap") is not None else AXES


def on_plane(points: np.ndarray, seed: int) -> np.ndarray:
    """All rows together on one plane, (n, 2)."""
    scaled = (points - points.mean(axis=0)) / points.std(axis=0)
    return _umap(scaled, seed) if method() == UMAP else principal_axes(scaled)


def principal_axes(points: np.ndarray) -> np.ndarray:
    """The two directions in which the points vary most."""
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[:2].T


def _umap(points: np.ndarray, seed: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies, and that a seed costs threads
        import umap

        return np.asarray(umap.UMAP(random_state=seed).fit_transform(points), np.float64)
