"""The command line `commitlog`: a group of commands, one file for each kind."""
