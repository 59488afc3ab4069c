#include "comm/nccl/nccl_windows.h"

#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "fsdp/program_text.h"
#include "kernels/fill.h"
#include "runtime/device.h"
#include "runtime/out_of_memory.h"

namespace fsdp {

Buffer NcclWindows::allocate_unregistered(int64_t bytes) const {
  void* data = nullptr;
  const auto result = session_->call("ncclMemAlloc", std::string_view("memory for a window"),
                                     [&](const nccl::Library& library) {
                                       return library.mem_alloc(&data, static_cast<size_t>(bytes));
                                     });
  if (result != nccl::Result::kSuccess) {
    throw OutOfMemory({.what = fmt::format("ncclMemAlloc of {} on {} failed: {}",
                                           format_bytes(bytes), session_->device().name(),
                                           session_->library().get_error_string(result)),
                       .where = "Options::tuning.nccl_registration",
                       .hint = "set NCCL_DEBUG=WARN to see NCCL's reason"});
  }
  // The release function keeps the session alive, because it calls NCCL under the session's mutex.
  return {data, bytes, [session = session_](void* gone) {
            session->call_at_end(nullptr, "ncclMemFree",
                                 [gone](const nccl::Library& library, nccl::Comm* /*none*/) {
                                   return library.mem_free(gone);
                                 });
          }};
}

Buffer NcclWindows::allocate(int64_t bytes) const {
  // `bytes` is equal on all ranks, so either all ranks register or none does.
  if (bytes == 0) return {};
  const auto memory = std::make_shared<Buffer>(allocate_unregistered(bytes));
  // The memory is zeroed before any peer can write to it.
  const kernels::FillRun all{memory->data(), bytes, DType::kUInt8};
  Stream& stream = session_->own_stream();
  kernels::fill_zero(stream, {&all, 1});
  stream.synchronize();
  const auto window = std::make_shared<nccl::Window*>(nullptr);  // NCCL's threads write it
  session_->call_over(
      *member_, "ncclCommWindowRegister", std::string_view("registration of a window"),
      [&](const nccl::Library& library, nccl::Comm* comm) {
        return library.comm_window_register(comm, memory->data(), static_cast<size_t>(bytes),
                                            window.get(), nccl::kSymmetricWindow);
      });
  // If GPUs cannot access each other's memory, NCCL reports success but makes no window.
  if (*window == nullptr) {
    throw DeviceError({.what = "NCCL cannot register memory on these GPUs",
                       .where = "Options::tuning.nccl_registration",
                       .cause = "the GPUs cannot access each other's memory",
                       .hint = "leave nccl_registration at kOff; set NCCL_DEBUG=INFO for details"});
  }
  // The release function owns `memory`. The function first removes the window. `memory` is freed
  // afterwards, when the function itself is destroyed. The function also keeps session and member
  // alive until then.
  return {memory->data(), bytes,
          [session = session_, member = member_, memory, window](void* /*data*/) {
            session->call_at_end(member.get(), "ncclCommWindowDeregister",
                                 [&](const nccl::Library& library, nccl::Comm* comm) {
                                   return library.comm_window_deregister(comm, *window);
                                 });
          }};
}

}  // namespace fsdp
