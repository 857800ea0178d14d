"""The figures of a run as two tables.

    python3 tests/attack/table.py target/attack/figures.json [docs/security.md]

prints them, or puts them between the markers of the document.
"""

import json
import sys

BEGIN = "<!-- attack table: written by `make attack DOCUMENT=1` -->"
END = "<!-- end of the attack table -->"
# B's p99 under attack, in multiples of B alone.
P99_TIMES_MAX = 3


def pair(part):
    return f"{part['p50']:.1f} / {part['p99']:.1f}" if part and "p50" in part else "–"


def ratio(result):
    """B's p99 under attack in multiples of B alone; None if there is nothing to compare."""
    alone, under = result.get("alone", {}), result.get("under", {})
    if not alone.get("p99") or "p99" not in under:
        return None
    return under["p99"] / alone["p99"]


def served(result):
    """What B got, in few words."""
    if result.get("died"):
        return f"**server {result['died']}**"
    under = result.get("under")
    if not under:
        return "–"
    failed = sum(under["errors"].values())
    return f"**{failed} of {under['requests']} failed**" if failed else f"all {under['requests']}"


def faults(result):
    """Why an attack counts as successful; empty if the server held."""
    if "failed" in result:
        return [f"could not run: {result['failed']}"]
    found = []
    if result["died"]:
        found.append(f"the server {result['died']}")
    elif sum(result.get("under", {}).get("errors", {}).values()):
        found.append(f"B's requests failed: {result['under']['errors']}")
    times = ratio(result)
    if times and times > P99_TIMES_MAX and not result["died"]:
        found.append(f"B's p99 is {times:.1f} times that of B alone")
    return found + [f"check failed: {check['what']} ({check['seen']})" for check in result["checks"] if not check["good"]]


def one_line(result):
    if "failed" in result:
        return f"could not run: {result['failed']}"
    checks = [f"{check['what']}: {'yes' if check['good'] else 'NO'} ({check['seen']})" for check in result["checks"]]
    seen = [f"{name}: {value}" for name, value in result["facts"].items()]
    times = ratio(result)
    return "; ".join([
        f"B alone {pair(result.get('alone'))} ms, under {pair(result.get('under'))} ms",
        f"{times:.1f}×" if times else "no ratio",
        f"peak {result['peak MiB']} MiB", served(result), *checks, *seen, f"took {result['took s']} s",
    ])


def joined(runs, cell):
    """The same cell of the runs there are: before → after."""
    return " → ".join(cell(run) if "failed" not in run else "could not run" for run in runs.values())


def times_alone(run):
    if run["died"]:
        return "–"
    times = ratio(run)
    return f"{times:.1f}×" if times else "–"


def latencies(figures):
    lines = [
        "| | Attack | B alone, ms | B under attack, ms | p99: under attack / alone | B's requests | Server's peak, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, row in figures["attacks"].items():
        runs = row["runs"]
        cells = [
            key,
            row["title"],
            joined(runs, lambda run: pair(run.get("alone"))),
            joined(runs, lambda run: "–" if run["died"] else pair(run.get("under"))),
            joined(runs, times_alone),
            joined(runs, served),
            joined(runs, lambda run: str(run["peak MiB"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def findings(figures):
    """Checks and what was counted, by attack."""
    names = [name for name in ("before", "after") if any(name in row["runs"] for row in figures["attacks"].values())]
    lines = [f"| | Check or figure | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for key, row in figures["attacks"].items():
        seen = {}
        for name, run in row["runs"].items():
            for check in run.get("checks", []):
                text = f"{'yes' if check['good'] else '**no**'}: {check['seen']}"
                seen.setdefault(check["what"], {})[name] = text
            for fact, value in run.get("facts", {}).items():
                seen.setdefault(fact, {})[name] = str(value)
        for what, by_name in seen.items():
            lines.append(f"| {key} | {what} | {' | '.join(by_name.get(name, '–') for name in names)} |")
    return lines


def markdown(figures):
    runs = [run for row in figures["attacks"].values() for run in row["runs"].values()]
    names = " → ".join(next(iter(figures["attacks"].values()))["runs"])
    lines = [
        f"{figures['date']}; {figures['machine']}, shared by server, attacker and B; memory cgroup of "
        f"{figures['limit MiB']} MiB; load average at the start: {figures['load']}. Each cell is *{names}*; times are "
        "B's p50 / p99.",
        "",
    ]
    if any(str(run.get("cgroup", "")).startswith("none") for run in runs):
        lines += ["**Without a memory cgroup, because none could be made: peaks are unbounded.**", ""]
    return "\n".join([*lines, *latencies(figures), "", *findings(figures)])


def document(figures, path):
    """Puts the tables between the markers."""
    with open(path, encoding="utf-8") as source:
        text = source.read()
    head, found, rest = text.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{path} has no place for the tables: expected {BEGIN} and {END}")
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"{head}{BEGIN}\n\n{markdown(figures)}\n\n{END}{tail}")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as source:
        read = json.load(source)
    if len(sys.argv) > 2:
        document(read, sys.argv[2])
    else:
        print(markdown(read))
