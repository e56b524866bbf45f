"""Random requests over the whole REST contract, run by hand: `python -m tests.fuzz --minutes 10`."""
