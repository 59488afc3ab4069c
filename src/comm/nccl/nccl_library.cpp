#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "fsdp/error.h"

namespace fsdp::nccl {
namespace {

constexpr char kFile[] = "libnccl.so.2";
constexpr int kOldest = 22600;  // from which on it launches in the order of the host

[[noreturn]] void refuse(std::string what, std::string cause, std::string hint) {
  throw DeviceError({.what = std::move(what),
                     .where = "NCCL",
                     .cause = std::move(cause),
                     .hint = std::move(hint)});
}

std::string loader_says() {
  const char* text = dlerror();
  return text == nullptr ? "the loader does not say why" : text;
}

// What is loaded already: of another one LibTorch would know nothing.
void* loaded_library() {
  void* const file = dlopen(kFile, RTLD_NOW | RTLD_NOLOAD);
  if (file == nullptr) {
    refuse(fmt::format("{} is not loaded", kFile), {},
           "LibTorch's CUDA library brings it; tools/setup --gpu installs what that needs");
  }
  return file;
}

template <class Function>
void find_if_there(void* file, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(file, name));
}

template <class Function>
void find(void* file, const char* name, Function*& function) {
  find_if_there(file, name, function);
  if (function == nullptr) {
    refuse(fmt::format("{} has no {}", kFile, name), loader_says(),
           fmt::format("NCCL {} is the oldest that is used", version_text(kOldest)));
  }
}

Library find_all() {
  void* const file = loaded_library();
  // Kernels of several communicators begin in the order in which the host has issued them, on all
  // ranks alike; NCCL reads it at its first call.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  Library found;
  find(file, "ncclGetVersion", found.get_version);
  int version = 0;
  found.get_version(&version);
  if (version < kOldest) {
    refuse(fmt::format("NCCL {} is too old", version_text(version)), {},
           fmt::format("{} is the oldest that is used", version_text(kOldest)));
  }
  find(file, "ncclGetUniqueId", found.get_unique_id);
  find(file, "ncclCommInitRankConfig", found.comm_init_rank_config);
  find(file, "ncclCommSplit", found.comm_split);
  find(file, "ncclCommFinalize", found.comm_finalize);
  find(file, "ncclCommDestroy", found.comm_destroy);
  find(file, "ncclCommAbort", found.comm_abort);
  find(file, "ncclCommGetAsyncError", found.comm_get_async_error);
  find(file, "ncclGetErrorString", found.get_error_string);
  find(file, "ncclGetLastError", found.get_last_error);
  find(file, "ncclGroupStart", found.group_start);
  find(file, "ncclGroupEnd", found.group_end);
  find(file, "ncclAllGather", found.all_gather);
  find(file, "ncclReduceScatter", found.reduce_scatter);
  find(file, "ncclAllReduce", found.all_reduce);
  find(file, "ncclBroadcast", found.broadcast);
  find_if_there(file, "ncclMemAlloc", found.mem_alloc);
  find_if_there(file, "ncclMemFree", found.mem_free);
  find_if_there(file, "ncclCommWindowRegister", found.comm_window_register);
  find_if_there(file, "ncclCommWindowDeregister", found.comm_window_deregister);
  return found;
}

}  // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void require_windows(const Library& library) {
  int version = 0;
  library.get_version(&version);
  const bool has_all = library.mem_alloc != nullptr && library.mem_free != nullptr &&
                       library.comm_window_register != nullptr &&
                       library.comm_window_deregister != nullptr;
  if (version >= kWindowsFrom && has_all) return;
  throw InvalidArgument(
      {.what = fmt::format("NCCL {} is too old to register memory", version_text(version)),
       .where = "Options::nccl_registration",
       .cause = fmt::format("before {} collectives on registered memory corrupted data, and two "
                            "ranks could wait for each other for ever",
                            version_text(kWindowsFrom)),
       .hint = "leave nccl_registration at kOff, or use a LibTorch that brings a newer NCCL"});
}

const Library& library() {
  static const Library found = find_all();
  return found;
}

}  // namespace fsdp::nccl
