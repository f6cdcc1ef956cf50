"""A picture that an answer draws: shown by a notebook, written to a file, or read as rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.files import as_path, write_whole

if TYPE_CHECKING:
    from lrkv_plan.report.figures import Figure


@dataclass(frozen=True, repr=False)
class Picture:
    """A figure as data, drawn when it is shown or saved.

    Examples
    --------
    >>> import lrkv_plan
    >>> swept = lrkv_plan.sweep("llama-3.1-8b", gpus="h200", batch_size="1..4")
    >>> swept.plot("users", "tpot_ms")
    <frontier: 8 points>
    """

    figure: Figure

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The drawn points, in base units."""
        from lrkv_plan.report.figures import figure_rows

        return figure_rows(self.figure)

    def save(self, file: str | Path, *, width: str = "double", force: bool = False) -> Path:
        """Write it to a file that ends in png, svg or pdf.

        Parameters
        ----------
        width : double (7 inches) or single (3.4 inches).
        force : also over a file that is there.

        Raises
        ------
        UsageError
            If the ending or the width is none of these, or the file is there.
        """
        from lrkv_plan.report.plots import picture

        path = as_path(file)
        write_whole(
            path, picture(self.figure, path.suffix.lower().removeprefix("."), width=width),
            force=force,
        )  # fmt: skip
        return path

    def _repr_png_(self) -> bytes:
        """The picture, for a notebook."""
        from lrkv_plan.report.plots import picture

        return picture(self.figure, "png", width="double")

    def __repr__(self) -> str:
        n_points = sum(len(series.x) for panel in self.figure.panels for series in panel.series)
        return f"<{self.figure.kind}: {n_points:,} points>"
