#include "runtime/open_cuda.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/run_process.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::run_process;
using testing::TemporaryDirectory;

const fs::path kMachines = FAKE_MACHINES;

struct Machine {
  fs::path program = PRINT_GPUS;
  bool has_driver = true;
  std::vector<std::string> arguments{};
};

// Runs the program and returns its output.
std::string said_on(const Machine& machine) {
  std::vector<std::string> command{machine.program};
  command.insert(command.end(), machine.arguments.begin(), machine.arguments.end());
  const std::string libraries = (kMachines / "driver").string() + INSTEAD_OF_RPATH;
  const auto result =
      run_process(command, {{"LD_LIBRARY_PATH", machine.has_driver ? libraries : std::string()}});
  REQUIRE_MESSAGE(result.code == 0, result.err);
  return result.out;
}

// Returns a machine with the program and, in the same folder, the libfsdp_cuda.so of `folder`.
Machine with_library(const std::string& folder, std::vector<std::string> arguments = {}) {
  fs::create_directories(kMachines / folder / "bin");
  const fs::path program = kMachines / folder / "bin" / "print_gpus";
  fs::copy_file(PRINT_GPUS, program, fs::copy_options::overwrite_existing);
  return {.program = program, .arguments = std::move(arguments)};
}

void check_says(const std::string& text, const std::string& wanted) {
  CHECK_MESSAGE(text.find(wanted) != std::string::npos, "expected: ", wanted, "\ngot: ", text);
}

bool this_machine_has_a_driver() {
  return !said_on({.has_driver = false}).starts_with("0 GPUs; why none: no NVIDIA driver");
}

TEST_CASE("a machine without a driver says so, and loads nothing") {
  if (this_machine_has_a_driver()) return;
  const std::string torch = kMachines / "torch" / "libc10.so";
  const std::string said = said_on({.has_driver = false, .arguments = {"0", torch}});
  check_says(said,
             "0 GPUs; why none: no NVIDIA driver (libcuda.so.1 was not found); hint: install");
  check_says(said, "libtorch_cuda.so is not loaded");
  check_says(said,
             "DeviceError: there is no cuda:0; no NVIDIA driver (libcuda.so.1 was not found); "
             "hint: install NVIDIA's driver");
  CHECK(cuda_devices().count == 0);
  CHECK(cuda_devices().why_none == "no NVIDIA driver (libcuda.so.1 was not found)");
  CHECK((cuda_library() == nullptr));
}

TEST_CASE("a driver that is no library is not taken for one that is missing") {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() + "/libcuda.so.1") << "no library";
  const auto result = run_process({PRINT_GPUS}, {{"LD_LIBRARY_PATH", folder.path()}});
  check_says(result.out, "the NVIDIA driver's library cannot be loaded: ");
}

TEST_CASE("LibTorch's CUDA library is loaded from beside the loaded LibTorch, before ours") {
  const std::string torch = kMachines / "torch" / "libc10.so";
  const std::string said = said_on(with_library("two_gpus", {"1", torch}));
  check_says(said,
             "2 GPUs; why none: ; hint: \nlibtorch_cuda.so is loaded\n"
             "CUDA 13020 on a driver for 13010\ncuda:1, for good");
}

TEST_CASE("a LibTorch for the CPU alone has no GPU, whatever the machine has") {
  const fs::path torch = kMachines / "torch_cpu";
  const std::string said = said_on(with_library("two_gpus", {"0", torch / "libc10.so"}));
  check_says(said, "0 GPUs; why none: LibTorch in " + torch.string() +
                       " is a CPU build (no libtorch_cuda.so); hint: build with a");
  check_says(said, "DeviceError: there is no cuda:0; LibTorch in");
}

TEST_CASE("a LibTorch whose CUDA library does not load names what it lacks, and the remedy") {
  const TemporaryDirectory folder;
  fs::copy_file(kMachines / "torch" / "libc10.so", folder.path() + "/libc10.so");
  std::ofstream(folder.path() + "/libtorch_cuda.so") << "no library";
  const std::string said = said_on(with_library("two_gpus", {"0", folder.path() + "/libc10.so"}));
  check_says(said, "0 GPUs; why none: LibTorch's CUDA library cannot be loaded: " + folder.path() +
                       "/libtorch_cuda.so");
  check_says(said, "hint: run tools/setup --gpu, which installs what LibTorch needs on a GPU");
}

TEST_CASE("a program without LibTorch needs none of it") {
  const std::string said = said_on(with_library("two_gpus", {"2"}));
  check_says(said, "2 GPUs; why none: ; hint: \nlibtorch_cuda.so is not loaded");
  check_says(said, "DeviceError: there is no cuda:2");
}

TEST_CASE("a library of another build is refused before anything of it is used") {
  const std::string said = said_on(with_library("other_build", {"0"}));
  check_says(said, "0 GPUs; why none: libfsdp_cuda.so is of another build: expected \"");
  check_says(said,
             "\", got \"another\"; hint: install the library and the programs from one build");
}

TEST_CASE("a library that is not ours, or none at all, is refused") {
  check_says(said_on(with_library("not_ours")),
             "0 GPUs; why none: libfsdp_cuda.so is not a library of fsdp:");
  const fs::path folder = kMachines / "no_library" / FSDP_LIBRARY_DIR;
  fs::create_directories(folder);
  std::ofstream(folder / "libfsdp_cuda.so") << "no library";
  check_says(said_on(with_library("no_library")),
             "0 GPUs; why none: libfsdp_cuda.so cannot be loaded: " + folder.string());
}

TEST_CASE(
    "the build tree's library is found from wherever the program lies, and says what it sees") {
  const std::string said = said_on(with_library("alone", {"0"}));
  if (HAS_CUDA_LIBRARY == 0) {
    check_says(said,
               "0 GPUs; why none: this build has no GPU part (libfsdp_cuda.so was not found)");
    return;
  }
  // The driver is an empty library. The CUDA runtime does not accept it as a driver.
  check_says(said, "0 GPUs; why none: no NVIDIA driver runs on this machine");
  check_says(said, "DeviceError: there is no cuda:0; no NVIDIA driver runs on this machine");
}

}  // namespace
}  // namespace fsdp
