"""Commands that copy a log into a folder and back: `backup` and `restore`."""
