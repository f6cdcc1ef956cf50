"""How many cases does a property test draw: all of them, or few where another Python drew them all?"""

from __future__ import annotations

import os

FEW = bool(os.environ.get("HYPOTHESIS_FEW"))
SHARE, LEAST = 5, 10


def drawn(n_cases: int) -> int:
    """``n_cases``; with HYPOTHESIS_FEW a fifth of them, at least 10."""
    return max(LEAST, n_cases // SHARE) if FEW else n_cases
