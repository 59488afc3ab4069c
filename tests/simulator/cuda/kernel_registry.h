// The kernels that the object files of this process have registered.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "simulator/ptx/program.h"

namespace fsdp::testing::sim {

// Thread-safe. The process has one registry, because nvcc's code fills it before main.
class KernelRegistry {
 public:
  static KernelRegistry& instance();

  // Returns the handle that nvcc's code uses for this binary.
  void** add_binary(const void* wrapper);
  void remove_binary(void** handle);
  // `host` is the function that callers launch. `name` is the kernel's name in PTX.
  void add_kernel(void** handle, const void* host, const char* name);

  // Returns a kernel. Its module is parsed at the first request. The parser refuses modules with
  // variables that kernels share with the host. Errors: ptx::Objection if the function is not
  // registered, and the errors of ptx_of and parse.
  const ptx::Kernel& find(const void* host);

  // Returns the host functions by which kernels are launched.
  std::set<const void*> hosts();

 private:
  struct Binary {
    const void* wrapper = nullptr;
    bool parsed = false;
    ptx::Module module;
  };
  struct Registered {
    Binary* binary = nullptr;
    std::string name;
  };

  std::mutex mutex_;
  std::map<void**, std::unique_ptr<Binary>> binaries_;
  std::map<const void*, Registered> kernels_;  // by the host's function
};

// Returns the name without result type and parameters: "fill<float>" if the demangled name is "void
// fill<float>(float*, long)".
std::string readable_name(const std::string& mangled);

}  // namespace fsdp::testing::sim
