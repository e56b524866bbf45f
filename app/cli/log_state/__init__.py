"""Commands for the small state of a log: cursors, fences, schemas and the journal of events."""
