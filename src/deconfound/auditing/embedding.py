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
    method, points = _placed(features, seed)
    x, y = (tuple(float(f"{value:.5g}") for value in points[:, axis]) for axis in (0, 1))
    return Embedding(model, method, tuple(rows.tolist()), x, y)


def _placed(features: Matrix, seed: int) -> tuple[str, Matrix]:
    n, d = features.shape
    if d == 1:
        height = np.random.default_rng(seed).uniform(-1, 1, n)
        return "output against a random height", np.column_stack([features[:, 0], height])
    if d == 2:
        return "the two outputs", features
    scale = features.std(0)
    x = (features - features.mean(0)) / np.where(scale > 0, scale, 1)
    if n <= 3 * PERPLEXITY:
        return "principal components (too few rows for t-SNE)", _principal(x)
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped]
    except ImportError:
        return "principal components (t-SNE needs scikit-learn: install deconfound[report])", _principal(x)
    return "t-SNE", TSNE(perplexity=PERPLEXITY, init="pca", random_state=seed).fit_transform(_principal(x, 50))


def _principal(x: Matrix, components: int = 2) -> Matrix:
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    scores: Matrix = u[:, :components] * s[:components]
    return scores
