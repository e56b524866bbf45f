"""One node: the drivers of its logs, its disk threads, its connections to other nodes."""
