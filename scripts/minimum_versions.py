"""The oldest versions that pyproject.toml allows, as pins for pip; so that CI tests what it states.

``pip install $(python scripts/minimum_versions.py)`` installs the lower bounds of the dependencies
and ``python scripts/minimum_versions.py pytest hypothesis`` prints those of named ones only, from
whichever extra; ``--ranges`` prints them as pyproject.toml states them. Bounds are read, never
written down a second time.
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


def requirements(project: dict[str, Any], names: list[str]) -> dict[str, str]:
    """The requirement of each dependency by name, or of those named, from the extras as well."""
    lines = list(project["dependencies"])
    if names:
        lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    found = {}
    for line in lines:
        bound = _BOUND.match(line)
        if bound is None:
            raise SystemExit(f"{line!r} states no lower bound: name>=version")
        found[bound["name"]] = line
    unknown = set(names) - set(found)
    if unknown:
        raise SystemExit(f"not in pyproject.toml: {', '.join(sorted(unknown))}")
    return {name: found[name] for name in names or found}


def pin(requirement: str) -> str:
    """``name==version`` of the lower bound.

    Examples
    --------
    >>> pin("numpy>=1.26,<3"), pin("types-PyYAML>=6.0.12; python_version > '3.10'")
    ('numpy==1.26', 'types-PyYAML==6.0.12')
    """
    bound = _BOUND.match(requirement)
    assert bound is not None, "checked before"
    return f"{bound['name']}=={bound['version']}"


def main() -> None:
    """Print the pins on one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these, from dependencies and extras")
    parser.add_argument("--ranges", action="store_true", help="as stated, not the lower bounds")
    options = parser.parse_args()
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    stated = requirements(project, options.names).values()
    print(" ".join(stated if options.ranges else map(pin, stated)))


if __name__ == "__main__":
    main()
