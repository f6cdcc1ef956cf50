"""Options that commands about time share."""

from typing import Annotated

import typer

RequiredGpu = Annotated[
    str, typer.Option("--gpu", metavar="GPU", help="A shipped hardware profile or a YAML file.")
]
ContextOption = Annotated[
    str, typer.Option("--context-tokens", metavar="T", help="Tokens cached per sequence.")
]
BatchOption = Annotated[
    str, typer.Option("--batch-size", metavar="N", help="Sequences decoded together.")
]
QueryOption = Annotated[
    str, typer.Option("--query-tokens", metavar="Q", help="Tokens decoded per sequence.")
]
TpotOption = Annotated[
    float | None, typer.Option("--tpot-ms", min=0, help="Most ms an output token may take.")
]
SpeculativeOption = Annotated[
    str, typer.Option("--speculative-tokens", metavar="Q", help="Tokens verified per step.")
]
AcceptedOption = Annotated[
    float, typer.Option("--accepted-tokens", min=1, help="Of those, accepted on average.")
]
GpuHourOption = Annotated[
    float | None, typer.Option("--gpu-hour-usd", min=0, help="Price of one GPU for an hour.")
]
