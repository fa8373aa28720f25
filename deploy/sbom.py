"""Write the software bill of materials of this environment, as CycloneDX JSON.

python deploy/sbom.py build/sbom.json
"""

import json
import re
import sys
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path


def name_of(package: Distribution) -> str:
    """Normalized name, as in requirements."""
    return re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()


def component(package: Distribution) -> dict[str, object]:
    """One installed package."""
    name, version = name_of(package), package.version
    reference = f"pkg:pypi/{name}@{version}"
    found: dict[str, object] = {"type": "library", "name": name, "version": version}
    found |= {"purl": reference, "bom-ref": reference}
    about = package.metadata.get_all("License-Expression") or package.metadata.get_all("License")
    text = next((line.strip() for line in about or () if 0 < len(line.strip()) < 80), None)
    return found | ({"licenses": [{"license": {"name": text}}]} if text else {})


def bill() -> dict[str, object]:
    """All packages of the environment; the same environment gives the same bill."""
    own = component(distribution("diffprior"))
    others = {name_of(each): component(each) for each in distributions()}
    others.pop("diffprior", None)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own | {"type": "application"}},
        "components": [others[name] for name in sorted(others)],
    }


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
    print(path)
