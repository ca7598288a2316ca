"""The paper's synthetic experiment (Section 3.1): every method at every batch size, and Figure 2 from the results."""
