"""Writing a fitted method to disk and reading it back: settings as JSON, arrays as safetensors, no pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from classgap import __version__
from classgap.checks import InputError
from classgap.posthoc.estimators.base import PostHocMethod

SETTINGS, ARRAYS = "method.json", "method.safetensors"


def save(method: PostHocMethod, folder: str | Path) -> Path:
    """Write a fitted method as ``method.json`` and ``method.safetensors`` into ``folder``; :func:`load` reads it back."""
    from safetensors.numpy import save_file

    from classgap import registry

    check_is_fitted(method, "classes_")
    names = [m.name for m in registry.methods("posthoc") if m.cls is type(method)]
    if not names:
        raise InputError(f"{type(method).__name__} is not a declared method; decorate it with @method to save it")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    settings = {
        "classgap_version": __version__,
        "method": names[0],
        "parameters": method.get_params(deep=False),
        "classes": method.classes_.tolist(),
    }
    (target / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
    save_file({name: np.ascontiguousarray(getattr(method, name)) for name in method.learned}, target / ARRAYS)
    return target


def load(folder: str | Path) -> PostHocMethod:
    """The method that :func:`save` wrote into ``folder``."""
    from safetensors.numpy import load_file

    from classgap import registry

    source = Path(folder)
    missing = [name for name in (SETTINGS, ARRAYS) if not (source / name).is_file()]
    if missing:
        raise InputError(f"{source} holds no saved method: {' and '.join(missing)} missing")
    settings: dict[str, Any] = json.loads((source / SETTINGS).read_text())
    method: PostHocMethod = registry.get("posthoc", settings["method"]).build(**settings["parameters"])
    method.classes_ = np.asarray(settings["classes"])
    for name, array in load_file(source / ARRAYS).items():
        setattr(method, name, array)
    return method
