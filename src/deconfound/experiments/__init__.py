"""The paper's experiments as runs of the library."""
