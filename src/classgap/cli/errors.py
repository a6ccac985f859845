"""The one place that turns errors into a sentence on the command line."""

from __future__ import annotations

from classgap.checks import InputError, printable

# Modules that only an extra installs, and the name of that extra.
_EXTRAS = {
    "torch": "torch",
    "lightning_fabric": "torch",
    "filelock": "torch",
    "torchvision": "vision",
    "timm": "vision",
}

# What the system says when a folder is to be made or read: "File exists", "Not a directory".
_WHERE_A_FOLDER_IS_NEEDED: dict[type[BaseException], str] = {
    FileExistsError: "this is a file, and a folder is needed here; give another name",
    NotADirectoryError: "a part of this path is a file, not a folder; give another path",
}
_LONGEST = 3000


def sentence_for(error: BaseException) -> str | None:
    """What to print for an error that the user can do something about; None for a bug, which shows its traceback."""
    sentence = _sentence(error)
    if sentence is None or len(sentence) <= _LONGEST:
        return sentence
    return f"{sentence[:_LONGEST]} … ({len(sentence) - _LONGEST:,} more characters)"  # of a name in the file, say


def _sentence(error: BaseException) -> str | None:
    if isinstance(error, InputError):
        return printable(str(error))
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{_text(error.filename)}: "
        return printable(f"{place}{_WHERE_A_FOLDER_IS_NEEDED.get(type(error)) or error.strerror or error}")
    if isinstance(error, MemoryError):
        return "there is not enough memory" + (f" ({printable(str(error))})" if str(error) else "")
    if isinstance(error, RuntimeError) and (
        "allocate memory" in str(error) or "out of memory" in str(error)
    ):  # of torch
        return f"there is not enough memory for this model and batch ({printable(str(error).splitlines()[0])})"
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        return None if extra is None else f"this needs {error.name}: pip install 'classgap[{extra}]'"
    return None


def _text(name: object) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
