"""What experiments share: a store with provenance, tables, figures and a page."""
