"""Which GPUs the published builds of torch have code for: tables of facts, typed from sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hpcbench.backends.availability import no_code_reason, why_not_judged

CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128_OLD = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU129 = (*CU128_OLD, "compute_120")
ROCM_6_0 = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx1030", "gfx1100", "gfx942")
ROCM_7_2 = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100",
            "gfx1101", "gfx1102", "gfx1103", "gfx1200", "gfx1201", "gfx1150", "gfx1151")
BUILDS: Mapping[str, Sequence[str]] = {
    "cu126": CU126, "cu128 until 2.10": CU128_OLD, "cu128": CU128, "cu129": CU129,
    "cu130": CU128,  # the wheel of PyPI for torch 2.13 was asked itself
    "cu130 of aarch64": ("sm_80", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120"),
    "rocm6.0": ROCM_6_0, "rocm7.2": ROCM_7_2, "rocm7.14": ROCM_7_2[2:], "cpu": ()}
"""What torch.cuda.get_arch_list() says of wheels. Sources: of pytorch/pytorch .ci/manywheel/
build_cuda.sh (00c7a380) and, without 7.0, issue 172352; .ci/aarch64_linux/aarch64_ci_build.sh;
.ci/docker/manywheel/build.sh (1fca82d4 for ROCm 6.0, 027375bf for 7.2 and 7.14)."""
GPUS = {"V100": (7, 0), "T4": (7, 5), "A10": (8, 6), "H100": (9, 0), "B200": (10, 0)}
AMD_GPUS = {"MI250": (9, 0), "MI300X": (9, 4)}
"""torch.cuda.get_device_capability() of gfx90a and gfx942: major and minor of their gfx names."""
WITHOUT_CODE = {
    ("cu126", "B200"), ("cu128", "V100"), ("cu130", "V100"), ("cu130 of aarch64", "V100"),
    ("cu130 of aarch64", "T4")}


@pytest.mark.parametrize("build", [name for name in BUILDS if name.startswith("cu")])
@pytest.mark.parametrize("gpu", GPUS)
def test_a_build_for_cuda_and_a_gpu(build: str, gpu: str) -> None:
    reason = no_code_reason(GPUS[gpu], BUILDS[build], f"2.13.0+{build}")
    assert (reason is not None) is ((build, gpu) in WITHOUT_CODE)


@pytest.mark.parametrize("build", ["rocm6.0", "rocm7.2", "rocm7.14", "cpu"])
@pytest.mark.parametrize("capability", [*GPUS.values(), *AMD_GPUS.values()])
def test_names_of_rocm_are_compared_with_no_capability(
    build: str, capability: tuple[int, int],
) -> None:
    assert no_code_reason(capability, BUILDS[build], f"2.13.0+{build}") is None


@pytest.mark.parametrize(("architectures", "cuda", "hip", "judged", "words"), [
    (CU128, "13.0", None, True, ""), ((), None, None, False, "no CUDA build"),
    ((), "12.6", None, False, "only where a GPU is visible"),  # older torches, on a login node
    (ROCM_7_2, None, "7.2.1", False, "ROCm"), ((), None, "7.2.1", False, "ROCm")])
def test_what_can_be_judged_without_a_gpu(
    architectures: Sequence[str], cuda: str | None, hip: str | None, judged: bool, words: str,
) -> None:
    why = why_not_judged(architectures, "2.13.0", cuda, hip)
    assert (why is None) is judged
    assert words in (why or "")
