"""Commands for the small state of a log: cursors, fences and the journal of events."""
