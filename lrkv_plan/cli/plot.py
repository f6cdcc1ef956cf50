"""``lrkv-plan plot``: pictures of what the other commands tabulate, and their series."""

from lrkv_plan.cli import plot_cache, plot_time
from lrkv_plan.cli.given import StrictTyper

app = StrictTyper(
    help="Draw a picture (--output FILE.png, .svg or .pdf), or give its series (--format json).",
    no_args_is_help=True,
)

for _module in (plot_cache, plot_time):
    _module.register(app)
