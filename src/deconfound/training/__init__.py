"""The run: a config, folds, methods trained and compared, kept in one folder that is complete or can be resumed."""
