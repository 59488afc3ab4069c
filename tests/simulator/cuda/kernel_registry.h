// The kernels that the process's objects have registered.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "simulator/ptx/program.h"

namespace fsdp::testing::sim {

// Thread-safe. Filled by code of nvcc that runs before main, so it is the process's.
class KernelRegistry {
 public:
  static KernelRegistry& instance();

  // Returns the handle by which nvcc's code names the binary from then on.
  void** add_binary(const void* wrapper);
  void remove_binary(void** handle);
  // `host` is the function that a caller launches, `name` the kernel's in PTX.
  void add_kernel(void** handle, const void* host, const char* name);

  // A module is read when the first of its kernels is asked for. Variables of a module that
  // kernels share with the host are refused there, by the parser.
  // Errors: ptx::Objection for a function that nobody registered, or what ptx_of and parse object
  //   to.
  const ptx::Kernel& find(const void* host);

  // By which functions kernels are launched.
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

// "void fill<float>(float*, long)" of a mangled name, without result and parameters: "fill<float>".
std::string readable_name(const std::string& mangled);

}  // namespace fsdp::testing::sim
