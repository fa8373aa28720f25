"""Files of version 0.1.0, told in the terms of today's.

Objects become nodes of version 0, which each class's `upgrade` brings up to date.
"""

from typing import Any

import numpy as np

from .container import Header, Tensor

NUMBERS = ("float32", "float64", "int32", "int64", "bool")
_ALTERED = "is of version 0.1.0 and was altered ({}); save it anew"


def translate(header: Header) -> Header:
    """The header of a file of version 0.1.0 as today's would be.

    Raises:
        ValueError: If it is not one, or was altered.
    """
    about = header.about
    shapes = {name: list(tensor.shape) for name, tensor in header.tensors.items()}
    if about.get("version") != 1 or about.get("shapes") != shapes:
        raise ValueError(_ALTERED.format("version or arrays"))
    translated: dict[str, Tensor] = {}
    if about.get("kind") == "diffprior.Bandit":
        tree = _bandit(about, header.tensors, translated)
    elif about.get("kind") == "diffprior.DiffusionPrior":
        tree, translated = _prior(about, header.tensors), dict(header.tensors)
    else:
        raise ValueError(_ALTERED.format(f"of an unknown kind {about.get('kind')!r:.80}"))
    return Header({"object": tree}, translated)


def _node(kind: Any, fields: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "version": 0, "fields": fields}


def _bandit(
    about: dict[str, Any], tensors: dict[str, Tensor], translated: dict[str, Tensor]
) -> dict[str, Any]:
    def value(node: Any, old: str, new: str) -> Any:
        if not isinstance(node, dict):
            return node
        if node == {"array": old} and old in tensors:
            translated[new] = tensors[old]
            return {"array": "jax"}
        if node.keys() == {"number", "dtype"} and node["dtype"] in NUMBERS:
            return _number(node["number"], node["dtype"])
        if node.keys() == {"tuple"} and isinstance(node["tuple"], list):
            return [value(item, f"{old}.{i}", f"{new}.{i}") for i, item in enumerate(node["tuple"])]
        if node.keys() == {"class", "fields"} and isinstance(node["fields"], dict):
            items = node["fields"].items()
            return _node(node["class"], {k: value(v, f"{old}.{k}", f"{new}.{k}") for k, v in items})
        raise ValueError(_ALTERED.format(f"at {old!r}"))

    agent = {
        name: value(about.get(name), name, f"agent.{name}") for name in ("sampler", "likelihood")
    }
    fields = {name: about.get(name) for name in ("seed", "num_decisions", "max_rows")}
    fields["evidence"] = value(about.get("evidence"), "evidence", "evidence")
    if len(translated) != len(tensors):
        raise ValueError(_ALTERED.format("arrays"))
    return _node("Bandit", fields | {"agent": _node("ThompsonSampling", agent)})


def _number(number: Any, dtype: str) -> np.ndarray:
    whole = dtype in ("int32", "int64")
    if type(number) is not (bool if dtype == "bool" else int if whole else float):
        raise ValueError(_ALTERED.format(f"{number!r:.40} is no {dtype}"))
    try:
        return np.asarray(number, dtype)
    except OverflowError as error:
        raise ValueError(_ALTERED.format(f"{number!r:.40} is no {dtype}")) from error


def _prior(about: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    schedule = _node("Schedule", {"alpha_bar": about.get("alpha_bar")})
    denoiser: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name in tensors:
        owner = denoiser if name.startswith("denoiser.") else fields
        owner[name.removeprefix("denoiser.")] = {"array": "jax"}
    kind = about.get("denoiser")
    if kind == "NetworkDenoiser":
        denoiser["isotropic"] = about.get("isotropic")
    else:
        denoiser["grid"] = schedule
    fields |= {"denoiser": _node(kind, denoiser), "schedule": schedule}
    fields["about"] = _node("Aside", {"report": _report(about.get("report"))})
    return _node("DiffusionPrior", fields)


def _report(report: Any) -> Any:
    if not isinstance(report, dict):
        return report
    stages = report.get("stages")
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ValueError(_ALTERED.format("the report"))
    return _node("FitReport", report | {"stages": [_node("StageLoss", stage) for stage in stages]})
