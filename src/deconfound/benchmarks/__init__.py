"""What the library costs: each figure a ratio to something plain, measured in the same run.

`deconfound bench` writes JSON with its origin; `docs/performance.md` is made from the JSON by `page`.
"""
