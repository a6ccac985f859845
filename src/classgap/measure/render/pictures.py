"""Small pictures of samples for the page, within a budget of bytes."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

SIDE = 112  # longest side of a picture in pixels
BUDGET = 2_000_000  # bytes of all pictures of a page, as they are stored there


@dataclass
class Pictures:
    """Pictures by the path of their file as ``data:`` addresses; ``notes`` says which samples have none, and why."""

    by_path: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def thumbnails(paths: Sequence[str], *, budget: int = BUDGET) -> Pictures:
    """Thumbnails of image files, in this order, until ``budget`` is used up.

    Needs Pillow. A file that cannot be read as an image is left out and counted in the notes.
    """
    wanted = list(dict.fromkeys(path for path in paths if path))
    try:
        from PIL import features
    except ImportError:
        return Pictures(notes=("pictures are not shown because Pillow is not installed (pip install pillow)",))
    form = "WEBP" if features.check("webp") else "JPEG"
    found = Pictures()
    unreadable: list[str] = []
    used = 0
    for done, path in enumerate(wanted):
        picture = _thumbnail(path, form)
        if picture is None:
            unreadable.append(path)
            continue
        used += len(picture)
        if used > budget:
            found.notes += (
                f"the page shows {len(found.by_path):,} pictures, which use its limit of {budget / 1e6:g} MB; "
                f"{len(wanted) - done:,} more samples are listed without a picture",
            )
            break
        found.by_path[path] = picture
    if unreadable:
        found.notes += (
            f"{len(unreadable):,} of {len(wanted):,} image files cannot be read (e.g. {unreadable[0]!r}); paths are "
            "relative to the current folder, or to the folder of the prediction file",
        )
    return found


def _thumbnail(path: str, form: str) -> str | None:
    """One picture as a ``data:`` address; None if the file is not an image that can be read."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                opened.draft("RGB", (2 * SIDE, 2 * SIDE))  # JPEG files are decoded at a smaller size
                image = ImageOps.exif_transpose(opened).convert("RGB")
        image.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        image.save(buffer, form, quality=70)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
