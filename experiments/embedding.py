"""Parameters of many dimensions on a plane: by UMAP where it is installed, else by PCA."""

import importlib.util
import warnings

import numpy as np


def method() -> str:
    """What will draw the plane."""
    return "UMAP" if importlib.util.find_spec("umap") is not None else "PCA"


def on_plane(points: np.ndarray, seed: int) -> np.ndarray:
    """All rows (n, d) together on one plane, (n, 2)."""
    scaled = (points - points.mean(axis=0)) / points.std(axis=0)
    if method() == "UMAP":
        return _umap(scaled, seed)
    from sklearn.decomposition import PCA

    return PCA(2, random_state=seed).fit_transform(scaled)


def _umap(points: np.ndarray, seed: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies, and that a seed costs threads
        import umap

        return np.asarray(umap.UMAP(random_state=seed).fit_transform(points), np.float64)
