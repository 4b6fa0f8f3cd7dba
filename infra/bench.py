#!/usr/bin/env python3
"""Writes what the benches measured into the README, between its two marks. infra/bench.sh calls it.

    python3 infra/bench.py CRITERION_HOME ALLOCATIONS README

Times are criterion's medians. ALLOCATIONS is what `benches/allocations.rs` prints. What is missing is an error: half a
table would look like a whole one.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

BEGIN = "<!-- performance: begin, written by infra/bench.sh -->"
END = "<!-- performance: end -->"

# As `benches/support/mod.rs` names and counts them.
OPERATIONS = {
    "load-memory": "load, in memory",
    "load-dynamodb": "load, DynamoDB",
    "render": "render",
    "slice-memory": "slice, in memory",
    "slice-dynamodb": "slice, DynamoDB",
}
LENGTHS = [0, 100, 1_000, 10_000]
# The columns that say how a tenfold length shows.
STEPS = [(100, 1_000), (1_000, 10_000)]
COMPACTED = {"load-compacted": "load, compacted", "slice-compacted": "slice, compacted"}
COMPACTED_LENGTHS = [1_000, 100_000]
COMPACTED_STEPS = [(1_000, 100_000)]


def scaled(value, units):
    """`value` in the largest unit that leaves at least 1, with three digits."""
    unit, name = next(((unit, name) for unit, name in units if value >= unit), units[-1])
    value /= unit
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {name}"


def time(ns):
    return scaled(ns, [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")])


def size(count):
    return scaled(count, [(1e6, "MB"), (1e3, "kB"), (1, "B")])


def median(criterion, name, length):
    estimates = json.loads((criterion / name / str(length) / "new" / "estimates.json").read_text())
    return estimates["median"]["point_estimate"]


def read(criterion, allocations):
    """What was measured, by operation, kind and length."""
    counts = {(row["name"], row["length"]): row for row in map(json.loads, allocations.read_text().splitlines())}

    def of(name, lengths):
        def counted(kind):
            return {length: counts[name, length][kind] for length in lengths}

        return {
            "time": {length: median(criterion, name, length) for length in lengths},
            "allocations": counted("allocations"),
            "allocated": counted("bytes"),
            "held at most": counted("peak"),
        }

    measured = {name: of(name, LENGTHS) for name in OPERATIONS}
    return measured | {name: of(name, COMPACTED_LENGTHS) for name in COMPACTED}


def table(measured, operations, lengths, steps):
    shown = {"time": time, "allocations": "{:,}".format, "allocated": size, "held at most": size}
    head = ["", ""] + [f"{length:,}" for length in lengths] + [f"{few:,} → {many:,}" for few, many in steps]
    rows = [head, ["---", "---"] + ["--:"] * (len(lengths) + len(steps))]
    for name, title in operations.items():
        for kind, by_length in measured[name].items():
            values = [shown[kind](by_length[length]) for length in lengths]
            factors = [f"×{by_length[many] / by_length[few]:.{1 if many / few == 10 else 2}f}" for few, many in steps]
            rows.append([title if kind == "time" else "", kind, *values, *factors])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def machine():
    cpu = platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{models[0]} ({cpu})" if models else cpu
    rustc = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()
    return f"{os.cpu_count()} cores, {cpu}, {platform.system()}, rustc {rustc[1]}."


def main(criterion, allocations, readme):
    text = readme.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{readme}: the marks of the performance section are not there, or not in order")
    try:
        measured = read(criterion, allocations)
    except (KeyError, OSError) as missing:
        sys.exit(f"a measurement is missing: {missing!r}")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    whole = table(measured, OPERATIONS, LENGTHS, STEPS)
    compacted = table(measured, COMPACTED, COMPACTED_LENGTHS, COMPACTED_STEPS)
    readme.write_text(f"{before}{BEGIN}\n{whole}\n\n{compacted}\n\n{machine()}\n{after}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
