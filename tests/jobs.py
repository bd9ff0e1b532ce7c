"""The jobs that are shipped, and how they are shrunk: comments at the head of each file say it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from launcher import ROOT

RANKS = {"transformer_large_v100.yaml": 4, "resnet50_bert_gpt2_scaling.yaml": 8,
         "mistral7b_qlora.yaml": 4, "long_context.yaml": 512}
"""On how many ranks each is meant to run."""
EXAMPLES = {"bluefield_ucc.yaml": 4}
"""Examples of environments that nobody here has: they say so, and have no twin."""
MACHINE = {"hardware.yaml": 2, "memory.yaml": 2, "model_file.yaml": 2, "training_memory.yaml": 2,
           "adapters.yaml": 2, "expert_loads.yaml": 2, "expert_parallel.yaml": 2,
           "precision.yaml": 2, "hybrid_3d.yaml": 4}
"""Jobs of minutes on what a machine or a setting does; they run anywhere, and have no twin."""
JOBS = sorted(path for path in (ROOT / "jobs").glob("*.yaml")
              if path.name not in {*EXAMPLES, *MACHINE})


def twin_words(job: Path) -> list[str]:
    """Return the arguments of ``hpcbench run`` that shrink a job."""
    lines = re.findall(r"^# twin: (.*)$", job.read_text(), re.MULTILINE)
    return shlex.split(" ".join(lines))
