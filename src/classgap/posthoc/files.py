"""Write a fitted method to disk and read it: settings as JSON, arrays as safetensors, no pickles."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from classgap import __version__
from classgap.checks import InputError
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.lowest_cost import LowestCost
from classgap.writing import replacing_entries, write

# needs a cost matrix, so it is no method that fix, sweeps or benchmarks could try by themselves
_NOT_DECLARED: dict[str, type[PostHocMethod]] = {"lowest_cost": LowestCost}
SETTINGS, ARRAYS = "method.json", "method.safetensors"


def save(method: PostHocMethod, folder: str | Path) -> Path:
    """Write a fitted method as ``method.json`` and ``method.safetensors`` into ``folder``; :func:`load` reads it back."""
    import safetensors.numpy

    from classgap import registry

    check_is_fitted(method, "classes_")
    names = [m.name for m in registry.methods("posthoc") if m.cls is type(method)]
    names += [name for name, cls in _NOT_DECLARED.items() if cls is type(method)]
    if not names:
        raise InputError(f"{type(method).__name__} is not a registered method; decorate it with @method to save it")
    arrays = safetensors.numpy.save({name: np.ascontiguousarray(getattr(method, name)) for name in method.learned})
    settings = {
        "classgap_version": __version__,
        "method": names[0],
        "parameters": method.get_params(deep=False),
        "classes": method.classes_.tolist(),
        "scores_kind": method.scores_kind_,
        "sha256": hashlib.sha256(arrays).hexdigest(),
    }
    with replacing_entries(folder, (SETTINGS, ARRAYS)) as temporary:
        write(temporary / ARRAYS, arrays)
        write(temporary / SETTINGS, json.dumps(settings, indent=2) + "\n")
    return Path(folder)


def load(folder: str | Path) -> PostHocMethod:
    """The method that :func:`save` wrote into ``folder``."""
    import safetensors.numpy

    from classgap import registry

    source = Path(folder)
    missing = [name for name in (SETTINGS, ARRAYS) if not (source / name).is_file()]
    if missing:
        raise InputError(f"{source} contains no saved method: {' and '.join(missing)} missing")
    try:
        settings: dict[str, Any] = json.loads((source / SETTINGS).read_text(encoding="utf-8"))
        name, parameters, classes = settings["method"], settings["parameters"], settings["classes"]
        kind, digest = settings["scores_kind"], settings["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{source / SETTINGS} is damaged, or was written by another version of classgap: {error!r}"
        ) from None
    arrays = (source / ARRAYS).read_bytes()
    if hashlib.sha256(arrays).hexdigest() != digest:
        raise InputError(
            f"{source / ARRAYS} does not match {SETTINGS} in the same folder, or is damaged; save the method again"
        )
    found = _NOT_DECLARED.get(name)
    method: PostHocMethod = registry.get("posthoc", name).build(**parameters) if found is None else found(**parameters)
    method.classes_, method.scores_kind_ = np.asarray(classes), kind
    for learned, array in safetensors.numpy.load(arrays).items():
        setattr(method, learned, array)
    return method
