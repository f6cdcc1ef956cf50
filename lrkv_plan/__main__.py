"""``python -m lrkv_plan`` and the installed script."""


def main() -> None:
    """Run the command line; the import stands inside, so that Ctrl-C in it is told as well."""
    try:
        from lrkv_plan.cli.app import main as run
    except KeyboardInterrupt:
        import os

        os.write(2, b"error: interrupted\n")
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
