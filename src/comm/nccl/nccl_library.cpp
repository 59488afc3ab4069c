#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "fsdp/error.h"

namespace fsdp::nccl {
namespace {

constexpr char kFile[] = "libnccl.so.2";
constexpr int kOldest = 22600;  // first version that launches in the host's order

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

struct Place {
  void* handle;  // first argument of dlsym
  std::string name;
};

Place place_named(const char* file) {
  // RTLD_LOCAL is set, because other libraries must not find NCCL's names in this file.
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return {handle, file};
  refuse(fmt::format("{} cannot be loaded", file), loader_says(),
         "set FSDP_NCCL to a libnccl.so.2 of this machine");
}

// Finds the NCCL that the process has loaded. NCCL is in its own file or in LibTorch's CUDA
// library, whose names are global. A second copy of NCCL would not know how the first copy uses the
// GPU.
Place place_of_nccl() {
  const char* const named = std::getenv("FSDP_NCCL");
  // With RTLD_NOLOAD, dlopen only finds a file that is already loaded, because LibTorch decides
  // which NCCL the process has.
  void* const loaded = dlopen(kFile, RTLD_NOW | RTLD_NOLOAD);
  const bool is_inside = loaded == nullptr && dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr;
  if (loaded == nullptr && !is_inside) {
    if (named != nullptr) return place_named(named);
    refuse(fmt::format("{} is not loaded", kFile), {},
           "use a LibTorch whose CUDA library loads NCCL (tools/setup --gpu installs its "
           "packages); if LibTorch hides its own NCCL, set FSDP_NCCL=FILE");
  }
  Place place = is_inside ? Place{RTLD_DEFAULT, "LibTorch's CUDA library"} : Place{loaded, kFile};
  if (named == nullptr) return place;
  refuse(fmt::format("FSDP_NCCL names {}, but the process already uses the NCCL of {}", named,
                     place.name),
         {}, "unset FSDP_NCCL: only a LibTorch that hides its own NCCL needs it");
}

template <class Function>
void find_if_there(const Place& place, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(place.handle, name));
}

template <class Function>
void find(const Place& place, const char* name, Function*& function) {
  find_if_there(place, name, function);
  if (function == nullptr) {
    refuse(fmt::format("{} has no function {}", place.name, name), loader_says(),
           fmt::format("use NCCL {} or newer", version_text(kOldest)));
  }
}

}  // namespace

Library find_library() {
  const Place file = place_of_nccl();
  // With this variable, kernels of several communicators begin in the order in which the host has
  // issued them. This order is equal on all ranks. Without it, two ranks could deadlock. NCCL reads
  // the variable at its first call. A value that the user has set is kept.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  Library found;
  find(file, "ncclGetVersion", found.get_version);
  int version = 0;
  found.get_version(&version);
  if (version < kOldest) {
    refuse(fmt::format("NCCL {} is too old", version_text(version)), {},
           fmt::format("use NCCL {} or newer", version_text(kOldest)));
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
  // These functions are optional, because older versions of NCCL lack them. Only registered memory
  // needs these functions.
  find_if_there(file, "ncclMemAlloc", found.mem_alloc);
  find_if_there(file, "ncclMemFree", found.mem_free);
  find_if_there(file, "ncclCommWindowRegister", found.comm_window_register);
  find_if_there(file, "ncclCommWindowDeregister", found.comm_window_deregister);
  return found;
}

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
       .where = "Options::tuning.nccl_registration",
       .cause = fmt::format("before {}, collectives on registered memory corrupted data, and two "
                            "ranks could deadlock",
                            version_text(kWindowsFrom)),
       .hint = "leave nccl_registration at kOff, or use a LibTorch with a newer NCCL"});
}

const Library& library() {
  static const Library found = find_library();
  return found;
}

}  // namespace fsdp::nccl
