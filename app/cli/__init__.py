"""The command line `commitlog`: a group of commands, one file for each kind."""


def run() -> None:
    """Run the command line; never returns. Ctrl-C during the imports ends it as Ctrl-C in a command does."""
    try:
        from app.cli.main import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()
