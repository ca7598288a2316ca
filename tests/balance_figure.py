"""Draws `docs/figures/balance.svg`: what weights do to the line that tells cases from controls.

`make figures` writes it; a test compares the committed file with what the code gives.
"""

import numpy as np

import deconfound as dc
from tests.rooms import ROOT

FIGURE = ROOT / "docs" / "figures" / "balance.svg"
SIDE, GAP, TOP = 300, 60, 64
CASE, CONTROL = "#b5473c", "#3b6ea5"


def people(n=160, seed=3):
    """A feature that shows the label faintly, another that shows the site plainly, and most cases at one site."""
    rng = np.random.default_rng(seed)
    case = rng.random(n) < 0.5
    south = rng.random(n) < np.where(case, 0.85, 0.15)
    x = 0.9 * case + rng.normal(0, 0.6, n)
    y = 2.0 * south + rng.normal(0, 0.35, n)
    return x, y, case.astype(int), np.where(south, "south", "north")


def best_line(x, y, case, weight):
    """Intercept and slopes of the logistic regression of the label on both features, under weights."""
    columns, beta = np.column_stack([np.ones(len(x)), x, y]), np.zeros(3)
    for _ in range(50):
        p = 1 / (1 + np.exp(-columns @ beta))
        curvature = (columns * (weight * p * (1 - p))[:, None]).T @ columns + 1e-3 * np.eye(3)
        beta += np.linalg.solve(curvature, columns.T @ (weight * (case - p)) - 1e-3 * beta)
    return beta


def draw():
    """Two panels of the same people: every row counts the same, and overlap weights."""
    x, y, case, site = people()
    weights = dc.balance({"site": site, "dx": case}, ["dx"], ["site"]).row_weight
    width, height = 2 * SIDE + 3 * GAP, SIDE + TOP + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, (title, weight) in enumerate(
        (("every row counts the same", np.ones(len(x))), ("overlap weights", weights))
    ):
        left = GAP + place * (SIDE + GAP)
        parts += panel(left, title, x, y, case, site, weight)
    parts.append(
        f'<text x="{GAP}" y="{height - 12}">dots: people, area by weight · <tspan fill="{CASE}">cases</tspan> · '
        f'<tspan fill="{CONTROL}">controls</tspan> · line: the best linear model of both features</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def panel(left, title, x, y, case, site, weight):
    def at(a, b):
        return left + (a + 1.6) / 4.6 * SIDE, TOP + SIDE - (b + 1.2) / 4.4 * SIDE

    shares = [np.average(case[site == each], weights=weight[site == each]) for each in ("north", "south")]
    yield f'<text x="{left}" y="22" font-weight="bold">{title}</text>'
    yield f'<text x="{left}" y="42">cases: north {shares[0]:.0%}, south {shares[1]:.0%}</text>'
    yield f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>'
    for a, b, c, w in zip(x, y, case, weight, strict=True):
        px, py = at(a, b)
        size, colour = f"{3.2 * np.sqrt(w):.1f}", CASE if c else CONTROL
        yield f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{size}" fill="{colour}" fill-opacity="0.6"/>'
    b0, bx, by = best_line(x, y, case, weight)
    ends = []
    for t in np.linspace(-6, 6, 2001):  # along the line, as far as it lies inside the panel
        norm = np.hypot(bx, by)
        a, b = -b0 * bx / norm**2 - t * by / norm, -b0 * by / norm**2 + t * bx / norm
        if -1.6 <= a <= 3.0 and -1.2 <= b <= 3.2:
            ends.append(at(a, b))
    (x1, y1), (x2, y2) = ends[0], ends[-1]
    yield f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="#222" stroke-width="2"/>'
    yield f'<text x="{left + SIDE / 2}" y="{TOP + SIDE + 18}" text-anchor="middle">feature of the disease →</text>'
    yield (
        f'<text transform="translate({left - 10} {TOP + SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "feature of the site →</text>"
    )


if __name__ == "__main__":
    FIGURE.write_text(draw())
