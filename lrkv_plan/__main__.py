"""``python -m lrkv_plan`` and the installed script."""


def main() -> None:
    """Run the command line; Ctrl-C while it is being imported or built is told here."""
    import os

    # Looking for pydantic's plugins opens the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        if "_LRKV_PLAN_COMPLETE" in os.environ:
            from lrkv_plan.cli.completing import answer

            answer()
            return
        from lrkv_plan.cli.app import main as run

        run()
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\n")
        os._exit(130)


if __name__ == "__main__":
    main()
