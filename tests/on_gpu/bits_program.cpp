// Writes the bits that kernels and small trainings compute, so that two devices can be compared.
//   bits_on_gpu cpu|gpu FILE        this machine's GPU
//   bits_simulated cpu|gpu FILE     a simulated one
// Each result is a line: the hash of its bytes, their number, its name. The last line is "end" and
// the number of results. Without a GPU the program prints why and ends with 77.
#define DOCTEST_CONFIG_IMPLEMENT  // the thread ranks of tests use it for reports
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "gpu/support/training.h"
#include "kernels_simulated/support/simulated_kernels.h"
#include "on_gpu/support/gpu_ranks.h"
#include "on_gpu/support/kernel_cases.h"
#include "runtime/device.h"
#include "runtime/open_cuda.h"

namespace fsdp::testing {
namespace {

constexpr int kUsage = 64, kNoGpu = 77;

// Returns the FNV-1a hash of the bytes.
uint64_t hash_of(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

class BitsFile {
 public:
  explicit BitsFile(const std::string& path) : file_(path) {}

  void add(std::span<const std::byte> bytes, std::string_view name) {
    file_ << fmt::format("{:016x} {} {}\n", hash_of(bytes), bytes.size(), name);
    ++count_;
  }
  // Ends the file. Returns false if a write failed.
  bool end() {
    file_ << fmt::format("end {}\n", count_) << std::flush;
    return file_.good();
  }

 private:
  std::ofstream file_;
  int64_t count_ = 0;
};

void write_kernels(BitsFile& file, bool on_gpu) {
  const Device& device = on_gpu ? test::simulated_device() : cpu_device();
  const auto stream = device.make_stream({.name = "bits", .runs_beside = false});
  for (const test::KernelCase& each : test::kernel_cases()) {
    test::Arena operands = each.operands.placed();
    each.call(*stream, operands.base());
    file.add(operands.operands(), each.name);
  }
}

void write_trainings(BitsFile& file, bool on_gpu) {
  for (const Training& training : covering_trainings(SmallModel::kRoundedOnce)) {
    const TrainingResult result =
        on_gpu ? train_on(training, ranks_on_gpu(), [] { return 0; }) : train_on_cpu(training);
    const std::string name = describe(training);
    file.add(std::as_bytes(std::span(result.losses)), name + ": losses");
    for (const auto& [fqn, value] : result.parameters) {
      const at::Tensor whole = value.contiguous();
      file.add({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()},
               name + ": " + fqn);
    }
  }
}

int write(const std::string& device, const std::string& path) {
  const bool on_gpu = device == "gpu";
  if (on_gpu && !gpu_is_simulated() && cuda_devices().count == 0) {
    fmt::print(stderr, "not run: {}\n", cuda_devices().why_none);
    return kNoGpu;
  }
  BitsFile file(path);
  write_kernels(file, on_gpu);
  write_trainings(file, on_gpu);
  if (file.end()) return 0;
  fmt::print(stderr, "{} cannot be written\n", path);
  return 1;
}

}  // namespace
}  // namespace fsdp::testing

int main(int argc, char** argv) {
  const std::string device = argc == 3 ? argv[1] : "";
  if (device != "cpu" && device != "gpu") {
    fmt::print(stderr, "usage: {} cpu|gpu FILE\n", argv[0]);
    return fsdp::testing::kUsage;
  }
  try {
    return fsdp::testing::write(device, argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
