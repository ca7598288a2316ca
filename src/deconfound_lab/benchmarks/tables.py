"""The sections of a benchmark result as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from deconfound_lab.benchmarks import claims
from deconfound_lab.benchmarks.jobs import Result, Row, rows

ABOUT_MODES = """In the mode "graph" a whole step is captured in one CUDA graph,
so that the host, which issues one kernel after the other in eager code, no longer counts; "compiled" is
`torch.compile`, on a GPU with `mode="reduce-overhead"`, which captures forward and backward by itself and leaves the
rest of the step to the host."""


def claimed(result: Result) -> str:
    """How many claims the run confirms, and each of them with what was found; the refuted ones first."""
    found = claims.check(result)
    if not found:
        return ""
    held = sum(claim.holds for claim in found)
    lines = [
        (claim.text, f"{claim.limit:g}", f"{claim.found:.4g}", "held" if claim.holds else "**not held**")
        for claim in sorted(found, key=lambda claim: claim.holds)
    ]
    opening = f"{held} of {len(found)} held{'' if held == len(found) else '; those that did not come first'}.\n\n"
    return f"### Claims\n\n{opening}" + table(("claim", "at most", "found", ""), lines)


def sections(result: Result) -> list[str]:
    """The tables of all sections that the result has rows of."""
    makers: Mapping[str, Callable[[list[Row]], str]] = {
        "steps": _steps,
        "passes": _passes,
        "host": _host,
        "growth": _growth,
        "metrics": _metrics,
        "loading": _loading,
        "checks": _checks,
    }
    return [make(found) for section, make in makers.items() if (found := rows(result, section))]


def _steps(found: list[Row]) -> str:
    others = [method for method in dict.fromkeys(row["method"] for row in found) if method != "none"]
    by_case = {(row["network"], row["batch"], row["mode"], row["method"]): row for row in found}
    times, memory = [], []
    for network, batch, mode in dict.fromkeys((row["network"], row["batch"], row["mode"]) for row in found):
        plain = by_case.get((network, batch, mode, "none"), {})
        of = [by_case.get((network, batch, mode, method), {}) for method in others]
        times.append((network, str(batch), mode, _plain(plain), *map(_ratio, of)))
        if "kept_bytes" in plain:
            memory.append((network, str(batch), _bytes(plain["features_bytes"]), *(_kept(row, plain) for row in of)))
    text = "### Whole training steps\n\nForward, backward and Adam; time over the plain network's."
    if any(row["mode"] != "eager" for row in found):
        text += f" {ABOUT_MODES}"
    text += "\n\n"
    text += table(("network", "batch", "mode", "plain", *others), times)
    if memory:
        peaks = any("peak_bytes" in row for row in found)
        text += "\nCopies of the normalised features kept for backward beyond what the next modules need"
        text += ", and the step's peak memory over the plain one's:\n\n" if peaks else ":\n\n"
        text += table(("network", "batch", "features", *others), memory)
    return text


def _kept(row: Row, plain: Row) -> str:
    if "kept_bytes" not in row:
        return ""
    text = f"{(row['kept_bytes'] - row['needed_bytes']) / row['features_bytes']:.2f}"
    return text + (f", peak {row['peak_bytes'] / plain['peak_bytes']:.2f}" if "peak_bytes" in row else "")


def _passes(found: list[Row]) -> str:
    columns = list(dict.fromkeys((row["layer"], row["pass"]) for row in found if row["layer"] != "copy"))
    sizes = list(dict.fromkeys((row["n"], row["d"], row["type"]) for row in found))
    by_size = {(row["n"], row["d"], row["type"], row["layer"], row["pass"]): row for row in found}
    layers = list(dict.fromkeys(layer for layer, _ in columns))
    lines = []
    for size in sizes:
        copy = by_size.get((*size, "copy", "copy"), {})
        cells = [
            " / ".join(
                _ratio(by_size[(*size, *column)])
                for column in columns
                if column[0] == layer and (*size, *column) in by_size
            )
            for layer in layers
        ]
        lines.append((f"{size[0]} × {size[1]:,}", size[2], _plain(copy), *cells))
    text = "### One layer's passes\n\nTime over a copy of the features: forward in training / its backward / eval.\n\n"
    return text + table(("samples × features", "type", "copy", *layers), lines)


def _host(found: list[Row]) -> str:
    steps, alone = ([row for row in found if what in row] for what in ("method", "layer"))
    others = [method for method in dict.fromkeys(row["method"] for row in steps) if method != "none"]
    lines = []
    for network, batch, count in dict.fromkeys((row["network"], row["batch"], row["threads"]) for row in steps):
        of = {row["method"]: row for row in steps if (row["network"], row["threads"]) == (network, count)}
        cells = [_ratio(of.get(method, {})) for method in others]
        lines.append((network, str(batch), str(count), _plain(of.get("none", {})), *cells))
    text = "### What a layer costs the host\n\nA training step of a network on a table, layers after each of its three "
    text += "linear layers; time over the plain network's.\n\n"
    text += table(("network", "batch", "threads", "plain", *others), lines)
    if alone:
        sizes = f"{alone[0]['n']} × {alone[0]['d']}"
        text += f"\nForward and backward of one layer by itself in training, {sizes}:\n\n"
        text += table([row["layer"] for row in alone], [[time(row["seconds"]) for row in alone]])
    return text


def _growth(found: list[Row]) -> str:
    lines = []
    for axis in dict.fromkeys(row["axis"] for row in found):
        along = [row for row in found if row["axis"] == axis]
        name = {"n": "samples", "d": "features", "p": "metadata columns", "layers": "layers"}[axis]
        fixed = ", ".join(f"{key} {along[0][key]:,}" for key in ("n", "d", "p") if key != axis)
        lines.append((name, fixed, ", ".join(f"{row[axis]:,}: {time(row['seconds'])}" for row in along)))
    heads = ("what grows", "beside", "forward and backward in training")
    return "### Growth\n\n" + table(heads, lines)


def _metrics(found: list[Row]) -> str:
    columns = list(dict.fromkeys((row["by"], row["type"]) for row in found))
    by_size = {(row["n"], row["by"], row["type"]): row for row in found}
    lines = [
        (f"{n:,}", *(_measured(by_size.get((n, *column), {})) for column in columns))
        for n in dict.fromkeys(row["n"] for row in found)
    ]
    text = "### Distance correlation\n\nBias-corrected, 64 features against 3 columns.\n\n"
    return text + table(("samples", *(f"{by}, {type_}" for by, type_ in columns)), lines)


def _measured(row: Row) -> str:
    memory = f", {_bytes(row['peak_bytes'])}" if "peak_bytes" in row else ""
    return time(row["seconds"]) + memory if row else ""


def _loading(found: list[Row]) -> str:
    lines = [
        (
            f"encode {row['rows']:,} rows × {row['columns']} columns"
            if row["what"] == "encode"
            else f"`{row['what']}`",
            time(row["seconds"]),
        )
        for row in found
    ]
    return "### Loading and encoding\n\n" + table(("what", "time"), lines)


def _checks(found: list[Row]) -> str:
    whats = [what for what in ("beta", "residual", "cross", "gradient", "eval") if what in found[0]]
    lines = [
        (f"{row['n']} × {row['d']:,}", str(row["q"]), row["type"], *(f"{row[what]:.1e}" for what in whats))
        for row in found
    ]
    heads = ("samples × features", "regressors", "type", *whats)
    return "### Kernels against float64\n\nRelative errors.\n\n" + table(heads, lines)


def _plain(row: Row) -> str:
    return time(row["seconds"]) if "seconds" in row else ""


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.2f}" if "ratio" in row else "fault" if "fault" in row else ""


def _bytes(number: float) -> str:
    return f"{number / 2**20:,.0f} MiB" if number < 2**30 else f"{number / 2**30:.1f} GiB"


def time(seconds: float) -> str:
    """Three digits with a unit."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    made = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(line) for line in lines)]
    return "\n".join(f"| {line} |" for line in made) + "\n"


def headline(job: str, row: Row) -> str:
    """One row of a job in a few words: what it is beyond the job's name, its time, its ratio to something plain."""
    words = [str(value) for value in row.values() if isinstance(value, str) and value not in job]
    words += [
        f"{key} {row[key]:,}" for key in ("n", "d", "p", "layers", "rows") if key in row and f"{row[key]:,}" not in job
    ]
    words += [time(row["seconds"])] if "seconds" in row else []
    words += [f"{row['ratio']:.2f} ×"] if "ratio" in row else []
    words += [f"{what} {row[what]:.1e}" for what in ("beta", "residual", "gradient", "eval", "gap") if what in row]
    return ", ".join(words)
