"""Set-up and diagnosis of a machine. Standard library only: it runs before anything is installed."""
