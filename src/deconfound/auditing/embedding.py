"""Two coordinates per person for the eye: t-SNE as in the paper's figure, or principal components without it."""

import numpy as np
from numpy.typing import NDArray

from deconfound.auditing.records import Embedding

Matrix = NDArray[np.float64]
PERPLEXITY = 30.0


def embed(model: str, features: Matrix, rows: NDArray[np.int64], seed: int = 0) -> Embedding:
    """Place the rows of `features (n, d)` in the plane; the method says how.

    One column is drawn as itself against a random height, two columns as they are, more by t-SNE, or by the
    first two principal components where scikit-learn is not installed or there are too few rows.
    """
    scale = features.std(0)
    x = (features - features.mean(0)) / np.where(scale > 0, scale, 1)
    if x.shape[1] == 1:
        height = np.random.default_rng(seed).uniform(-1, 1, len(x))
        return _embedding(model, "output against a random height", np.column_stack([features[:, 0], height]), rows)
    if x.shape[1] == 2:
        return _embedding(model, "the two outputs", features, rows)
    if len(x) > 3 * PERPLEXITY:
        try:
            from sklearn.manifold import TSNE  # type: ignore[import-untyped]
        except ImportError:
            reason = "principal components (t-SNE needs scikit-learn: install deconfound[report])"
            return _embedding(model, reason, _principal(x), rows)
        points = TSNE(perplexity=PERPLEXITY, init="pca", random_state=seed).fit_transform(_principal(x, 50))
        return _embedding(model, "t-SNE", np.asarray(points, dtype=np.float64), rows)
    return _embedding(model, "principal components (too few rows for t-SNE)", _principal(x), rows)


def _principal(x: Matrix, components: int = 2) -> Matrix:
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    scores: Matrix = u[:, :components] * s[:components]
    return scores


def _embedding(model: str, method: str, points: Matrix, rows: NDArray[np.int64]) -> Embedding:
    x, y = (tuple(float(f"{value:.5g}") for value in points[:, axis]) for axis in (0, 1))
    return Embedding(model, method, tuple(int(row) for row in rows), x, y)
