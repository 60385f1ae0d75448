"""``python -m tuner``: the same as the ``tune`` and ``tuner`` commands."""

from tuner.machine.interrupts import end_on_signals


def main() -> None:
    """Runs the command line. Signals are answered before its modules are imported, which takes a while."""
    end_on_signals()
    from tuner.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
