"""``lrkv-plan shard``: what tensor parallelism does to each design's cache."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import (
    AttentionOption,
    KvDtypeOption,
    ModelArgument,
    SpecDirOption,
    count_list,
    load,
    writes_table,
)
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shard")(shard)


@writes_table
def shard(
    model: ModelArgument,
    attention: AttentionOption = None,
    tp_size: Annotated[
        str, typer.Option("--tp-size", metavar="P[,P...]", help="GPUs that share the model.")
    ] = "1,2,4,8",
    kv_dtype: KvDtypeOption = "bf16",
    spec_dir: SpecDirOption = None,
) -> Table:
    """Cache per GPU, aggregate and repeated share, per placement policy.

    Example: lrkv-plan shard llama-3.1-70b --attention gqa:8 --attention lrkv:32 --tp-size 4,8,16
    """
    from lrkv_plan.formats import storage_format
    from lrkv_plan.memory.side_by_side import shard_rows
    from lrkv_plan.report.views.cache import shard_table
    from lrkv_plan.report.views.specs import model_inputs

    spec = load(model, spec_dir)
    sizes = count_list(tp_size, "--tp-size")
    rows = shard_rows(spec, attention or (), tp_sizes=sizes, kv_dtype=kv_dtype)
    inputs = {
        "model": model_inputs(spec),
        "tp_size": sizes,
        "kv_dtype": storage_format(kv_dtype).name,
    }
    return shard_table(spec, rows, inputs)
