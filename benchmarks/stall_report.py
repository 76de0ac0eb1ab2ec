"""From the results of stall measurements to one table, and to what of it meets the project's own limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.bench.statistics import ratio

Results = Mapping[str, Mapping[str, Any]]
"""Documents of :func:`pipeline.bench.stall.measure` by scenario key."""

P99_LIMIT, MAX_LIMIT = 2.0, 4.0
"""Largest p99 gap and largest gap beside a load, over the p99 gap alone."""
ENCODER_LIMIT = 1.1
"""Encoder seconds per picture, sliced over unsliced."""
PEER_LIMIT = 2.0
"""Chat tokens a second beside pictures that are split, over the peer's. Beside lighter loads the two are only reported:
twice the peer's would be more than either gives alone."""
TARGET_LIMIT = 0.95
"""Share of steps with decodes that keep ``target_itl_ms``."""
LOADS = ("split", "one-tile", "text-2000", "text-6000")


def summarise(results: Results) -> dict[str, Any]:
    """One row a scenario, and the limits with what was measured."""
    return {
        "machine": next((document["machine"] for document in results.values() if "machine" in document), None),
        "rows": [_row(key, document) for key, document in results.items()],
        "limits": limits(results),
    }


def _row(key: str, document: Mapping[str, Any]) -> dict[str, Any]:
    alone, beside = document["phases"]
    load, engine = beside.get("load", {}), document.get("engine")
    row = {
        "key": key,
        "scenario": document["scenario"]["title"],
        "server": document["scenario"]["server"],
        "settings": document["server"].get("settings", {}),
        "seconds": document["settings"]["seconds"],
        "alone": {"gap_ms": alone["gap_ms"], "tokens_per_s": alone["tokens_per_s"]},
        "beside": {"gap_ms": beside["gap_ms"], "tokens_per_s": beside["tokens_per_s"]},
        "compared": document["compared"],
        "load": {
            name: load.get(name)
            for name in ("sent", "completed", "unfinished", "failed", "completed_per_s", "ttft_s", "e2e_s")
        },
    }
    if engine is not None:
        row["engine"] = {
            "decode_only_ms": engine["decode_only_ms"],
            "target_ms": engine["target_ms"],
            "steps_within": engine["beside the load"]["share_within"],
            "prediction": engine["beside the load"]["prediction"]["step"],
            "encoder_s_per_picture": engine["encoder"]["busy_s_per_picture"],
        }
    return row


def limits(results: Results) -> list[dict[str, Any]]:
    """Each limit, what was measured, and whether it is met; ``met`` is None where a measurement is missing."""
    found: list[dict[str, Any]] = []

    def at_most(what: str, value: float | None, limit: float) -> None:
        found.append(
            {"what": what, "measured": value, "limit": limit, "met": None if value is None else value <= limit}
        )

    def at_least(what: str, value: float | None, limit: float | None) -> None:
        met = None if value is None or limit is None else value >= limit
        found.append({"what": what, "measured": value, "limit": limit, "met": met})

    for load in LOADS:
        ours, peer = results.get(f"ours-{load}"), results.get(f"vllm-{load}")
        compared = ours["compared"] if ours else {}
        at_most(f"{load}: p99 gap over p99 alone, at most", compared.get("p99_gap_over_p99_alone"), P99_LIMIT)
        at_most(f"{load}: largest gap over p99 alone, at most", compared.get("max_gap_over_p99_alone"), MAX_LIMIT)
        done = ours["phases"][1]["load"] if ours else None
        at_most(f"{load}: prompts unfinished or failed", done["unfinished"] + done["failed"] if done else None, 0)
        kept = ratio(_tokens(ours), _tokens(peer))
        if load == "split":
            at_least(f"{load}: chat tokens/s over vLLM-CPU's, at least", kept, PEER_LIMIT)
        else:
            at_least(f"{load}: chat tokens/s over vLLM-CPU's", kept, None)
    for load in ("split", "one-tile"):
        sliced, whole = results.get(f"ours-{load}"), results.get(f"ours-{load}-unsliced")
        busy = ratio(_encoder(sliced), _encoder(whole))
        at_most(f"{load}: encoder seconds per picture, sliced over unsliced, at most", busy, ENCODER_LIMIT)
    for multiple in ("2x", "4x"):
        document = results.get(f"ours-target-{multiple}")
        share = document["engine"]["beside the load"]["share_within"].get("target") if document else None
        at_least(f"target {multiple}: share of steps within it, at least", share, TARGET_LIMIT)
    return found


