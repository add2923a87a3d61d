"""The frame of all figures: colours, title, caption, names that fit, and the file that is written.

Colours are those of Okabe and Ito, which colour-blind people tell apart; hatches, markers and line styles keep the
parts apart in black and white print as well. Above every figure stands what it shows, below it what it is drawn from.
"""

import functools
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from csf_tool.checkpoint.hub_cache import Snapshot
from csf_tool.errors import EnvironmentFault, UsageError, not_installed
from csf_tool.text import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

P = ParamSpec("P")

SUFFIXES = (".png", ".svg", ".pdf")

BLUE, ORANGE, GREEN, PINK, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
GREY = "0.6"
HATCH = "//"

_WIDTH = 7.0
_DPI = 200
_TITLE_COLUMNS = 88
_CAPTION_COLUMNS = 120

_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # the fonts that publishers take
    "svg.hashsalt": "csf-tool",  # or every file would have other ids
}

_WITHOUT_DATE = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Metadata by suffix, so that the same figure is the same bytes."""

_ON_THE_HUB = re.compile(r"[^/]+/[^/@]+@[^/]+")


def require_figures(path: Path) -> None:
    """Check before any work that a figure can be drawn and that its name says how.

    Raises:
        UsageError: the name has another suffix than `SUFFIXES`.
        EnvironmentFault: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--figure {path}: give a name that ends with {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise not_installed("matplotlib").within("--figure") from error


def save(figure: "Figure", path: Path) -> None:
    """Write a figure, in the format that the suffix names.

    Raises:
        EnvironmentFault: the file cannot be written.
    """
    with _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in a script that the font does not have
        _settle(figure)
        try:
            figure.savefig(path, dpi=_DPI, metadata=_WITHOUT_DATE.get(path.suffix.lower()))
        except OSError as error:
            raise EnvironmentFault(f"--figure {path}: cannot be written: {error.strerror or error}") from error


def _settle(figure: "Figure") -> None:
    """Lay the figure out, and round it: the solver's last digits differ from run to run, and are hashed into SVG."""
    import numpy as np
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for part in figure.subfigs:
        part.bbox_relative.set_points(np.round(part.bbox_relative.get_points(), 6))
    for axes in figure.get_axes():
        axes.set_position(Bbox(np.round(axes.get_position(original=True).get_points(), 6)))
    for text in figure.texts:
        text.set_position(np.round(text.get_position(), 6).tolist())


def drawn(function: "Callable[P, Figure]") -> "Callable[P, Figure]":
    """Have a figure drawn in the style of all, whatever the user's matplotlib is set to."""

    @functools.wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        with _style():
            return function(*args, **kwargs)

    return draw


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(height: float, title: str, caption: str) -> "Figure":
    """An empty figure between a sentence that says what it shows and one that says what it is drawn from."""
    from matplotlib.figure import Figure

    titles = textwrap.wrap(escape(title), _TITLE_COLUMNS)
    captions = textwrap.wrap(escape(caption), _CAPTION_COLUMNS)
    figure = Figure(figsize=(_WIDTH, height + 0.17 * len(titles) + 0.12 * len(captions)), layout="constrained")
    as_it_is(figure.suptitle("\n".join(titles), fontsize=9.5, x=0.01, ha="left"))
    # The layout keeps room for a label of the whole figure, but for none of its texts.
    as_it_is(figure.supxlabel("\n".join(captions), fontsize=6.5, color="0.35", x=0.01, ha="left"))
    return figure


def as_it_is(*texts: "Text") -> None:
    """Keep matplotlib from taking dollars in names for mathematics."""
    for text in texts:
        text.set_parse_math(False)


def shortened(name: str, most: int) -> str:
    """A name from a file, harmless to a reader, its middle left out where it is longer than `most` characters."""
    name = escape(name)
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - half]}…{name[len(name) - half :]}"


def name_of(label: str) -> str:
    """The name of a checkpoint without the folders it lies in; repository and commit of one on the Hub."""
    if _ON_THE_HUB.fullmatch(label) and not os.path.lexists(label):
        return label
    snapshot = Snapshot.at(Path(label))
    if snapshot:
        return snapshot.repo_id + (f"@{snapshot.revision}" if snapshot.revision else "")
    path = Path(label)
    return (path if path.name.strip(".") else path.resolve()).name or label


def whole_numbers(axis: "Axis") -> None:
    """Ticks of an axis of numbers that are counted."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True))


def legend_above(axes: "Axes") -> None:
    """The legend over the panel, where it hides no data."""
    from matplotlib.lines import Line2D

    found = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda one: isinstance(one[0], Line2D))
    handles, labels = [handle for handle, _ in found], [label for _, label in found]
    columns = max(1, min(len(labels), 105 // (max(map(len, labels), default=0) + 9)))
    legend = axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)
    as_it_is(*legend.get_texts())
