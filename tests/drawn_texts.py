"""What a figure says, and whether all of it can be read: nothing is cut off, nothing lies on anything else."""

from itertools import combinations
from typing import Any
from unittest import mock

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

_PIXEL = 1.0


def drawn_texts(figure: Figure) -> dict[Text, Bbox]:
    """The texts that drawing the figure draws, and where."""
    found: list[Text] = []
    draw: Any = Text.draw

    def record(text: Text, *args: object, **kwargs: object) -> None:
        if text.get_visible() and text.get_text().strip():
            found.append(text)
        draw(text, *args, **kwargs)

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # settles the layout
    with mock.patch.object(Text, "draw", record):
        canvas.draw()
    renderer = canvas.get_renderer()
    return {text: Text.get_window_extent(text, renderer) for text in found}


def words(figure: Figure) -> str:
    """All that is written in the figure."""
    return "\n".join(text.get_text() for text in drawn_texts(figure))


def unreadable(figure: Figure) -> list[str]:
    """Texts that leave the canvas, and pairs that overlap."""
    texts = drawn_texts(figure)
    canvas = figure.bbox
    cut = [
        text.get_text()
        for text, box in texts.items()
        if box.x0 < canvas.x0 - _PIXEL
        or box.y0 < canvas.y0 - _PIXEL
        or box.x1 > canvas.x1 + _PIXEL
        or box.y1 > canvas.y1 + _PIXEL
    ]
    return cut + [
        f"{one.get_text()!r} on {other.get_text()!r}"
        for (one, a), (other, b) in combinations(texts.items(), 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > _PIXEL and min(a.y1, b.y1) - max(a.y0, b.y0) > _PIXEL
    ]
