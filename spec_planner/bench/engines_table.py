"""The tables of ``spec-planner bench engines``, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .engines import LLAMA

SPEED = (
    *("engine", "precision", "decoding", "answers", "tokens/s", "tokens per pass", "÷ llama.cpp, same precision"),
    *("÷ its fastest", "÷ its fastest lookup", "as plain", "as the reference"),
)


def tables(content: dict[str, Any]) -> str:
    """Everything that was measured, with what it takes to read it: what docs/performance.md shows under *Figures*."""
    parts = [_about_machine(content)]
    if content.get("plot") and content["passes"]:
        parts.append(f"![Milliseconds per pass against context and width, with the memory floor]({content['plot']})")
    if content["rows"]:
        parts += ["### Tokens per second", speed_table(content), _about_speed(content)]
    if content["passes"]:
        parts += ["### A pass by its width", width_table(content), _about_passes(content)]
    if content["accuracy"]:
        parts += ["### Accuracy", accuracy_table(content), _ABOUT_ACCURACY]
    if len({cell["context"] for cell in content["passes"]}) > 1:
        parts += ["### A pass by its context", context_table(content), _ABOUT_CONTEXT]
    if content["left_out"]:
        parts += ["### Left out", _left_out(content)]
    if not content["complete"]:
        parts.append("Stopped before everything was measured.")
    return "\n\n".join(parts)


def speed_table(content: dict[str, Any]) -> str:
    cells = [
        (
            *(row["engine"], row["precision"], row["decoding"], row["answers"]),
            _spread(row["tokens_per_second"], 1),
            f"{row['tokens_per_pass']:.2f}" if row["tokens_per_pass"] else "-",
            *(_spread(row[name], 2) for name in ("to_llama", "to_fastest_llama", "to_fastest_llama_speculation")),
            *(_of(row[name], row["prompts"]) for name in ("as_plain", "as_reference")),
        )
        for row in content["rows"]
    ]
    return _table(SPEED, cells)


def width_table(content: dict[str, Any]) -> str:
    """Milliseconds by width, at the one context that has every width, and the cycle where there is one."""
    context, widths = content["context"], sorted({cell["width"] for cell in content["passes"]})
    cycles = {(cycle["engine"], cycle["precision"]): cycle for cycle in content["cycles"]}
    titles = ("engine", "precision", *(f"{width} row{'s' if width > 1 else ''} [ms]" for width in widths),
              "cycle: draft + verify [ms]", "in plain steps", "rest of the loop")  # fmt: skip
    cells = []
    for named in _engines(content["passes"]):
        of = {cell["width"]: cell for cell in content["passes"] if _named(cell) == named and cell["context"] == context}
        cycle = cycles.get(named)
        last = ("-", "-", "-")
        if cycle:
            steps = "-" if cycle["plain_steps"] is None else f"{cycle['plain_steps']:.2f}"
            parts = f"{cycle['draft_ms']:.1f} + {cycle['verify_ms']:.1f}"
            last = (f"{parts} = {_spread(cycle['cycle_ms'], 1)}", steps, f"{cycle['overhead']:.1%}")
        times = (_spread(of[width]["milliseconds"], 1) + _flash(of[width]) if width in of else "-" for width in widths)
        cells.append((*named, *times, *last))
    return _table(titles, cells)


def accuracy_table(content: dict[str, Any]) -> str:
    cells = [
        (row["engine"], row["precision"], f"{row['perplexity']:.4f}", f"{row['agreement']:.2%}", str(row["positions"]))
        for row in content["accuracy"]
    ]
    return _table(("engine", "precision", "perplexity", "same likeliest token", "positions"), cells)


def context_table(content: dict[str, Any]) -> str:
    contexts = sorted({cell["context"] for cell in content["passes"]})
    widths = sorted({cell["width"] for cell in content["passes"] if cell["context"] != content["context"]})
    titles = ("engine", "precision", "rows", *(f"{context} tokens [ms] (floor)" for context in contexts))
    cells = []
    for named in _engines(content["passes"]):
        for width in widths:
            of = {c["context"]: c for c in content["passes"] if _named(c) == named and c["width"] == width}
            times = (
                f"{of[context]['milliseconds']['median']:.1f}{_flash(of[context])} ({of[context]['floor_ms']:.1f})"
                if context in of
                else "-"
                for context in contexts
            )
            cells.append((*named, str(width), *times))
    return _table(titles, cells)


def _about_machine(content: dict[str, Any]) -> str:
    """On what, and with what, in one paragraph."""
    machine, found = content["machine"], dict(content["versions"])
    built = found.pop("llama.cpp", None)
    parts = [
        f"{machine['cpu']}, {machine['cores']} cores, {content['threads']} threads",
        ", ".join(f"{name} {version}" for name, version in found.items()),
    ]
    if built:
        parts.append(f"llama.cpp says that it was built for: {built.replace('|', ',').rstrip(' ,')}")
    if "bandwidth" in content:
        read = content["bandwidth"] / 1e9
        parts.append(f"{content['threads']} threads read {read:.1f} GB/s from memory")
    parts.append(f"Threads' settings: {', '.join(f'{k}={v}' for k, v in content['environment'].items()) or 'none'}")
    return ". ".join(parts) + "."


def _left_out(content: dict[str, Any]) -> str:
    return "\n".join(f"- {out['engine']} {out['precision']}: {out['reason']}" for out in content["left_out"])


def _flash(cell: dict[str, Any]) -> str:
    return " flash" if cell["settings"] == "flash attention on" else ""


def _about_speed(content: dict[str, Any]) -> str:
    chosen = (f"{row['engine']} {row['precision']}: {row['settings']}" for row in content["rows"] if row["settings"])
    settings = "; ".join(dict.fromkeys(chosen))  # each once
    answered = content["rows"][0]["prompts"]
    said = (
        f"{answered} prompt{'s' if answered > 1 else ''} of {content['prompts']['file']}, "
        f"{content['threads']} threads, greedy, drafts of up to {content['num_draft_tokens']} tokens "
        f"({content['draft_budget']} budget). Every prompt is answered by everybody in turn, without a grammar (the "
        "others have none) and with as many tokens as the reference, torch float32 plain, takes to its stop token; "
        "tokens/s is from the first token to the last. Rows `grammar` are the pipeline as users run it: other answers, "
        "so without ratios. Medians "
        "(quartiles) over prompts; ratios are prompt by prompt, above 1 is faster. As plain: answers equal to the same "
        "engine's plain ones."
    )
    return f"{said} Settings: {settings}." if settings else said


def _about_passes(content: dict[str, Any]) -> str:
    step = content.get("plain_step")
    plain = (
        f" A plain step of the fastest plain engine, {step['engine']} {step['precision']}, takes "
        f"{step['milliseconds']:.1f} ms."
        if step
        else ""
    )
    cycle = (
        f" Cycle: medians over cycles of {content['num_draft_tokens'] + 1} rows while answering, draft and verify. "
        f"Rest of the loop: share of all cycles' time outside draft and verify.{plain}"
        if content["cycles"]
        else ""
    )
    own = (
        " OpenVINO's passes are as wide as their draft here; users get the one width of the configuration."
        if any(cell["engine"] == "openvino" for cell in content["passes"])
        else ""
    )
    flash = (
        " llama.cpp: the faster of flash attention off and on, cell by cell; `flash` where it was on."
        if any(cell["engine"] == LLAMA for cell in content["passes"])
        else ""
    )
    return f"Verify passes after {content['context']} tokens, medians (quartiles).{own}{flash}{cycle}"


_ABOUT_ACCURACY = (
    "The reference's own answers, read again teacher forced: perplexity of its tokens, and how often the likeliest "
    "token is that of torch float32."
)
_ABOUT_CONTEXT = (
    "Medians, `flash` as above. Floor: bytes of the weights and of the context's keys and values, read once, at the "
    "memory bandwidth measured in the same run."
)


def _table(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def _engines(cells: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(_named(cell) for cell in cells))


def _named(cell: dict[str, Any]) -> tuple[str, str]:
    return cell["engine"], cell["precision"]


def _spread(found: dict[str, float] | None, digits: int) -> str:
    if not found:
        return "-"
    return f"{found['median']:.{digits}f} ({found['low']:.{digits}f}–{found['high']:.{digits}f})"


def _of(count: int | None, prompts: int) -> str:
    return "-" if count is None else f"{count} of {prompts}"