def _tokens(document: Mapping[str, Any] | None) -> float | None:
    return document["phases"][1]["tokens_per_s"] if document else None


def _encoder(document: Mapping[str, Any] | None) -> float | None:
    return document["engine"]["encoder"]["busy_s_per_picture"] if document and document.get("engine") else None


def markdown(table: Mapping[str, Any], pictures: str) -> str:
    """The table and the limits as Markdown.

    Args:
        table: of :func:`summarise`.
        pictures: the folder of the pictures, relative to the file.
    """
    head = (
        "| scenario | server | alone: gap p50 / p99 ms, tokens/s | beside: gap p50 / p99 / max ms, tokens/s "
        "| p99, max over p99 alone | load: first token p50, whole p50 s | finished | per s | encoder s a picture "
        "| steps within 1.5x / 2x / 4x / what was allowed (target) | measured / predicted, median, p95 |"
    )
    parts = ["# Chats beside a load", "", _machine(table["machine"]), "", head, "|" + "---|" * 11]
    parts += [_line(row, pictures) for row in table["rows"]]
    parts += ["", "## Limits", "", "| | measured | limit | met |", "|---|---|---|---|"]
    for limit in table["limits"]:
        met = {True: "yes", False: "**no**", None: "not measured"}[limit["met"]]
        if limit["limit"] is None:
            met = "reported"
        parts.append(f"| {limit['what']} | {_show(limit['measured'])} | {_show(limit['limit'])} | {met} |")
    return "\n".join(parts) + "\n"


def _machine(machine: Mapping[str, Any] | None) -> str:
    if machine is None:
        return "Nothing is measured yet."
    return (
        f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}; written by `benchmarks/stall_table.py`."
    )


def _line(row: Mapping[str, Any], pictures: str) -> str:
    alone, beside, load, compared = row["alone"], row["beside"], row["load"], row["compared"]
    engine = row.get("engine") or {}
    within, prediction = engine.get("steps_within") or {}, engine.get("prediction") or {}
    target = f" ({_percent(within['target'])} within {engine['target_ms']:g} ms)" if "target" in within else ""
    cells = [
        f"[{row['scenario']}]({pictures}/{row['key']}.png)",
        row["server"],
        f"{_points(alone['gap_ms'], ('p50', 'p99'))}, {_show(alone['tokens_per_s'])}",
        f"{_points(beside['gap_ms'], ('p50', 'p99', 'max'))}, {_show(beside['tokens_per_s'])}",
        f"{_show(compared['p99_gap_over_p99_alone'])}, {_show(compared['max_gap_over_p99_alone'])}",
        f"{_show((load['ttft_s'] or {}).get('p50'))}, {_show((load['e2e_s'] or {}).get('p50'))}",
        f"{_show(load['completed'])} of {_show(load['sent'])}",
        _show(load["completed_per_s"]),
        _show(engine.get("encoder_s_per_picture")),
        " / ".join(_percent(within.get(name)) for name in ("1.5x", "2x", "4x", "allowed")) + target if engine else "-",
        f"{_show(prediction.get('median'))}, {_show(prediction.get('p95'))}",
    ]
    return "| " + " | ".join(cells) + " |"


def _points(values: Mapping[str, float | None], names: Sequence[str]) -> str:
    return " / ".join(_show(values[name]) for name in names)


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
