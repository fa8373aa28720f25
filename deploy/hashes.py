"""Write the service's packages with the hashes of their files, for `pip install --require-hashes`.

python deploy/hashes.py

The versions are those of constraints.txt. What is written are hashes for Linux, of every version of
Python in `PYTHONS` and every machine in `MACHINES`: deploy/requirements.txt of what the service
needs, deploy/build.txt of what builds its wheel.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
LIBC = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
FILES = {"requirements.txt": ".[serve]", "build.txt": "{backend}"}


def resolved(wanted: str, python: str, machine: str) -> dict[str, str]:
    """Hash of the file that pip would install of each package, by `name==version`."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", wanted]
    command += ["--ignore-installed", "--only-binary", ":all:", "--constraint", "constraints.txt"]
    command += ["--python-version", python, "--implementation", "cp"]
    for libc in LIBC:
        command += ["--platform", f"{libc}_{machine}"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command += ["--report", str(report), "--target", f"{folder}/none"]
        subprocess.run(command, cwd=ROOT, check=True)
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        pin(each["metadata"]): each["download_info"]["archive_info"]["hashes"]["sha256"]
        for each in installed
        if each["metadata"]["name"] != "diffprior"
    }


def pin(about: dict[str, str]) -> str:
    """`name==version`, the name normalized as in constraints.txt."""
    return f"{re.sub(r'[-_.]+', '-', about['name']).lower()}=={about['version']}"


def main() -> None:
    """Write both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (backend,) = project["build-system"]["requires"]
    for name, wanted in FILES.items():
        found: dict[str, set[str]] = defaultdict(set)
        for python in PYTHONS:
            for machine in MACHINES:
                for each, digest in resolved(
                    wanted.format(backend=backend), python, machine
                ).items():
                    found[each].add(digest)
        parts = [
            " \\\n    ".join([each, *(f"--hash=sha256:{digest}" for digest in sorted(digests))])
            for each, digests in sorted(found.items())
        ]
        (ROOT / "deploy" / name).write_text("\n".join(parts) + "\n", encoding="utf-8")
        print(f"deploy/{name}: {len(found)} packages")


if __name__ == "__main__":
    main()
