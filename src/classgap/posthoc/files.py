"""Write a fitted method to disk and read it: settings as JSON, arrays as safetensors, no pickles."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from classgap import __version__
from classgap.checks import InputError, one_of, reading
from classgap.posthoc.estimators.base import PostHocMethod
from classgap.posthoc.estimators.lowest_cost import LowestCost
from classgap.posthoc.held_out import Array
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
    try:
        checked = {
            name: np.ascontiguousarray(_checked(name, np.asarray(getattr(method, name)), letters, len(method.classes_)))
            for name, letters in method.learned.items()
        }
    except ValueError as error:  # load would refuse it
        raise InputError(f"{names[0]} cannot be saved: {error}") from error
    arrays = safetensors.numpy.save(checked)
    settings = {
        "classgap_version": __version__,
        "method": names[0],
        "parameters": method.get_params(deep=False),
        "classes": method.classes_.tolist(),
        "scores_kind": method.scores_kind_,
    }
    settings["sha256"] = _digest(arrays, settings)
    text = json.dumps(settings, indent=2, default=_plain)
    with replacing_entries(folder, (SETTINGS, ARRAYS)) as temporary:
        write(temporary / ARRAYS, arrays)
        write(temporary / SETTINGS, text + "\n")
    return Path(folder)


def load(folder: str | Path) -> PostHocMethod:
    """The method that :func:`save` wrote into ``folder``."""
    import safetensors.numpy

    from classgap import registry

    source = Path(folder)
    missing = [name for name in (SETTINGS, ARRAYS) if not (source / name).is_file()]
    if missing:
        raise InputError(f"{source} contains no saved method: {' and '.join(missing)} missing")
    arrays = (source / ARRAYS).read_bytes()
    with reading(source / SETTINGS, "the settings of a saved method"):
        settings: dict[str, Any] = json.loads((source / SETTINGS).read_text(encoding="utf-8"))
        digest = settings.pop("sha256")
        # Earlier versions protected the arrays alone.
        if digest not in (_digest(arrays, settings), hashlib.sha256(arrays).hexdigest()):
            raise InputError(
                f"{source / ARRAYS} does not match {SETTINGS} in the same folder, or is damaged; save the method again"
            )
        name, parameters = settings["method"], settings["parameters"]
        found = _NOT_DECLARED.get(name)
        method: PostHocMethod = (
            registry.get("posthoc", name).build(**parameters) if found is None else found(**parameters)
        )
        method.classes_ = np.asarray(settings["classes"])
        if method.classes_.ndim != 1 or len(set(settings["classes"])) < len(method.classes_):
            raise ValueError("classes must be a list of different labels")
        method.scores_kind_ = one_of("scores_kind", settings["scores_kind"], ("logits", "probabilities"))
    with reading(source / ARRAYS, "the arrays of a saved method"):
        loaded = safetensors.numpy.load(arrays)
        if set(loaded) != set(method.learned):
            raise ValueError(f"{name} has the arrays {', '.join(method.learned)}, got {', '.join(loaded)}")
        for learned, letters in method.learned.items():
            setattr(method, learned, _checked(learned, loaded[learned], letters, len(method.classes_)))
    return method


def _checked(name: str, array: Array, letters: str, num_classes: int) -> Array:
    """A learned array, if it has the shape that ``letters`` say and holds numbers."""
    fits = len(array.shape) == len(letters) and all(
        length == num_classes for length, letter in zip(array.shape, letters, strict=True) if letter == "K"
    )
    if not fits or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must hold finite numbers for {num_classes} classes, got shape {array.shape} of {array.dtype}"
        )
    return array


def _digest(arrays: bytes, settings: dict[str, Any]) -> str:
    """The hash of arrays and settings; a change of either is noticed."""
    return hashlib.sha256(arrays + json.dumps(settings, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Arrays and numbers of NumPy as JSON has them."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise InputError(
            f"a parameter of type {type(value).__name__} cannot be saved; use numbers, text, lists or arrays"
        )
    return value.tolist()
