"""The attack suite: each attack runs on a fresh server in a memory cgroup of 512 MiB.

Tenant A, or a stranger without a token, attacks. The latency of another tenant, B, is measured alone and under the attack.

    python3 tests/attack/run.py --binary target/dist/codeq [--baseline OLD/codeq] [--attacks a,c] [--document]

With a baseline every attack runs on both, one after the other. Figures go to `--out` as JSON and to the terminal as a
table; `--document` also writes the table into docs/security.md. The exit code is 1 if the binary does not hold: the server
died, requests of B failed, B's p99 is more than three times its p99 alone, or a check of an attack fails. Root is needed
for the cgroup and for attack g; without it the server runs unbounded, and the table says so. All traffic stays on the
loopback interface.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import traceback

import edge  # noqa: F401
import fairness  # noqa: F401
import memory  # noqa: F401
import table
from attack import ATTACKS, Run
from harness import LIMIT_BYTES, TOKENS, Server

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WARM_UP = 1.0
ALONE = 4.0
# How long B is watched at least, also if the attack is over sooner.
UNDER_LEAST = 3.0


def quantile(sorted_values, part):
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))]


def summary(samples, start, end):
    """B between two moments. Failed requests are counted by kind; those that timed out or did not begin also have latencies."""
    seen = [sample for sample in samples if start <= sample[0] < end]
    times = sorted(ms for _, ms, wrong in seen if wrong in (None, "timeout", "not begun"))
    errors = {}
    for _, _, wrong in seen:
        if wrong:
            errors[wrong] = errors.get(wrong, 0) + 1
    out = {"requests": len(seen), "errors": errors}
    if times:
        out.update(p50=round(quantile(times, 0.5), 2), p99=round(quantile(times, 0.99), 2), max=round(times[-1], 1))
    return out


class Victim:
    def __init__(self, server):
        self.process = subprocess.Popen(
            [sys.executable, f"{HERE}/victim.py", str(server.http), TOKENS["b"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def samples(self):
        out, _ = self.process.communicate(timeout=30)
        return json.loads(out)


def once(attack, binary, directory):
    """One attack on one binary."""
    started = time.monotonic()
    options = dict(attack.server)
    make = options.pop("make", None)
    os.makedirs(directory, exist_ok=True)
    if make:
        options.update(make(directory))
    server = Server(binary, f"{directory}/server", attack.settings, attack.optional, **options)
    run = Run(server, directory)
    run.kept["binary"] = binary
    result = {"cgroup": server.cgroup.version or f"none: {server.cgroup.why_not}"}
    victim = None
    try:
        if attack.prepare:
            attack.prepare(run)
        result["prepared peak MiB"] = server.peak_mib()
        result["prepared s"] = round(time.monotonic() - started, 1)
        if attack.victim:
            victim = Victim(server)
            time.sleep(WARM_UP)
        alone = time.monotonic()
        if attack.victim:
            time.sleep(ALONE)
        begun = time.monotonic()
        run.deadline = begun + attack.seconds
        try:
            attack.run(run)
        except OSError as error:
            # The server refused or closed the connection, or is gone: an outcome, not a fault of the suite.
            run.fact("broke off", type(error).__name__)
        if attack.victim and server.alive():
            time.sleep(max(0, begun + UNDER_LEAST - time.monotonic()))
        ended = run.measured_until or time.monotonic()
        result["attack s"] = round(ended - begun, 1)
        if victim:
            samples = victim.samples()
            victim = None
            result["alone"] = summary(samples, alone, begun)
            result["under"] = summary(samples, begun, ended)
    finally:
        for close in run.closing:
            close()
        if victim:
            victim.process.kill()
            victim.process.wait()
        stopped = server.stop(politely=run.measured_until is None)
        server.remove()
    result["peak MiB"] = server.peak_mib()
    result["died"] = None if run.measured_until else server.died
    result["stopped s"] = stopped and round(stopped, 2)
    result["facts"] = run.facts
    result["checks"] = run.checks
    result["took s"] = round(time.monotonic() - started, 1)
    return result


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print what the attacks do, and exit")
    parser.add_argument("--binary", help="the codeq to attack")
    parser.add_argument("--baseline", help="another codeq to compare with; the tables call it before")
    parser.add_argument("--attacks", default="", help=f"some of {','.join(sorted(ATTACKS))}; all without it")
    parser.add_argument("--dir", default=f"{ROOT}/target/attack", help="data, logs and figures; not on a tmpfs")
    parser.add_argument("--out", help="where the JSON goes; DIR/figures.json without it")
    parser.add_argument("--document", action="store_true", help="write the table into docs/security.md")
    return parser.parse_args()


def main():
    args = arguments()
    if args.list:
        for _, attack in sorted(ATTACKS.items()):
            print(f"{attack.key}  {attack.title}\n    {attack.text}")
        return
    if not args.binary and not args.baseline:
        sys.exit("which binary? --binary target/dist/codeq")
    chosen = [key for key in args.attacks.replace(" ", "").split(",") if key] or sorted(ATTACKS)
    unknown = [key for key in chosen if key not in ATTACKS]
    if unknown:
        sys.exit(f"no such attack: {', '.join(unknown)}; there are {', '.join(sorted(ATTACKS))}")
    binaries = {"before": args.baseline, "after": args.binary}
    binaries = {name: os.path.abspath(path) for name, path in binaries.items() if path}
    # The attacker needs sockets, and leaves the processor to the server and to B.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    os.nice(10)
    figures = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 1),
        "limit MiB": LIMIT_BYTES >> 20,
        "attacks": {},
    }
    out = args.out or f"{args.dir}/figures.json"
    os.makedirs(args.dir, exist_ok=True)
    faults = []
    for key in chosen:
        attack = ATTACKS[key]
        row = figures["attacks"][key] = {"title": attack.title, "text": attack.text, "runs": {}}
        for name, binary in binaries.items():
            print(f"{key} {attack.title}: {name} …", file=sys.stderr, flush=True)
            try:
                result = once(attack, binary, f"{args.dir}/{key}-{name}")
            except Exception as error:  # One attack that cannot run does not end the suite.
                traceback.print_exc()
                result = {"failed": repr(error)}
            row["runs"][name] = result
            # The baseline is expected not to hold.
            if name == "after":
                faults += [f"{key}: {fault}" for fault in table.faults(result)]
            print(f"  {table.one_line(result)}", file=sys.stderr, flush=True)
            with open(out, "w", encoding="utf-8") as file:
                json.dump(figures, file, indent=1)
    print(table.markdown(figures))
    print(f"figures: {out}", file=sys.stderr)
    if args.document:
        table.document(figures, f"{ROOT}/docs/security.md")
    for fault in faults:
        print(f"does not hold: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
