// Eight GPUs for a torch that was built without CUDA: torch's own guard for tests of device guards,
// and the hooks by which autograd finds the accelerator. Preloaded, since torch asks once.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace at {
namespace {

using Guard = c10::impl::FakeGuardImpl<kCUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct CUDAHooks : CUDAHooksInterface {  // torch looks for this name
  explicit CUDAHooks(CUDAHooksArgs /*unused*/) {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex /*index*/) const override { return false; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return c10::impl::kFakeGuardImplMaxDevices; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace
}  // namespace at
