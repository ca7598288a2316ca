"""What the library costs: each figure a ratio to something plain, measured in the same run.

A section is a list of jobs (`jobs`); a run measures them in order and stores every row at once (`experiment`); `claims`
says what must hold; `page` makes `docs/results/performance.md` from the JSON.
"""
