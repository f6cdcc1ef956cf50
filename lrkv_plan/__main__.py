"""``python -m lrkv_plan``."""

from lrkv_plan.cli.app import main

main()
