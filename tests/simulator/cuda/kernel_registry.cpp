#include "simulator/cuda/kernel_registry.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "simulator/cuda/fat_binary.h"

namespace fsdp::testing::sim {

KernelRegistry& KernelRegistry::instance() {
  // Never destroyed, because nvcc's code uses it until the process exits.
  static auto* const registry = new KernelRegistry;
  return *registry;
}

void** KernelRegistry::add_binary(const void* wrapper) {
  const std::lock_guard lock(mutex_);
  auto binary = std::make_unique<Binary>();
  binary->wrapper = wrapper;
  auto** handle = reinterpret_cast<void**>(binary.get());
  binaries_[handle] = std::move(binary);
  return handle;
}

void KernelRegistry::remove_binary(void** handle) {
  const std::lock_guard lock(mutex_);
  const auto found = binaries_.find(handle);
  if (found == binaries_.end()) return;
  std::erase_if(kernels_,
                [&](const auto& each) { return each.second.binary == found->second.get(); });
  binaries_.erase(found);
}

void KernelRegistry::add_kernel(void** handle, const void* host, const char* name) {
  const std::lock_guard lock(mutex_);
  kernels_[host] = {.binary = binaries_.at(handle).get(), .name = name};
}

const ptx::Kernel& KernelRegistry::find(const void* host) {
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(host);
  if (found == kernels_.end()) {
    throw ptx::Objection(fmt::format("no kernel was registered for the function at {}", host));
  }
  Binary& binary = *found->second.binary;
  if (!binary.parsed) {
    binary.module = ptx::parse(ptx_of(binary.wrapper));
    binary.parsed = true;
  }
  const auto kernel = binary.module.find(found->second.name);
  if (kernel == binary.module.end()) {
    throw ptx::Objection(fmt::format("kernel {} is not in its module's PTX", found->second.name));
  }
  return kernel->second;
}

std::set<const void*> KernelRegistry::hosts() {
  const std::lock_guard lock(mutex_);
  std::set<const void*> hosts;
  for (const auto& [host, kernel] : kernels_) hosts.insert(host);
  return hosts;
}

std::string readable_name(const std::string& mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return mangled;
  std::string name = text;
  std::free(text);
  for (const std::string_view gone = "(anonymous namespace)::";;) {
    const size_t at = name.find(gone);
    if (at == std::string::npos) break;
    name.erase(at, gone.size());
  }
  // Outside of angle brackets, the text before a blank or a colon is the result type or a
  // namespace, and not part of the name. The name ends at a parenthesis.
  int depth = 0;
  size_t begin = 0, end = 0;
  for (; end < name.size() && (depth > 0 || name[end] != '('); ++end) {
    if (name[end] == '<') ++depth;
    if (name[end] == '>') --depth;
    if (depth == 0 && (name[end] == ' ' || name[end] == ':')) begin = end + 1;
  }
  return name.substr(begin, end - begin);
}

}  // namespace fsdp::testing::sim
