"""All ways of serving in one process, in turn: what processes differ by is not in their ratios.

Each way has a model of its own in the process, all of them on the GPU at once. In every round each way generates once,
in an order that changes from round to round, and is compared with the dense way of the same round.
"""

import json
import time
import traceback
from math import comb
from statistics import median
from typing import Any

from vllm_served import Served, measure_loading
from vllm_ways import BATCHES, compare, environment, lines_of, plug_in_says, say, seconds_left, tell, told
from vllm_ways import child as command_of

DEFAULT = ["dense again", "dense", "mode 1", "mode 2"]
"""In the order in which they are made. The first one compiles, and the others find it done: it is none that counts."""

REFERENCE = "dense"


# The parent: has a process measure, and prints what it says


def measure(args: Any) -> None:
    """Print the figures as they come, and a table; a process that is stopped leaves those that it has given."""
    left = max(seconds_left(args.limit), 1)
    options = ["--together", "--rounds", str(args.rounds), "--limit", str(left - 5), "--ways", *args.ways]
    models: dict[str, list[dict[str, Any]]] = {}
    rounds: list[dict[str, Any]] = []
    loaded: dict[str, Any] = {}
    last: list[str] = []
    for line in lines_of(command_of(args, *options, "--serve", "all"), environment(args, ["csf"]), left):
        found = told(line)
        if found is None:
            last = [*last[-30:], line]
            if said := plug_in_says(line):
                loaded.setdefault("said", []).append(said)
        elif "way" in found:
            models[found["way"]] = [loaded | found]
            say(brief(loaded | found))
            loaded = {}
        elif "answers" in found:
            models[found["again"]].append(found)
        elif "batch" in found:
            rounds.append(found)
        elif "block" in found:
            say(block(rounds, found["block"]))
        elif "ended" in found:
            break
        else:
            loaded |= found
        if args.out and found:
            args.out.write_text(json.dumps({"models": models, "rounds": rounds}, indent=1))
    else:
        say(f"stopped, or failed; it said last:\n{''.join(last)}")
    say("\nall:")
    for batch in BATCHES:
        say(block(rounds, batch))
    compare(models)


def brief(found: dict[str, Any]) -> str:
    """A line on a model that is there now, or is not."""
    if "failed" in found:
        return f"{found['way']}: {found['failed']}"
    return (
        f"{found['way']}: {found.get('bytes', 0):,} bytes at rest, loaded in {found.get('first_load', 0):.2f} s, "
        f"serving after {found['start']:.0f} s, answers {found['digest']}; " + "; ".join(found.get("said", []))
    )


def block(rounds: list[dict[str, Any]], batch: int) -> str:
    """The table of a batch: tokens a second of each way, and how it compares with the reference in the same round."""
    samples = [found["speed"] for found in rounds if found["batch"] == batch]
    if not samples:
        return f"batch {batch}: none"
    lines = [
        f"batch {batch}, {len(samples)} rounds: tokens/s (of {REFERENCE}, paired: median; 95% interval of it; all)"
    ]
    for name in samples[0]:
        line = f"  {name:<20} {median(speed[name] for speed in samples):>9,.1f}"
        if REFERENCE in samples[0] and name != REFERENCE:
            ratios = sorted(speed[name] / speed[REFERENCE] for speed in samples)
            line += f" ({median(ratios):.4f}; {certain(ratios)}; {ratios[0]:.4f} to {ratios[-1]:.4f})"
        lines.append(line)
    return "\n".join(lines)


def certain(ordered: list[float]) -> str:
    """Between which samples the median is with at least 95%, whatever their distribution is; nothing for too few."""
    number, chance, outside = len(ordered), 0.0, -1
    for rank in range(number // 2):  # that so few tosses of a coin, or fewer, are heads, or are tails
        chance += 2 * comb(number, rank) / 2**number
        if chance <= 0.05:
            outside = rank
    return f"{ordered[outside]:.4f} to {ordered[-1 - outside]:.4f}" if outside >= 0 else "-"


# The child: makes the models, and has them take turns


def serve(args: Any) -> None:
    """Make the models of all ways, have each give its answers, and take turns until rounds or time are over."""
    measure_loading(0)
    models = {name: model for name in args.ways if (model := made(name, args))}
    longest = {batch: sum(model.seconds(batch, args.tokens) for model in models.values()) for batch in BATCHES}
    for name, model in models.items():  # once more: by now, they could have got into each other's way
        tell(again=name, **model.answers())
    done = dict.fromkeys(BATCHES, 0)
    for batch in BATCHES * args.rounds:
        for _ in range(args.repeat):
            if seconds_left(args.limit) < 1.2 * longest[batch]:
                break
            began = time.monotonic()
            names = turn(list(models), done[batch])
            speed = {name: batch * args.tokens / models[name].seconds(batch, args.tokens) for name in names}
            tell(batch=batch, speed={name: speed[name] for name in models}, order=names)
            done[batch] += 1
            longest[batch] = max(longest[batch], time.monotonic() - began)
        else:
            tell(block=batch)
    tell(ended=True)


def made(name: str, args: Any) -> Served | None:
    """A way's model, warm; None if that fails, for the others are worth their time."""
    began = time.monotonic()
    # With the size of its cache, vLLM measures no memory: it would count the other models', and drop their graphs.
    memory = {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 2**28 if args.tiny else 2**31}
    try:
        model = Served(name, args, memory)
        tell(way=name, start=time.monotonic() - began, **model.answers())
    except Exception as error:
        traceback.print_exc()
        tell(way=name, failed=f"{type(error).__name__}: {error}")
        return None
    return model


def turn(names: list[str], number: int) -> list[str]:
    """The order of a round: back and forth, and each way is first, second, ... as often as the others."""
    first = number // 2 % len(names)
    names = names[first:] + names[:first]
    return names[::-1] if number % 2 else names
