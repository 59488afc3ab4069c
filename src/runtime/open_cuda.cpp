#include "runtime/open_cuda.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>

#include "fsdp/error.h"
#include "fsdp_cuda_build.h"
#include "runtime/cuda/cuda_library.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "libfsdp_cuda.so";

// The result of the search for GPUs. The library is never closed, because devices and LibTorch's
// CUDA exist until the process ends.
struct OpenCuda {
  const CudaLibrary* library = nullptr;
  CudaDevices devices;
};

// The reason why there is no GPU, as an exception. It never leaves this file, because a missing GPU
// is an error only if the program requires a GPU.
struct NoGpu {
  std::string why;
  std::string hint;
};

std::string loader_says() {
  const char* text = dlerror();
  return text == nullptr ? "the loader does not say why" : text;
}

// Throws NoGpu if the driver's library cannot be loaded. The library stays loaded, because CUDA
// uses it next.
void require_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) return;
  // The loader's text distinguishes a missing file from a file that was found but could not be
  // loaded.
  const std::string says = loader_says();
  if (says.starts_with("libcuda.so.1: cannot open shared object file")) {
    throw NoGpu{"no NVIDIA driver (libcuda.so.1 was not found)",
                "install NVIDIA's driver; start a container with GPUs (--gpus all)"};
  }
  throw NoGpu{fmt::format("the NVIDIA driver's library cannot be loaded: {}", says), {}};
}

// Returns the path of a library that this process has loaded, or an empty path.
fs::path file_of_loaded(std::string_view name) {
  struct Search {
    std::string_view name;
    fs::path found;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const fs::path file = info->dlpi_name;
        if (file.filename() != wanted.name) return 0;
        wanted.found = file;
        return 1;
      },
      &search);
  return search.found;
}

// Loads the CUDA library of the LibTorch that this process uses. This library must be loaded early,
// because LibTorch checks only once if CUDA is available. A program without LibTorch does not need
// this library.
void load_torch_cuda() {
  fs::path beside = file_of_loaded("libtorch_cpu.so");
  if (beside.empty()) beside = file_of_loaded("libc10.so");
  if (beside.empty()) return;
  const fs::path file = beside.parent_path() / "libtorch_cuda.so";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    throw NoGpu{fmt::format("LibTorch in {} is a CPU build (no libtorch_cuda.so)",
                            beside.parent_path().string()),
                "build with a LibTorch that has CUDA; tools/setup installs one"};
  }
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw NoGpu{fmt::format("LibTorch's CUDA library cannot be loaded: {}", loader_says()),
                "run tools/setup --gpu, which installs what LibTorch needs on a GPU"};
  }
}

// Opens libfsdp_cuda.so. Searches in the library folder beside the program's folder first, then in
// the loader's search path. If that folder has the file but the file cannot be loaded, the search
// path is not tried.
void* open_library() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) {
    const fs::path file = program.parent_path().parent_path() / FSDP_LIBRARY_DIR / kName;
    if (fs::exists(file, failed)) {
      if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      throw NoGpu{fmt::format("{} cannot be loaded: {}", kName, loader_says()), {}};
    }
  }
  if (void* library = dlopen(kName, RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string says = loader_says();
  if (says.starts_with(fmt::format("{}: cannot open shared object file", kName))) {
    throw NoGpu{fmt::format("this build has no GPU part ({} was not found)", kName),
                "build on a machine where cmake finds a CUDA compiler (tools/setup installs one), "
                "and install the library with the package"};
  }
  throw NoGpu{fmt::format("{} cannot be loaded: {}", kName, says), {}};
}

// Returns the library's table. Throws NoGpu if the library has none, or if the library and the
// program are not from the same build.
const CudaLibrary* checked(void* library) {
  auto* const get =
      reinterpret_cast<decltype(&fsdp_cuda_library)>(dlsym(library, "fsdp_cuda_library"));
  if (get == nullptr)
    throw NoGpu{fmt::format("{} is not a library of fsdp: {}", kName, loader_says()), {}};
  const CudaLibrary* found = get();
  // The build is read before any other member, because another build may have another layout.
  if (std::string_view(found->build) != kFsdpCudaBuild) {
    throw NoGpu{fmt::format("{} is of another build: expected \"{}\", got \"{}\"", kName,
                            kFsdpCudaBuild, found->build),
                "install the library and the programs from one build"};
  }
  return found;
}

OpenCuda open() {
  OpenCuda opened;
  try {
    // The order matters. If there is no driver, no other library is loaded. LibTorch's CUDA library
    // is loaded before any call asks LibTorch if it has CUDA, because LibTorch keeps its first
    // answer.
    require_driver();
    load_torch_cuda();
    const CudaLibrary* library = checked(open_library());
    opened.devices.count = library->device_count(opened.devices.why_none);
    if (opened.devices.count > 0) opened.library = library;
  } catch (const NoGpu& none) {
    opened.devices = {.why_none = none.why, .hint = none.hint};
  }
  return opened;
}

const OpenCuda& opened() {
  static const OpenCuda& once = *new OpenCuda(open());  // never destroyed, like Devices below
  return once;
}

struct Devices {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Device>> of_ordinal;
};

}  // namespace

const CudaDevices& cuda_devices() { return opened().devices; }

const Device& cuda_device(int ordinal) {
  const OpenCuda& cuda = opened();
  if (cuda.library == nullptr) {
    throw DeviceError({.what = fmt::format("there is no cuda:{}", ordinal),
                       .cause = cuda.devices.why_none,
                       .hint = cuda.devices.hint});
  }
  // The devices are never destroyed, because CUDA may have shut down before their destructors would
  // run.
  static Devices& devices = *new Devices;
  // The lock is held while a device is opened, so that it is opened only once and its kernels are
  // loaded only once.
  const std::lock_guard lock(devices.mutex);
  std::unique_ptr<Device>& device = devices.of_ordinal[ordinal];
  if (!device) device = cuda.library->open_device(ordinal);
  return *device;
}

const CudaLibrary* cuda_library() { return opened().library; }

}  // namespace fsdp
