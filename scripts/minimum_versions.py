"""The oldest versions that pyproject.toml allows, as pins for pip; so that CI tests what it states.

``pip install $(python scripts/minimum_versions.py)`` installs the lower bounds of the dependencies
and ``python scripts/minimum_versions.py pytest hypothesis`` prints those of named ones only, from
whichever extra. Bounds are read, never written down a second time.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_BOUND = re.compile(r"(?P<name>[\w.-]+)\s*>=\s*(?P<version>[\w.]+)")


def pins(project: dict[str, Any], names: list[str]) -> list[str]:
    """``name==version`` of each dependency, or of those named from the extras as well.

    Examples
    --------
    >>> project = {"dependencies": ["a>=1.2,<2"], "optional-dependencies": {"x": ["b-c>=3; y"]}}
    >>> pins(project, []), pins(project, ["b-c"])
    (['a==1.2'], ['b-c==3'])
    """
    lines = list(project["dependencies"])
    if names:
        lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    found = {}
    for line in lines:
        bound = _BOUND.match(line)
        if bound is None:
            raise SystemExit(f"{line!r} states no lower bound: name>=version")
        found[bound["name"]] = f"{bound['name']}=={bound['version']}"
    unknown = set(names) - set(found)
    if unknown:
        raise SystemExit(f"not in pyproject.toml: {', '.join(sorted(unknown))}")
    return [found[name] for name in names or found]


def main() -> None:
    """Print the pins on one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these, from dependencies and extras")
    options = parser.parse_args()
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    print(" ".join(pins(project, options.names)))


if __name__ == "__main__":
    main()
