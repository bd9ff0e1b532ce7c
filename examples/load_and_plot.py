"""Load results with pandas, and draw the times of each case over its samples.

    python examples/load_and_plot.py results/latest         # writes times.png
    python examples/load_and_plot.py results/latest plot.svg
"""

import sys

import matplotlib

import hpcbench

matplotlib.use("Agg")  # no window


def main(results, picture="times.png"):
    runs = hpcbench.load(results)
    samples = runs.to_pandas(samples=True)
    counted = samples[samples["counted"]]
    slowest = counted.groupby(["label", "iteration"])["seconds"].max().unstack("label")
    axes = slowest.plot(logy=True, figsize=(10, 5), title=runs.runs[0].name)
    axes.set_ylabel("slowest rank (s)")
    axes.figure.savefig(picture, bbox_inches="tight")
    print(f"written: {picture}")
    columns = ["label", "median_s", "ci_low_s", "ci_high_s", "ci_reliable", "status"]
    print(runs.to_pandas()[columns].to_string())  # an interval with ci_reliable 0 is not to be used


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: load_and_plot.py RESULTS [PICTURE]")
    main(*sys.argv[1:])
