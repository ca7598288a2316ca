"""What the leak half of `deconfound.metrics` should compute, written out from the definitions.

Nothing here imports deconfound. Matrices are explicit and inputs are small.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from scipy.linalg import block_diag
from scipy.spatial.distance import cdist


def distance_covariance(a, b, corrected):
    """Return the mean product of two doubly centred distance matrices, or its U-statistic."""
    n = len(a)
    if not corrected:
        centring = np.eye(n) - 1 / n
        return ((centring @ a @ centring) * (centring @ b @ centring)).sum() / n**2
    centred = []
    for d in (a, b):
        total = d.sum() / ((n - 1) * (n - 2))
        u = d - d.sum(0) / (n - 2) - d.sum(1)[:, None] / (n - 2) + total
        np.fill_diagonal(u, 0.0)
        centred.append(u)
    return (centred[0] * centred[1]).sum() / (n * (n - 3))


def distance_correlation(x, y, corrected):
    """Return the squared distance correlation by definition."""
    a, b = (cdist(side.reshape(len(side), -1), side.reshape(len(side), -1)) for side in (x, y))
    variances = [distance_covariance(side, side, corrected) for side in (a, b)]
    return distance_covariance(a, b, corrected) / np.sqrt(variances[0] * variances[1])


def cell_projection(cell, mass):
    """Return P, shape `(n, n)`: P @ v is v minus the mean of its cell, weighted by `mass`."""
    projection = np.eye(len(cell))
    for code in np.unique(cell):
        member = (cell == code).astype(float)
        projection -= np.outer(member, member * mass) / (member @ mass)
    return projection


def leak_kernel(outputs, cell, person, fold=None, ridge=0.1):
    """Return K, shape `(n, n)`, from the definition.

    Rows of different `fold` are not compared. Cells of fewer than 20 people have the standard
    deviation of all cells together.
    """
    votes = 1 / np.array([(person == one).sum() for one in person])
    y = cell_projection(cell, votes) @ outputs
    pooled = (votes @ y**2) / (votes.sum() - len(np.unique(cell)))
    scaled = np.empty_like(y)
    for code in np.unique(cell):
        rows = cell == code
        people = votes[rows].sum()
        own = votes[rows] @ y[rows] ** 2 / (people - 1) if people > 1 else pooled
        scaled[rows] = y[rows] / np.sqrt(own if people >= 20 else pooled)
    return kernel_of_scaled(scaled, cell, person, fold, ridge)


def kernel_of_scaled(scaled, cell, person, fold=None, ridge=0.1, shift=0.0):
    """Return K, shape `(n, n)`, of standardised outputs plus a shift that λ does not know."""
    n, d = scaled.shape
    votes = 1 / np.array([(person == one).sum() for one in person])
    root = np.sqrt(votes)
    fold = np.zeros(n) if fold is None else fold
    order = np.argsort(fold, kind="stable")
    unshifted, scaled = root[:, None] * scaled, scaled + shift
    readers = []
    for code in np.unique(fold):
        rows = fold == code
        weighted = root[rows, None] * scaled[rows]
        if d == 1:
            readers.append(weighted @ weighted.T)
            continue
        penalty = ridge * (unshifted[rows] ** 2).sum() / min(votes[rows].sum(), d)
        u, s, _ = np.linalg.svd(weighted, full_matrices=False)
        readers.append((u * (s**2 / (s**2 + penalty))) @ u.T)
    linear = np.empty((n, n))
    linear[np.ix_(order, order)] = block_diag(*readers)
    distance = -cdist(scaled, scaled) * np.outer(root, root) * (fold[:, None] == fold)
    kernel = np.zeros((n, n))
    # Off √u · 1 of each cell: the projection P in coordinates that carry √u.
    project = np.diag(root) @ cell_projection(cell, votes) @ np.diag(1 / root)
    for part in (linear, distance):
        part = project @ part @ project.T
        part[person[:, None] == person] = 0.0
        kernel += part / np.linalg.norm(part)
    return kernel


def planted_kernel(scaled, shift, cell, person, fold=None):
    """Return K, shape `(n, n)`, of standardised outputs shifted by `shift (n,)` of their sd.

    They are shifted along their leading component, whose largest score is positive.
    """
    votes = 1 / np.array([(person == one).sum() for one in person])
    u, _, v = np.linalg.svd(np.sqrt(votes)[:, None] * scaled, full_matrices=False)
    direction = v[0] * np.sign(u[np.abs(u[:, 0]).argmax(), 0]) if len(v) > 1 else np.ones(1)
    unit = np.sqrt(np.average((scaled @ direction) ** 2, weights=votes))
    moved = unit * cell_projection(cell, votes) @ shift
    return kernel_of_scaled(scaled, cell, person, fold, shift=np.outer(moved, direction))


def leak_sum(kernel, columns, cell, person, weight, whiten):
    """Return T over all pairs: Σ √u_i √u_j K_ij a_i · a_j."""
    votes = 1 / np.array([(person == one).sum() for one in person])
    a = weight[:, None] * (cell_projection(cell, votes * weight) @ columns)
    if whiten:
        u, s, _ = np.linalg.svd(a * np.sqrt(votes)[:, None], full_matrices=False)
        rank = (s > 1e-6 * s[0]).sum()
        return float(np.trace(u[:, :rank].T @ kernel @ u[:, :rank]))
    weighted = a * np.sqrt(votes)[:, None]
    return float(np.trace(weighted.T @ kernel @ weighted))


def exact_p_value(kernel, confound, cell):
    """Return the share of all orders within cells whose T is at least that of the table."""
    n = len(confound)
    person, weight = np.arange(n), np.ones(n)
    sums = {}
    for order in permutations(range(n)):
        moved = confound[list(order)]
        if (cell[list(order)] == cell).all() and tuple(moved) not in sums:
            sums[tuple(moved)] = leak_sum(kernel, moved[:, None], cell, person, weight, True)
    t = np.array(list(sums.values()))
    return float((t >= sums[tuple(confound)] - 1e-9).mean())
