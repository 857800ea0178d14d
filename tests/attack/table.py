"""The figures of a run as a table.

    python3 tests/attack/table.py target/attack/figures.json [docs/security.md]

prints it, or puts it between the markers of the document.
"""

import json
import sys

BEGIN = "<!-- attack table: written by `make attack DOCUMENT=1` -->"
END = "<!-- end of the attack table -->"


def pair(part):
    return f"{part['p50']:.1f} / {part['p99']:.1f}" if part and "p50" in part else "no answers"


def failures(result):
    """Why B did not get what it asked for, in few words."""
    words = []
    if result.get("died"):
        words.append(f"**server {result['died']}**")
    under = result.get("under")
    errors = sum(under["errors"].values()) if under else 0
    if errors and not result.get("died"):
        words.append(f"{errors} of B's {under['requests']} requests failed")
    words += [f"{check['what']}: {'yes' if check['good'] else '**no**'} ({check['seen']})"
              for check in result.get("checks", [])]
    return "; ".join(words) or "served"


def facts(result):
    return "; ".join(f"{name} {value}" for name, value in result.get("facts", {}).items())


def one_line(result):
    if "failed" in result:
        return f"could not run: {result['failed']}"
    return (f"B alone {pair(result.get('alone'))} ms, under {pair(result.get('under'))} ms, peak {result['peak MiB']} MiB, "
            f"{failures(result)} [{facts(result)}] {result['took s']} s")


def joined(row, cell):
    """The same cell of the runs there are: before → after."""
    return " → ".join(cell(run) if "failed" not in run else "could not run" for run in row["runs"].values())


def ratio(run):
    alone, under = run.get("alone"), run.get("under")
    if not under:
        return "–"
    if run.get("died") or "p99" not in under or not alone.get("p99"):
        return "∞"
    return f"{under['p99'] / alone['p99']:.1f}×"


def markdown(figures):
    runs = [run for row in figures["attacks"].values() for run in row["runs"].values()]
    names = " → ".join(next(iter(figures["attacks"].values()))["runs"])
    lines = [
        f"{figures['date']}, {figures['machine']} shared by server, attacker and B; memory cgroup of "
        f"{figures['limit MiB']} MiB; each cell is *{names}*. Milliseconds are B's p50 / p99.",
        "",
    ]
    if any(str(run.get("cgroup", "")).startswith("none") for run in runs):
        lines += ["**Without a memory cgroup: none could be made, so peaks are unbounded.**", ""]
    lines += [
        "| | Attack by A | B alone | B under attack | B's p99, times alone | Server's peak, MiB | What else was seen |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, row in figures["attacks"].items():
        cells = [
            key,
            row["title"],
            joined(row, lambda run: pair(run["alone"]) if "alone" in run else "–"),
            joined(row, lambda run: pair(run["under"]) if "under" in run else "–"),
            joined(row, ratio),
            joined(row, lambda run: str(run["peak MiB"])),
            joined(row, lambda run: "; ".join(part for part in (failures(run), facts(run)) if part)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def document(figures, path):
    """Puts the table between the markers."""
    text = open(path, encoding="utf-8").read()
    head, found, rest = text.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{path} has no place for the table: expected {BEGIN} and {END}")
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"{head}{BEGIN}\n\n{markdown(figures)}\n\n{END}{tail}")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as source:
        read = json.load(source)
    if len(sys.argv) > 2:
        document(read, sys.argv[2])
    else:
        print(markdown(read))
