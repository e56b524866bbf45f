"""The active controller: heartbeats, commands, elections (rules C). Pure."""
