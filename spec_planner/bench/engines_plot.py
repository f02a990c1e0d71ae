"""Cost of a pass against context and width, with the memory-bandwidth floor, as an SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def check_plotting() -> None:
    """Raise ``ValueError`` where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install matplotlib, or spec_planner[bench]") from error


def plot(content: dict[str, Any], path: Path) -> None:
    """Draw ``content['passes']``: a panel per width over the contexts, and one over the widths.

    The same content gives the same file.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    cells = content["passes"]
    widths = sorted({cell["width"] for cell in cells if cell["context"] != content["context"]})
    named = list(dict.fromkeys((cell["engine"], cell["precision"]) for cell in cells))
    palette = pyplot.get_cmap("tab20").colors
    style = {"svg.hashsalt": "spec_planner", "svg.fonttype": "none", "font.size": 8, "axes.grid": True,
             "grid.alpha": 0.3}  # fmt: skip
    with matplotlib.rc_context(style):
        size = (3.2 * (len(widths) + 1), 4.2)
        figure, ((*axes,),) = pyplot.subplots(1, len(widths) + 1, figsize=size, sharey=True, squeeze=False)
        for index, (engine, precision) in enumerate(named):
            own = [cell for cell in cells if (cell["engine"], cell["precision"]) == (engine, precision)]
            colour = palette[index % len(palette)]
            for axis, width in zip(axes, widths, strict=False):
                _line(
                    axis, [cell for cell in own if cell["width"] == width], "context", colour, f"{engine} {precision}"
                )
            of_context = [cell for cell in own if cell["context"] == content["context"]]
            _line(axes[-1], of_context, "width", colour, "" if widths else f"{engine} {precision}")
        for axis, width in zip(axes, widths, strict=False):
            axis.set_title(f"{width} row{'s' if width > 1 else ''}")
            axis.set_xlabel("tokens of context")
        axes[-1].set_title(f"after {content['context']} tokens")
        axes[-1].set_xlabel("rows of the pass")
        axes[0].set_ylabel("milliseconds per pass (dotted: memory floor)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=6, frameon=False)
        figure.tight_layout(rect=(0, 0.04 + 0.04 * (-(-len(named) // 6)), 1, 1))
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _line(axis: Any, cells: Sequence[dict[str, Any]], over: str, colour: Any, label: str) -> None:
    from matplotlib import ticker

    cells = sorted(cells, key=lambda cell: cell[over])
    places = [cell[over] for cell in cells]
    axis.plot(places, [cell["milliseconds"]["median"] for cell in cells], "o-", ms=3, lw=1.2, color=colour, label=label)
    axis.plot(places, [cell["floor_ms"] for cell in cells], ":", lw=1, color=colour)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(places, [str(place) for place in places])
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
