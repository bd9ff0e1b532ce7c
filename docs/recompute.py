"""Recompute the statistics of each case from its samples, without hpcbench: recompute.py FILE.

docs/results-file.md says what the datasets are. The numbers that are compared with are values of
``use`` and bits in ``flags``.
"""

import json
import sys

import h5py
import numpy as np


def statistics(t):
    """Return count, percentiles and ends of these times."""
    needs = {5: 20, 25: 1, 75: 1, 95: 20, 99: 100}  # percentile: samples that it takes
    return {f"p{p}_s": np.percentile(t, p) for p, need in needs.items() if t.size >= need} | {
        "n": t.size, "min_s": t.min(), "median_s": np.median(t), "max_s": t.max()}


STUDENT = {2: 12.7062047361747, 3: 4.30265272974946, 4: 3.18244630528371, 5: 2.77644510519779}


def interval(case, t, launches, passes):
    """Return both ends: of samples, widened to what fewer than 8 passes ask for, or of medians."""
    few = case["ci_unit"] == b"passes" and passes.size < 8
    medians = {} if few else {b"launches": launches, b"passes": passes}
    units = np.sort(medians.get(case["ci_unit"], t))
    at, ends = max(case["ci_rank"], 1), [np.median(t)]
    if few:
        logs = np.log(passes)
        half = (np.ptp(logs) / 2 if logs.size > 5 else
                STUDENT[logs.size] * logs.std(ddof=1) / logs.size ** 0.5)
        middle = (logs.min() + logs.max()) / 2 if logs.size > 5 else logs.mean()
        ends += [np.exp(middle - half), np.exp(middle + half)]
    return min(*ends, units[at - 1]), max(*ends, units[-at])


def recomputed(case, samples, plan):
    """Return each number of a row of /cases that its samples hold, by the name of its column."""
    ranks, first = case["sample_ranks"], case["sample_offset"]
    rows = {name: column[first:first + ranks * case["sample_iterations"]].reshape(ranks, -1)
            for name, column in samples.items()}
    stride = max(case.get("group_stride", 1), 1)  # older files and other kinds have none
    shape = case["groups"] // stride, ranks // case["groups"], stride, -1
    start, end = rows["start_ns"].reshape(shape), rows["end_ns"].reshape(shape)
    wait = rows["end_ns"] - rows["start_ns"]
    use, launch, turn = (rows[name][0] for name in ("use", "launch", "pass_index"))
    longest = wait.max(0) / case["calls"] / 1e9
    globally = (end.max((0, 1, 2)) - start.min((0, 1, 2))) / 1e9
    times = globally if case["fold"] == b"global" else longest
    counted = use <= 2
    t, late = times[counted], np.any(rows["flags"] & 4, 0)[counted]
    median = np.median(t)
    outlier = t - median > 10 * np.median(abs(t - median))
    plain = t[(use[counted] == 0) & ~late & ~outlier]
    medians = [np.median(times[counted & (launch == one)]) for one in np.unique(launch)]
    parts = [times[counted & (launch == one) & (turn == number)]
             for one in range(plan["launches"]) for number in range(plan["passes"])]
    votes = ((wait == wait.min(0)) & counted).sum(1)
    low, high = interval(case, t, medians, np.array([np.median(one) for one in parts if one.size]))
    size, wire = case.get("size_bytes", 0), case.get("wire_bytes", -1)
    work = {"algbw_bytes_per_s": size, "samples_per_s": case.get("global_batch"),
            "busbw_bytes_per_s": wire if wire >= 0 else size * case.get("busbw_factor", 0),
            "busiest_rank_flops_per_s": case.get("flops"),
            "all_ranks_flops_per_s": case.get("total_flops")}
    return statistics(t) | {f"unflagged_{name}": value for name, value in (
        statistics(plain) if plain.size else {"n": 0}).items()} | {
        "n_late": late.sum(), "n_outlier": outlier.sum(),
        "n_warmup": np.any(rows["flags"] & 1, 0).sum(),
        "n_ramp": np.isin(use, (1, 5)).sum(), "n_surplus": np.isin(use, (2, 6)).sum(),
        "n_samples": use.size, "n_checked": np.any(rows["flags"] & 2, 0).sum(),
        "ci_low_s": low, "ci_high_s": high,
        "launch_low_s": min(medians), "launch_high_s": max(medians),
        "launch_level": 1 - 2 / 2 ** len(medians),
        "quickest_rank": rows["rank"][votes.argmax(), 0], "quickest_share": votes.max() / t.size,
        "local_max_s": np.median(longest[counted]),
        "imbalance_s": np.median(np.ptp(start, axis=1).max((0, 1))[counted]) / 1e9,
        "last_in_s": np.median((end.max(1) - start.max(1)).max((0, 1))[counted])
        / case["calls"] / 1e9,
        "launch_medians_s": medians,
        "pass_medians_s": [np.median(part) if part.size else None for part in parts],
        **{rate: amount / median for rate, amount in work.items() if amount and amount > 0}}


with h5py.File(sys.argv[1], locking=False) as file:
    plan = json.loads(file["plan"][0])
    samples = {name: item[:] for name, item in file["samples"].items()}
    timings = [json.loads(line) for line in file["cases/timing"][0].splitlines()]
    columns = {name: item[:] for name, item in file["cases"].items()
               if item.attrs["units"] != "JSON lines"}
wrong, left_out, count = [], 0, 0
for row, timing in enumerate(timings):
    case = {name: column[row] for name, column in columns.items()}
    if case["status"] == b"ok" and (case["clock_bound_s"] > 0 or not case["sample_ranks"]):
        left_out += 1  # models of several clocks are in /clock; imported tables have no samples
    if case["status"] != b"ok" or case["clock_bound_s"] > 0 or not case["sample_ranks"]:
        continue
    unflagged = {f"unflagged_{name}": value for name, value in (timing["unflagged"] or {}).items()}
    for name, value in recomputed(case, samples, plan).items():
        stored = np.array((timing | unflagged | case).get(name, np.nan), float)
        if not np.all(np.isnan(stored) | (stored == -1)):
            count += 1
            if not np.allclose(np.array(value, float), stored, 1e-9, 0, equal_nan=True):
                wrong.append(f"{case['case_id'].decode()} {name}: {stored}, recomputed {value}")
print(*wrong, f"{count} numbers recomputed, {len(wrong)} differ; {left_out} cases left out: on "
      "several clocks, or without samples", sep="\n")
sys.exit(bool(wrong))
