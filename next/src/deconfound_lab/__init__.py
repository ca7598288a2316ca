"""The paper's experiments, repeated as an ordinary user of `deconfound` would.

The lab uses public names of the library only. An experiment is a list of cells, a function that
computes one, and a page that is made from the results: see `deconfound_lab.harness`.
"""
