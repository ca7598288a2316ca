"""What the library costs: each figure a ratio to something plain, measured in the same run.

A section is a list of jobs (`job`); a run measures them in order and keeps every row at once (`run`, `store`); `claims`
says what must hold; `page` makes `docs/performance.md` from the JSON.
"""
