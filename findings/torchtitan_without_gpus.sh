#!/usr/bin/env bash
# torchtitan 0.3.0 with torch 2.13.0, on a machine without GPUs, has three surprises.
# - `import torchtitan.models.llama3` fails: it imports triton, which its requirements do not name.
# - torchtitan.tools.utils.device_type is "cuda", so its meshes and its Trainer cannot be made.
# - Its FSDP fails in the first backward pass over gloo ("Cannot use ReduceOp.PREMUL_SUM with Gloo"): it
#   asks for no division of gradients by set_gradient_divide_factor(1.0), a multiplication by 1 to torch.
# It cannot lie beside huggingface_hub 2: it wants datasets < 4.8, which wants huggingface_hub < 2. Under
# such a constraint pip installs torchtitan 0.2.2 without a word.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install -q "$@"; }
pip torch==2.13.0 numpy spmd_types==0.2.3 tyro==1.0.17
pip --no-deps torchtitan==0.3.0
"$folder/venv/bin/pip" uninstall -q -y triton 2> /dev/null || true  # a CUDA build of torch has it
if "$folder/venv/bin/python" -c "import torchtitan.models.llama3" 2> "$folder/error"; then
    echo "changed: it needs no triton"; exit 1
fi
tail -n 1 "$folder/error"
pip triton==3.7.1
cat > "$folder/sharded.py" <<'PYTHON'
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.tools.utils import device_type


class Decoder(torch.nn.Module):
    enable_weight_tying = False

    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.layers = torch.nn.Embedding(8, 4), torch.nn.ModuleDict()
        self.norm, self.lm_head = torch.nn.RMSNorm(4), torch.nn.Linear(4, 8)

    def forward(self, tokens):
        return self.lm_head(self.norm(self.tok_embeddings(tokens)))


def one_rank(rank, store):
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = Decoder()
    apply_fsdp_to_decoder(model, init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",)),
                          param_dtype=torch.float32, reduce_dtype=torch.float32, pp_enabled=False)
    try:
        model(torch.zeros(1, 2, dtype=torch.int64)).sum().backward()
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    if rank == 0:
        print(f"device_type: {device_type}; FSDP over gloo: {refused}", flush=True)
        assert torch.cuda.is_available() or device_type == "cuda", "changed"
        assert "PREMUL_SUM" in refused, "changed"


if __name__ == "__main__":
    torch.multiprocessing.spawn(one_rank, (sys.argv[1],), 2)
PYTHON
"$folder/venv/bin/python" "$folder/sharded.py" "$folder/store"
