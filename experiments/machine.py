"""What numbers were computed with: processor, versions, precision, memory; nothing of whose."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path


def machine() -> dict[str, str]:
    """Facts about the machine and the software, by name."""
    import jax

    device = jax.devices()[0]
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()}, {platform.machine()}",
        "device": f"{device.platform}, {device.device_kind}",
        "precision": "double" if jax.config.read("jax_enable_x64") else "single",
        "Python": platform.python_version(),
        "JAX": jax.__version__,
        "diffprior": package_version(),
    }


def package_version() -> str:
    """The version of the installed package."""
    try:
        return importlib.metadata.version("diffprior")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def peak_memory() -> str:
    """The most memory that this process has held, where the system tells it."""
    try:
        import resource
    except ImportError:  # Windows has none
        return "unknown"
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30:.2f} GiB"


def _processor() -> str:
    """The model name, where the system tells it."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
