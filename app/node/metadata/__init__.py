"""The log `__controller` at one node: server and client of the controller, logs, replica identities."""
